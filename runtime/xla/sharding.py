"""Which dimensions of a model's inputs, state and weights are split over the axes of a mesh.

* The batch is dimension 0 of the first input that is not state (1 where a call runs several steps, which come first).
  It is split over the axis `data`, and so is that dimension of every input that has it: the same symbol in any place,
  or the same size in the same place.
* State and weights are whole on every device, unless a rule (`--shard`) or `auto` says otherwise. An optimizer's state
  that belongs to a parameter and has its shape is split as that is.
* A rule goes before both. The last one that matches counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from pfvm.compiler.loop import STEPS_KEY
from pfvm.compiler.mesh import DATA, Rule, Spec, auto_spec, checked_spec, mesh_text, parse_shard
from pfvm.compiler.signature import read_manifest
from pfvm.errors import OptionError, SizeError, did_you_mean

_LISTED = 8


@dataclass(frozen=True)
class Sharding:
    """axes: of the mesh. specs: of what is split; everything else is whole on every device. batch: the inputs that are
    split because they hold the batch. updates: outputs that replace state → that state. several: steps in a call.
    """

    axes: Mapping[str, int]
    specs: Mapping[ir.Value, Spec]
    batch: frozenset[ir.Value]
    updates: Mapping[ir.Value, ir.Value]
    several: bool

    @property
    def summary(self) -> str:
        """ "mesh data=4,model=2: x, t split over data; linear1.weight over model; all else whole on each device"."""
        over: dict[str, list[str]] = {}
        for value, spec in self.specs.items():
            over.setdefault("+".join(dict.fromkeys(axis for dim in spec for axis in dim)), []).append(value.name or "")
        parts = [f"{_listed(names)} split over {axes}" for axes, names in over.items()]
        whole = f"all{' else' if parts else ''} whole on each device"
        return f"mesh {mesh_text(self.axes)}: {'; '.join([*parts, whole])}"

    def check(self, value: ir.Value, shape: Sequence[int]) -> None:
        """Raises SizeError where an array of this shape cannot be split as asked."""
        for dim, (axes, size) in enumerate(zip(self.specs.get(value, ()), shape)):
            parts = math.prod(self.axes[axis] for axis in axes)
            if size % parts:
                what = "its batch, " if value in self.batch else ""
                raise SizeError(
                    f"input {value.name!r} {list(shape)}: {what}dimension {dim}, cannot be split over the mesh "
                    f"{mesh_text(self.axes)}: {size} is not a multiple of {'+'.join(axes)}={parts}; pad or drop rows, "
                    f"or leave it whole by the shard rule '{value.name}=None'"
                )


def sharding_of(model: ir.Model, axes: Mapping[str, int], shard: str | Sequence[str] | None = None) -> Sharding:
    """The sharding of a model on a mesh.

    Raises OptionError for rules that match nothing or do not fit, SizeError for a batch of a fixed size that does not
    divide.
    """
    rules, auto = parse_shard(shard, axes)
    names = _names(model)
    state = {entry.name: entry for entry in read_manifest(model)}
    found: dict[ir.Value, Spec] = {}
    for rule in rules:
        _apply(rule, names, axes, found)
    ruled = set(found)
    if auto:
        found.update((v, s) for v, s in _auto(model, axes) if v not in ruled)
    _follow(model, found)
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers and v.name not in state]
    several = STEPS_KEY in model.metadata_props
    batch = _batch(inputs, found, int(several)) if DATA in axes else {}
    found.update(batch)
    outputs = {v.name: v for v in model.graph.outputs}
    inputs_by_name = {v.name: v for v in model.graph.inputs}
    updates = {outputs[e.output]: inputs_by_name[name] for name, e in state.items() if e.output is not None}
    result = Sharding(axes, {v: s for v, s in found.items() if any(s)}, frozenset(batch), updates, several)
    for value in batch:
        result.check(value, [d if isinstance(d, int) else 0 for d in value.shape or ()])
    return result


def _names(model: ir.Model) -> dict[ir.Value, tuple[str, ...]]:
    """Inputs and constants of the main graph, with the names that a rule may know them by."""
    sources = {entry.name: entry.source for entry in read_manifest(model)}
    values = dict.fromkeys([*model.graph.inputs, *model.graph.initializers.values()])
    return {v: tuple(filter(None, (v.name, sources.get(v.name or "")))) for v in values}


def _apply(
    rule: Rule, names: Mapping[ir.Value, tuple[str, ...]], axes: Mapping[str, int], found: dict[ir.Value, Spec]
) -> None:
    matched = [value for value, known in names.items() if rule.matches(known)]
    if not matched:
        known = [v.name or "" for v in names if _shape(v)]
        near = did_you_mean(rule.pattern, known)
        raise OptionError(
            f"shard {rule.text!r} matches no input, state or weight of the model{near}; it has: {_listed(known)} "
            "(passes rename weights that are constants where they compute with them; freeze=False keeps their names)"
        )
    for value in matched:
        found[value] = checked_spec(rule.spec, _shape(value), axes, repr(value.name), f"shard {rule.text!r}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _shape(value: ir.Value) -> list[int | None]:
    shape = value.shape if value.shape is not None else value.const_value.shape if value.const_value else ()
    return [d if isinstance(d, int) else None for d in shape]


def _auto(model: ir.Model, axes: Mapping[str, int]) -> Iterable[tuple[ir.Value, Spec]]:
    kinds = {entry.name: entry.kind for entry in read_manifest(model)}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point() or kinds.get(value.name or "", "param") != "param":
            continue
        spec = auto_spec(tensor.shape.numpy(), axes)
        if spec:
            yield value, spec


def _follow(model: ir.Model, found: dict[ir.Value, Spec]) -> None:
    """An optimizer's state goes where its parameter goes."""
    values = {v.name or "": v for v in model.graph.inputs}
    kinds = {entry.name: entry.kind for entry in read_manifest(model)}
    for name, kind in kinds.items():
        value = values[name]
        if kind != "optimizer" or value in found:
            continue
        owners = [p for p in kinds if kinds[p] == "param" and name.startswith(f"{p}.")]
        owner = values.get(max(owners, key=len, default=""))
        if owner is not None and owner in found and _shape(owner) == _shape(value):
            found[value] = found[owner]


def _batch(inputs: Sequence[ir.Value], found: Mapping[ir.Value, Spec], axis: int) -> dict[ir.Value, Spec]:
    """The inputs that hold the batch, by no rule. axis: where the batch is."""
    free = [v for v in inputs if v not in found and v.shape is not None and len(v.shape) > axis]
    lead, place = next(
        ((v, dim) for v in inputs for dim, names in enumerate(found.get(v, ())) if DATA in names),
        (free[0] if free else None, axis),
    )
    if lead is None or lead.shape is None:
        return {}
    size = lead.shape[place]
    places = {v: _place(v, size, axis) for v in free}
    return {v: (*((),) * dim, (DATA,)) for v, dim in places.items() if dim is not None}


def _place(value: ir.Value, size: int | ir.SymbolicDim, axis: int) -> int | None:
    dims = list(value.shape or ())
    if isinstance(size, int) or size.value is None:
        return axis if dims[axis] == size else None
    return next((i for i, dim in enumerate(dims) if dim == size), None)
