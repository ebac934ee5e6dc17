"""Every model of the shared corpus on xla:cpu against the unoptimized original on ONNX Runtime: a program, its judge.

    python tests/corpus_on_xla.py [--match REGEX] [--every N] [--quick] [--patience SECONDS] [--json FILE]

One process runs one model after the other and is replaced when it dies. A model that has taken longer than `patience`
is left at the inputs it has had so far. A model is

* equal: each output of each recorded input is equal to ONNX Runtime's. Integers, strings and shapes exactly, floats to
  1e-3 of themselves plus 1e-5 of the largest (half precision and quantized models: the corpus checker's wider bounds).
  What TopK gives without sorted=1 is compared in order of size: the standard leaves its order open.
* rounding: it differs by more, and by no more than 10 times what ONNX Runtime's own output moves when the floats that
  the model reads (inputs, and weights of more than one number) change by a relative 1e-6. Or by no more than 30 times
  that, and xla:cpu is at least as near to the same model in double precision as ONNX Runtime is (asked once a model).
* standard: it differs, and xla:cpu is equal to onnx.reference, the standard's own implementation. So ONNX Runtime is
  what departs: it computes half precision in single, divides a constant's 0 by its deviation of 0, and so on.
  Where onnx.reference cannot add half to single precision, half is widened to single for it.
* refused: an error of pfvm, which names the node; wrong, crash or timeout: everything else.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"
CORPUS = SHARED / "corpus"
sys.path.insert(0, str(SHARED / "harness"))

CHANGE = 1e-6
PLAIN, NEARER = 10, 30  # times the movement under CHANGE
SECONDS = 900  # for one model; the machine may be busy
PATIENCE = 25.0  # of the processor, after which a model gets no further inputs

Values = list[Any]


class Model:
    """A model of the corpus with the bounds that its kind is compared by."""

    def __init__(self, path: pathlib.Path, quantized: bool) -> None:
        import caselib
        import onnx

        self.path, self.proto = path, onnx.load(path)
        self.outputs = [o.name for o in self.proto.graph.output]
        self.is_nearer: bool | None = None  # to the model in double precision than ONNX Runtime is, once that is asked
        self.oracle = caselib.ort_session(str(path))
        self._bounds = (1e-2, 1e-2, 1, 0.005) if quantized else (1e-3, 1e-5, 0, 0.0)
        unsorted = [n for n in caselib.iter_nodes(self.proto) if n.op_type == "TopK" and _attribute(n, "sorted") == 0]
        self._any_order = {name: _attribute(n, "axis", -1) for n in unsorted for name in n.output}

    def feeds(self, recipe: dict) -> dict[str, Any]:
        import caselib

        return caselib.synth_inputs(self.proto, recipe)

    def difference(self, index: int, want: Any, got: Any) -> str | None:
        """Why output `index` is not equal, or None."""
        import caselib
        import numpy as np

        axis = self._any_order.get(self.outputs[index])
        if axis is not None:
            want, got = (np.sort(x, axis) for x in (want, got))
        rtol, atol, slack, few = self._bounds
        return caselib.compare(want, got, rtol, atol, slack, self.outputs[index], few)


def _attribute(node: Any, name: str, default: Any = None) -> Any:
    return next((a.i for a in node.attribute if a.name == name), default)


def judge(request: dict) -> dict:
    """The verdict on one model: its status, and what was remarkable."""
    import pfvm
    from pfvm.errors import PfvmError

    start = time.process_time()
    notes: list[str] = []
    status = "equal"
    try:
        model = Model(CORPUS / request["path"], request["quantized"])
        run = pfvm.load(model.path, device="xla:cpu")
        for recipe in request["recipes"]:
            feeds = model.feeds(recipe)
            results = run(feeds)
            verdict, note = judge_call(
                model, feeds, [results[name] for name in model.outputs], request["deterministic"]
            )
            if verdict != "equal":
                status = verdict
                notes.append(f"{recipe}: {note}")
            if verdict == "wrong" or time.process_time() - start > request.get("patience", PATIENCE):
                break
    except PfvmError as error:
        status, notes = "refused", [f"{type(error).__name__}: {error}"]
    return {"status": status, "detail": "; ".join(notes), "seconds": round(time.process_time() - start, 2)}


def judge_call(model: Model, feeds: Mapping[str, Any], got: Values, deterministic: bool) -> tuple[str, str]:
    import caselib

    want = caselib.ort_run(model.oracle, dict(feeds))
    if not deterministic:
        alike = all(getattr(a, "dtype", 0) == getattr(b, "dtype", 0) for a, b in zip(want, got))
        return ("equal", "") if alike else ("wrong", "another element type")
    different = {i: why for i in range(len(want)) if (why := model.difference(i, want[i], got[i]))}
    if not different:
        return "equal", ""
    for verdict, explains in (("rounding", within_rounding), ("standard", as_the_standard)):
        if explains(model, feeds, want, got, list(different)):
            return verdict, "; ".join(different.values())
    return "wrong", "; ".join(different.values())


def within_rounding(model: Model, feeds: Mapping[str, Any], want: Values, got: Values, outputs: list[int]) -> bool:
    import numpy as np

    pairs = [(want[i], got[i]) for i in outputs]
    if not all(isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape == b.shape for a, b in pairs):
        return False
    apart = [_distance(a, b) for a, b in pairs]
    moved = [0.0] * len(outputs)
    for seed in range(2):
        again = moved_results(model, feeds, np.random.default_rng(seed))
        moved = [max(m, _distance(want[i], again[i])) for m, i in zip(moved, outputs)]
        if not np.isfinite([*apart, *moved]).all():
            return False
        if all(a <= PLAIN * m for a, m in zip(apart, moved)):
            return True
    if not all(a <= NEARER * m for a, m in zip(apart, moved)):
        return False
    if model.is_nearer is None:
        exact = in_double(model, feeds)
        model.is_nearer = all(_distance(got[i], exact[i]) <= _distance(want[i], exact[i]) for i in outputs)
    return model.is_nearer


def moved_results(model: Model, feeds: Mapping[str, Any], rng: Any) -> Values:
    """ONNX Runtime's results where every float that the model reads has changed by about CHANGE of itself."""
    import caselib

    def move(x: Any) -> Any:
        noise = rng.standard_normal(x.shape)
        return (x + CHANGE * (noise * x if x.any() else noise)).astype(x.dtype)

    session = caselib.ort_session(with_floats(model.proto, move))
    return caselib.ort_run(session, with_float_feeds(feeds, move))


def _distance(a: Any, b: Any) -> float:
    """The largest difference; infinite where one is NaN or infinite."""
    import numpy as np

    if a.size == 0:
        return 0.0
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(apart.max()) if np.isfinite(apart).all() else np.inf


def in_double(model: Model, feeds: Mapping[str, Any]) -> Values:
    import numpy as np
    import pfvm

    twin = with_types(model.proto, np.dtype(np.float64), "fb")
    results = pfvm.load(twin, device="xla:cpu")(with_float_feeds(feeds, lambda x: x.astype(np.float64)))
    return [results[name] for name in model.outputs]


def as_the_standard(model: Model, feeds: Mapping[str, Any], want: Values, got: Values, outputs: list[int]) -> bool:
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    single = np.dtype(np.float32)
    for widen in (False, True):
        proto = with_types(model.proto, single, "b") if widen else model.proto
        given = with_float_feeds(feeds, lambda x: x.astype(single)) if widen else dict(feeds)
        try:
            with np.errstate(all="ignore"):
                expected = ReferenceEvaluator(for_reference(proto, feeds)).run(None, given)
        except Exception as error:  # whatever onnx.reference raises for what it cannot do: then it is no judge
            print(f"onnx.reference: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        same_type = [e.astype(want[i].dtype) if widen else e for i, e in enumerate(expected)]
        return all(model.difference(i, same_type[i], got[i]) is None for i in outputs)
    return False


# Models made of models. Floats: "f" float32 and float64, "b" the half-precision types.


def for_reference(proto: Any, feeds: Mapping[str, Any]) -> Any:
    """As onnx.reference takes it: nodes in an order of execution; of MeanVarianceNormalization's default axes, 0, 2, 3,
    those that the operand has (ONNX Runtime runs the others, too)."""
    import onnx_ir as ir

    model = ir.from_proto(proto)
    model.graph.sort()
    for node in model.graph:
        name = node.inputs[0].name if node.inputs and node.inputs[0] is not None else None
        if node.op_type == "MeanVarianceNormalization" and "axes" not in node.attributes and name in feeds:
            node.attributes["axes"] = ir.AttrInt64s("axes", [a for a in (0, 2, 3) if a < feeds[name].ndim])
    return ir.to_proto(model)


def with_floats(proto: Any, change: Callable[[Any], Any]) -> Any:
    """With every float weight of more than one number changed (a single one may be an exponent)."""
    return _rewritten(proto, lambda x: change(x) if x.dtype.kind == "f" and x.size > 1 else x, {})


def with_types(proto: Any, to: Any, kinds: str) -> Any:
    """With `to` in place of the float types of these kinds."""
    import numpy as np
    import onnx

    codes = {10, 16} if kinds == "b" else {1, 10, 11, 16}
    names = {onnx.helper.tensor_dtype_to_np_dtype(code) for code in codes}
    target = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to))
    return _rewritten(proto, lambda x: x.astype(to) if x.dtype in names else x, dict.fromkeys(codes, target))


def with_float_feeds(feeds: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The feeds with every float array changed."""
    import numpy as np

    return {k: change(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for k, x in feeds.items()}


def _rewritten(proto: Any, change: Callable[[Any], Any], types: Mapping[int, int]) -> Any:
    """A copy with changed tensors, and element types replaced in values and Casts."""
    import caselib
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)

    def tensor(stored: Any) -> None:
        if stored.data_type in (1, 10, 11, 16) and stored.data_location != onnx.TensorProto.EXTERNAL:
            stored.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(stored)), stored.name))

    for graph in caselib.iter_graphs(copy.graph):
        for stored in graph.initializer:
            tensor(stored)
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            kind.elem_type = types.get(kind.elem_type, kind.elem_type)
    for node in caselib.iter_nodes(copy):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                tensor(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = types.get(attribute.i, attribute.i)
    return copy


def run_corpus(match: str = "", every: int = 1, quick: bool = False, patience: float = PATIENCE) -> dict[str, dict]:
    """The verdicts on every `every`-th model whose path matches. quick: without most of XLA's optimizations."""
    import caselib

    manifest = json.loads((CORPUS / "manifest.json").read_text())
    paths = [path for path in sorted(manifest) if re.search(match, path)][::every]
    keys = ("recipes", "deterministic", "quantized")
    requests = [{"path": path, "patience": patience, **{key: manifest[path][key] for key in keys}} for path in paths]
    environment = {"PFVM_CACHE": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SHARED / "harness")}
    if quick:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, __file__, "--worker"]
    verdicts = caselib.run_pool(command, requests, SECONDS, 1, env={**os.environ, **environment}, recycle=150)
    return dict(zip(paths, verdicts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", metavar="REGEX", help="only models whose path it matches")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth model")
    parser.add_argument("--quick", action="store_true", help="without most of XLA's optimizations")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS", help="for one model (%(default)g)"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        import caselib

        caselib.serve(judge)
        return
    verdicts = run_corpus(options.match, options.every, options.quick, options.patience)
    for path, verdict in verdicts.items():
        if verdict["status"] != "equal":
            print(f"{verdict['status']:9} {path}: {verdict['detail'][:300]}")
    print(dict(collections.Counter(verdict["status"] for verdict in verdicts.values())))
    if options.json:
        options.json.write_text(json.dumps(verdicts, indent=1))


if __name__ == "__main__":
    main()
