"""What every backend offers: an executable with named inputs and outputs, called with a dict of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir
from pfvm.compiler.importer import is_placeholder
from pfvm.compiler.signature import Interface
from pfvm.errors import InputError, did_you_mean, short

# A message lists so many overridable weights and counts more.
_FEW = 4
Dims = tuple[int | str | None, ...]


class TensorSpec(NamedTuple):
    """Name and type of one graph input or output.

    `dtype` is the ONNX element type (of the tensor, or of what a sequence or optional holds); None where the model does
    not say. `shape` is None for unknown rank; its dims are an int, a symbol's name, or None for an unnamed unknown one.
    `kind` is "tensor", "sequence", "optional", "map", or several of them, the outer one first: "sequence map".
    """

    name: str
    dtype: ir.DataType | None
    shape: Dims | None
    kind: str = "tensor"

    @property
    def is_fixed(self) -> bool:
        """Rank and every dim are known."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        dtype = self.dtype.name.lower() if self.dtype is not None else "any"
        dims = "[?]" if self.shape is None else "[" + ",".join("?" if d is None else str(d) for d in self.shape) + "]"
        text = f"{dtype}{dims}"
        for word in reversed(self.kind.split()):
            text = text if word == "tensor" else f"{word}({text})"
        return text


@runtime_checkable
class Executable(Protocol):
    """A loaded model. Calling it is safe from several threads."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that every call must give, in the graph's order."""

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Overridable initializers (state included): a call may give them, else the stored value is used."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs, in the graph's order."""

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once. Raises InputError for feeds that do not fit `inputs` and `optional_inputs`.

        The result has every output by name: an ndarray (ml_dtypes for bfloat16, float8, int4 …), a list for a sequence,
        None for an absent optional.
        """


def representation(device: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """ "<pfvm:cpu: x float[n,3] → y int64[n]>", for the `repr` of an executable."""
    left, right = (", ".join(f"{spec.name} {spec}" for spec in specs) for specs in (inputs, outputs))
    return f"<{device}: {left or 'no inputs'} → {right}>"


def specs_of(model: ir.Model) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The model's (required inputs, optional inputs, outputs), with the types that its file declares.

    A graph output may know more than that by now (a constant has a shape); the signature stays what it was.
    """
    graph, interface = model.graph, Interface.of(model)
    declared, maps = interface.declared(), interface.maps()

    def spec(value: ir.Value) -> TensorSpec:
        name = value.name or ""
        return TensorSpec(name, None, None, maps[name]) if name in maps else spec_of(declared.get(name, value))

    required = tuple(spec(v) for v in graph.inputs if v.name not in graph.initializers)
    optional = tuple(spec(v) for v in graph.inputs if v.name in graph.initializers)
    return required, optional, tuple(spec(v) for v in graph.outputs)


def spec_of(value: ir.Value) -> TensorSpec:
    """The spec of one graph value."""
    kinds = []
    kind: Any = value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kinds.append("sequence" if isinstance(kind, ir.SequenceType) else "optional")
        kind = kind.elem_type
    dtype = value.dtype if value.type is not None else None
    if dtype == ir.DataType.UNDEFINED:
        dtype = None
    shape = None if value.shape is None else tuple(_dim(d) for d in value.shape)
    return TensorSpec(value.name or "", dtype, shape, " ".join(kinds) or "tensor")


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim >= 0 else None  # old files write -1 for "unknown"
    return None if is_placeholder(dim.value) else dim.value


def check_feeds(
    inputs: Sequence[TensorSpec], optional: Sequence[TensorSpec], feeds: Mapping[str, Any]
) -> dict[str, Any]:
    """Checks feeds against the specs and returns them as arrays, in the specs' order.

    Nothing is cast: a float64 array for a float32 input is an error, since it would change results silently.
    Raises InputError that names the input: missing, unknown, wrong dtype, wrong rank or static dim, or one symbolic dim
    with two sizes.
    """
    if not isinstance(feeds, Mapping):
        raise InputError(f"a call takes a dict from input names to arrays, not {short(feeds)}")
    known = [*inputs, *optional]
    _check_names(inputs, known, feeds)
    sizes: dict[str, tuple[int, str]] = {}
    return {s.name: _check_value(s, feeds[s.name], sizes) for s in known if s.name in feeds}


def _check_names(inputs: Sequence[TensorSpec], known: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> None:
    # An optional-typed input that is left out would be None; it must still be given, so that a typing error is seen.
    missing = [s for s in inputs if s.name not in feeds]
    names = {s.name: None for s in known}
    unknown = [name for name in feeds if name not in names]
    if missing:
        given = f"; {short(unknown[0])}, which was given, is no input of the model" if unknown else ""
        raise InputError(f"missing input {', '.join(f'{s.name!r} ({s})' for s in missing)}{given}")
    if unknown:
        raise InputError(
            f"unknown input {short(unknown[0])}: {_listed(inputs, known)}{did_you_mean(unknown[0], names)}"
        )


def _listed(inputs: Sequence[TensorSpec], known: Sequence[TensorSpec]) -> str:
    """The inputs; overridable weights, which may be hundreds, are only counted where there are more than a few."""
    weights = len(known) - len(inputs)
    shown = known if weights <= _FEW else inputs
    more = f", and {weights} weights that a call may replace" if weights > _FEW else ""
    return f"the model's inputs are {', '.join(repr(s.name) for s in shown) or 'none'}{more}"


def _check_value(spec: TensorSpec, value: Any, sizes: dict[str, tuple[int, str]]) -> Any:
    kind = spec.kind
    if kind.startswith("optional"):
        if value is None:
            return None
        kind = kind.removeprefix("optional").strip() or "tensor"
    if value is None:
        raise InputError(f"input {spec.name!r} is None, expected {spec}")
    if kind == "sequence":
        if not isinstance(value, (list, tuple)):
            raise InputError(
                f"input {spec.name!r} is a sequence: expected a list of arrays, got {type(value).__name__}"
            )
        # Elements of a sequence may differ in size: symbols are local to each.
        return [_check_tensor(spec, v, {}, f"input {spec.name!r}[{i}]") for i, v in enumerate(value)]
    if kind != "tensor":  # nested sequences: the backend knows
        return value
    return _check_tensor(spec, value, sizes, f"input {spec.name!r}")


def _check_tensor(spec: TensorSpec, value: Any, sizes: dict[str, tuple[int, str]], where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, torch tensors that require grad
        raise InputError(f"{where}: not an array: {' '.join(str(error).split())}") from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if spec.dtype is not None and not _has_dtype(array, spec.dtype):
        raise InputError(f"{where}: expected dtype {_dtype_name(spec.dtype)}, got {array.dtype.name}")
    if spec.shape is None:
        return array
    if array.ndim != len(spec.shape):
        raise InputError(f"{where}: expected rank {len(spec.shape)} ({spec}), got shape {list(array.shape)}")
    for axis, (dim, size) in enumerate(zip(spec.shape, array.shape)):
        if isinstance(dim, int) and dim != size:
            raise InputError(
                f"{where}: dim {axis} must be {dim} ({spec}), got shape {list(array.shape)}; a dim that varies must be "
                "left open when the model is made (dynamic in pfvm.compile, --dynamic in pfvm export)"
            )
        if isinstance(dim, str):
            first, owner = sizes.setdefault(dim, (size, where))
            if first != size:
                raise InputError(f"{where}: dim {axis} ({dim!r}) is {size}, but {owner} has {dim!r} = {first}")
    return array


def _dtype_name(dtype: ir.DataType) -> str:
    """As numpy names it: ONNX's "float" would send a reader to Python's, which is float64."""
    return "string" if dtype == ir.DataType.STRING else str(np.dtype(dtype.numpy()).name)


def _has_dtype(array: np.ndarray, dtype: ir.DataType) -> bool:
    if dtype == ir.DataType.STRING:
        return array.dtype.kind in "OUST"
    return array.dtype == dtype.numpy()
