"""Which passes run, in which order, with which options; and the one callback between them."""

from __future__ import annotations

import dataclasses
import importlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from pfvm.errors import OptionError, RuleError, did_you_mean, flag

if TYPE_CHECKING:  # `pfvm passes` needs neither
    import onnx_ir as ir

    from .rewriter import Rewriter


class Pass(Protocol):
    """A frozen dataclass; its fields are its options, its docstring draws before and after."""

    name: ClassVar[str]

    def run(self, rw: Rewriter) -> None:
        """Rewrite the model that `rw` owns."""


@runtime_checkable
class GrowingPass(Protocol):
    """A pass that may add bytes to the model."""

    def within(self, max_growth: int) -> Any:
        """The same pass, which adds at most so many bytes."""


# Name → where the class lives; in the order in which they run.
REGISTRY: dict[str, str] = {
    "infer-shapes": "infer_shapes:InferShapes",
    "inline-functions": "inline_functions:InlineFunctions",
    "fold-constants": "fold_constants:FoldConstants",
    "simplify-if": "simplify_if:SimplifyIf",
    "simplify-carried": "simplify_carried:SimplifyCarried",
    "hoist-loop-invariants": "hoist_loop_invariants:HoistLoopInvariants",
    "unroll-loops": "unroll_loops:UnrollLoops",
    "eliminate-identity": "eliminate_identity:EliminateIdentity",
    "merge-reshapes": "merge_reshapes:MergeReshapes",
    "keep-batch-dims": "keep_batch_dims:KeepBatchDims",
    "move-transposes": "move_transposes:MoveTransposes",
    "simplify-slices": "simplify_slices:SimplifySlices",
    "select-early": "select_early:SelectEarly",
    "replace-einsum": "replace_einsum:ReplaceEinsum",
    "simplify-bounds": "simplify_bounds:SimplifyBounds",
    "simplify-algebra": "simplify_algebra:SimplifyAlgebra",
    "simplify-selection": "simplify_selection:SimplifySelection",
    "drop-broadcasts": "drop_broadcasts:DropBroadcasts",
    "eliminate-common-subexpressions": "eliminate_common_subexpressions:EliminateCommonSubexpressions",
    "fuse-transpose-gemm": "fuse_transpose_gemm:FuseTransposeGemm",
    "fuse-softmax": "fuse_softmax:FuseSoftmax",
    "fuse-layer-norm": "fuse_layer_norm:FuseLayerNorm",
    "fuse-rms-norm": "fuse_rms_norm:FuseRmsNorm",
    "fuse-gelu": "fuse_gelu:FuseGelu",
    "fuse-hard-swish": "fuse_hard_swish:FuseHardSwish",
    "fuse-swish": "fuse_swish:FuseSwish",
    "fuse-rotary-embedding": "fuse_rotary_embedding:FuseRotaryEmbedding",
    "fuse-attention": "fuse_attention:FuseAttention",
    "fuse-pad": "fuse_pad:FusePad",
    "fuse-conv": "fuse_conv:FuseConv",
    "fuse-scale": "fuse_scale:FuseScale",
    "fuse-matmul-bias": "fuse_matmul_bias:FuseMatmulBias",
    "fuse-gemm-sum": "fuse_gemm_sum:FuseGemmSum",
    "fuse-cross-entropy-gradient": "fuse_cross_entropy_gradient:FuseCrossEntropyGradient",
    "fuse-cast-reduce-sum": "fuse_cast_reduce_sum:FuseCastReduceSum",
    "fuse-relu-gradient": "fuse_relu_gradient:FuseReluGradient",
    "fuse-optimizer-update": "fuse_optimizer_update:FuseOptimizerUpdate",
    "ort-gelu": "ort_gelu:OrtGelu",
    "ort-norms": "ort_norms:OrtNorms",
    "ort-rotary": "ort_rotary:OrtRotary",
    "ort-attention": "ort_attention:OrtAttention",
    "ort-linear": "ort_linear:OrtLinear",
    "ort-pad-products": "ort_pad_products:OrtPadProducts",
    "tpu-pair-columns": "tpu_pair_columns:TpuPairColumns",
    "tpu-split-pools": "tpu_split_pools:TpuSplitPools",
    "eliminate-dead-code": "eliminate_dead_code:EliminateDeadCode",
}
FUSED = ("fuse-cast-reduce-sum", "fuse-relu-gradient", "fuse-optimizer-update")
"""The passes that make calls of local functions; `--fused-ops inline` leaves them out."""
_CLEAN = ("infer-shapes", "fold-constants", "eliminate-identity", "eliminate-dead-code")
TARGETS: dict[str, tuple[str, ...]] = {
    target: tuple(name for name in REGISTRY if name.startswith(f"{target}-")) for target in ("ort", "tpu")
}
"""The passes that write for one runtime alone, from -O2 on: operators that it alone has, and what its kernels like."""
ASKED = ("fuse-swish",)
"""The passes that run only where they are named: what they write is shorter, and slower on ONNX Runtime."""
_STANDARD = tuple(
    name for name in REGISTRY if name not in ASKED and not any(name in names for names in TARGETS.values())
)
LEVELS: dict[int, tuple[str, ...]] = {0: (), 1: _CLEAN, 2: _STANDARD, 3: _STANDARD}
"""-O0 only reads and writes; -O1 folds and cleans; -O2 is everything; -O3 is -O2 until a costlier pass exists."""


@dataclasses.dataclass
class PassRecord:
    """What one run of a pass did. Sizes count nodes of all bodies and functions, and bytes of all constants."""

    name: str
    round: int
    seconds: float
    matches: dict[str, int]
    rejected: dict[str, int]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    max_difference: float | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten."""
        return bool(self.matches)


def load(name: str) -> type:
    """The class of a pass. OptionError names the passes there are."""
    if name not in REGISTRY:
        raise OptionError(f"there is no pass {name!r}{did_you_mean(name, REGISTRY)}; passes: {', '.join(REGISTRY)}")
    module, _, cls = REGISTRY[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), cls)


_SPEC = re.compile(r"^([A-Za-z0-9_-]+)(?:\{(.*)\})?$")


def known_name(name: str) -> str:
    """The pass's name, for which `fold_constants` may stand as well as `fold-constants`. Raises OptionError."""
    dashed = name.replace("_", "-")
    load(dashed if dashed in REGISTRY else name)
    return dashed


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """`fold-constants{slack=1KiB}` → ("fold-constants", {"slack": 1024}); options are typed by the pass's fields."""
    found = _SPEC.match(spec.strip())
    if found is None:
        raise OptionError(f"pass {spec!r} is not of the form NAME or NAME{{option=value,…}}")
    name, body = known_name(found[1]), found[2]
    fields = {field.name: field for field in dataclasses.fields(load(name))}
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in (body or "").split(","))):
        key, equals, text = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in fields:
            known = ", ".join(fields) or "none"
            near = did_you_mean(key, fields) if equals else " (write option=value)"
            raise OptionError(f"pass {name} has no option {key!r}{near}; options: {known}")
        options[key] = _convert(name, key, text.strip(), str(fields[key].type))
    return name, options


_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _convert(name: str, key: str, text: str, kind: str) -> Any:
    try:
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind == "int":
            number = re.match(r"^(-?[0-9.]+)\s*([A-Za-z]*)$", text)
            if number is None:
                raise ValueError(text)
            return int(float(number[1]) * _UNITS[number[2].upper()])
        return float(text) if kind == "float" else text
    except (KeyError, ValueError) as error:
        raise OptionError(f"option {key} of pass {name} is of type {kind}, not {text!r}") from error


def select(
    level: int,
    specs: Sequence[str] = (),
    disable: Sequence[str] = (),
    target: str | None = None,
    max_growth: int | None = None,
) -> list[Any]:
    """The passes to run, in their order: those of level, target, and `specs`, less the disabled ones.

    `max_growth`: bytes that those which add to the model may add, instead of what they would by themselves.
    """
    options = dict(parse_spec(spec) for spec in specs)
    aimed = TARGETS[target] if target is not None and level >= 2 else ()
    wanted = {*LEVELS[level], *aimed, *options} - {known_name(name) for name in disable}
    passes = [load(name)(**options.get(name, {})) for name in REGISTRY if name in wanted]
    if max_growth is None:
        return passes
    return [each.within(max_growth) if isinstance(each, GrowingPass) else each for each in passes]


def run(
    rw: Rewriter,
    passes: Sequence[Any],
    services: Mapping[str, Any] | None = None,
    after: Callable[[ir.Model, PassRecord], None] | None = None,
) -> list[PassRecord]:
    """Run the passes in rounds until a round changes nothing; `after` is called after every pass.

    `services` are the optional arguments that a pass's `run` may name (`evaluate`). Each round makes progress, so a
    model cannot need more rounds than it has nodes; one that does shows a fault of a pass, and is said so. The passes
    of a target join once the others have nothing left to do: they see what every target gets.
    """
    records: list[PassRecord] = []
    aimed = {name for names in TARGETS.values() for name in names}
    running = [each for each in passes if each.name not in aimed]
    measured = measure(rw)
    limit = 16 + measured[0]
    for number in range(1, limit + 1):
        changed = False
        for each in running:
            record = _run_one(rw, each, number, services or {}, measured)
            records.append(record)
            measured = record.nodes_after, record.bytes_after
            if after is not None:
                after(rw.model, record)
            changed |= record.changed
        if not changed and len(running) == len(passes):
            return records
        if not changed:
            running = list(passes)
        if number in (_PATIENCE, limit):
            _blame_users(records, number)
    raise AssertionError(f"passes still change the model after {limit} rounds: {records[-1]}")


_PATIENCE = 32
"""Rounds after which rules of a user's that still change something are taken to work against ours."""


def _blame_users(records: Sequence[PassRecord], number: int) -> None:
    last = [record.name for record in records if record.round == number and record.changed]
    users = [name for name in last if name not in REGISTRY]
    if users:
        raise RuleError(
            f"{' and '.join(users)} and other passes change the model for ever; in round {number} it was: "
            f"{', '.join(last)}; a pass that undoes what your rule does is left out with {flag('disable')}"
        )


def _run_one(
    rw: Rewriter, each: Any, number: int, services: Mapping[str, Any], measured: tuple[int, int]
) -> PassRecord:
    """`measured`: the model's nodes and bytes before, which are those after where nothing matches."""
    rw.start_pass(each.name)
    nodes, size = measured
    start = time.perf_counter()
    accepted = {key: value for key, value in services.items() if key in each.run.__code__.co_varnames}
    each.run(rw, **accepted)
    rw.end_pass()
    seconds = time.perf_counter() - start
    nodes_after, size_after = measure(rw) if rw.matches else measured
    rejected = {f"{rule}: {why}": count for (rule, why), count in rw.rejections.items()}
    return PassRecord(each.name, number, seconds, dict(rw.matches), rejected, nodes, nodes_after, size, size_after)


def measure(rw: Rewriter) -> tuple[int, int]:
    """Number of nodes, and bytes of constants, over the main graph, its bodies and the functions."""
    from .effects import graphs_in
    from .scopes import SEALED_DOMAIN
    from .tensor_bytes import nbytes

    sealed = [f.graph for f in rw.model.functions.values() if f.domain == SEALED_DOMAIN]
    graphs = [*rw.scopes(), *(each for graph in sealed for each in graphs_in(graph))]
    nodes = sum(len(graph) for graph in graphs)
    tensors = (v.const_value for graph in graphs for v in graph.initializers.values())
    return nodes, sum(nbytes(tensor) for tensor in tensors if tensor is not None)
