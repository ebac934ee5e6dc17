"""fuse-optimizer-update: the update of each parameter as one node."""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any, ClassVar

import onnx_ir as ir

from . import fused_function
from .dims import same_dims
from .effects import Effect
from .loops import loop_form, runs_steps
from .rewriter import SEALED_DOMAIN, Rewriter
from .view import constant_tensor

_RULE = "update"
_MANIFEST = "pfvm.state"  # written by the compiler's signature module: which output updates which input
_OPERATORS = """Abs Add Cast Clip Div Exp Log Max Min Mul Neg Pow Reciprocal Sigmoid Sign Sqrt Sub Tanh Where And Equal
Greater GreaterOrEqual Less LessOrEqual Not Or"""
_ELEMENTWISE = frozenset(_OPERATORS.split())
_NAMES = {
    frozenset(): "SGDUpdate",
    frozenset({"momentum"}): "MomentumUpdate",
    frozenset({"exp_avg", "exp_avg_sq"}): "AdamUpdate",
    frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}): "AMSGradUpdate",
    frozenset({"exp_avg", "exp_inf"}): "AdamaxUpdate",
    frozenset({"square_avg"}): "RMSpropUpdate",
    frozenset({"sum"}): "AdagradUpdate",
}


@dataclasses.dataclass(frozen=True)
class FuseOptimizerUpdate:
    """What turns a parameter, its gradient and its optimizer state into their new values becomes one function call.

    before:  g ─ Mul(·, −lr) ─ Add(w, ·) ─ w.new                          (plain SGD; twenty nodes for Adam)
    after:   SGDUpdate(w, g, −lr) ─ w.new       AdamUpdate(w, g, m, v, step, …) ─ w.new, m.new, v.new, step.new

    In a training step, that is a model with a state manifest, or in the loop around several. The function (domain pfvm)
    is called SGDUpdate, MomentumUpdate, AdamUpdate … by the optimizer's state, OptimizerUpdate for other state; another
    form of the same name has a number. It holds the elementwise operators themselves, unchanged, that depend on the
    parameter or on state of its own, and those between its gradient and them; what several parameters share, as −lr, is
    computed once, outside.
    """

    name: ClassVar[str] = "fuse-optimizer-update"

    def run(self, rw: Rewriter) -> None:
        updates = _updates(rw)
        if not updates:
            return
        order = {node: i for i, node in enumerate(updates.graph)}
        forms: dict[Any, ir.Function] = {}
        for parameter, new in updates.params:
            region = _region(parameter, new, updates, order, rw)
            if region is not None:
                _fuse(region, forms, rw)
                rw.matched(_RULE)


@dataclasses.dataclass(frozen=True)
class _Updates:
    """The state manifest by values: parameters with their new values, and each updated state with its name.

    graph: where the step is computed: the model's, or the body of the loop that runs several steps.
    """

    graph: ir.Graph
    params: list[tuple[ir.Value, ir.Value]]
    states: dict[ir.Value, str]
    outputs: frozenset[ir.Value]

    def __bool__(self) -> bool:
        return bool(self.params)


def _updates(rw: Rewriter) -> _Updates:
    graph = rw.model.graph
    manifest = json.loads(rw.model.metadata_props.get(_MANIFEST, "{}"))
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    entries = manifest.get("state", []) if manifest.get("version") == 1 else []
    pairs = [(entry, inputs.get(entry["name"]), outputs.get(entry["output"])) for entry in entries if entry["output"]]
    known = [(entry, old, new) for entry, old, new in pairs if old is not None and new is not None]
    form = next((loop_form(node, rw) for node in graph if runs_steps(node)), None)
    if form is not None:
        graph = form.body
        inner = dict(zip((*form.initial, *form.finals), (*form.formals, *form.following)))
        known = [(e, inner[old], inner[new]) for e, old, new in known if old in inner and new in inner]
    return _Updates(
        graph,
        [(old, new) for entry, old, new in known if entry["kind"] == "param"],
        {old: entry["name"] for entry, old, new in known},
        frozenset(new for _, _, new in known),
    )


@dataclasses.dataclass(frozen=True)
class _Region:
    """Nodes in order, what they read, and which of their results are read outside (the new parameter first)."""

    nodes: list[ir.Node]
    inputs: dict[ir.Value, str]
    outputs: list[ir.Value]
    state_names: frozenset[str]


def _region(
    parameter: ir.Value, new: ir.Value, updates: _Updates, order: dict[ir.Node, int], rw: Rewriter
) -> _Region | None:
    """The nodes to fuse for one parameter; None where the new value is not an elementwise function of the old."""
    root = new.producer()
    if root is None:
        return None
    if not _elementwise(root, parameter, updates, rw):
        if root.domain != SEALED_DOMAIN:
            rw.reject(_RULE, "the new value is not computed elementwise", root)
        return None
    closed = _closed(root, parameter, updates, rw)
    nodes = sorted(closed, key=lambda node: order.get(node, -1))
    own: set[ir.Node] = set()  # nodes that depend on the parameter or on its state
    for node in nodes:
        if any(v is not None and (v in updates.states or v.producer() in own) for v in node.inputs):
            own.add(node)
    gradient, scaling = _gradient(own, closed, parameter, updates, order)
    chosen = [node for node in nodes if node in own or node in scaling]
    if root not in own or len(chosen) < 2:
        rw.reject(_RULE, "the new value depends on the old one in less than two elementwise steps", root)
        return None
    if gradient is None:
        rw.reject(_RULE, "it reads more than one tensor that could be the gradient", root)
        return None
    return _interface(chosen, parameter, new, gradient, updates)


def _elementwise(node: ir.Node, parameter: ir.Value, updates: _Updates, rw: Rewriter) -> bool:
    """Whether the node is elementwise on tensors of the parameter's shape, or on single numbers."""
    if node.op_type not in _ELEMENTWISE or not rw.is_standard(node) or node.graph is not updates.graph:
        return False
    out = node.outputs[0]
    if out.shape is None or not (same_dims(out.shape, parameter.shape) or all(dim == 1 for dim in out.shape)):
        return False
    return rw.effect(node) is Effect.PURE


def _closed(root: ir.Node, parameter: ir.Value, updates: _Updates, rw: Rewriter) -> set[ir.Node]:
    """The root and every elementwise node that only nodes of this set read, new values of state included."""
    closed = {root}
    readers: collections.Counter[ir.Node] = collections.Counter()
    stack = [root]
    while stack:
        for value in stack.pop().inputs:
            node = value.producer() if value is not None else None
            if value is None or node is None or not _elementwise(node, parameter, updates, rw):
                continue
            readers[node] += 1
            if readers[node] == len(value.uses()) and (not value.is_graph_output() or value in updates.outputs):
                closed.add(node)
                stack.append(node)
    return closed


def _gradient(
    own: set[ir.Node], closed: set[ir.Node], parameter: ir.Value, updates: _Updates, order: dict[ir.Node, int]
) -> tuple[ir.Value | None, set[ir.Node]]:
    """The one tensor that everything else is computed from, and the nodes between it and the nodes of the update."""

    def tensors(nodes: list[ir.Node]) -> dict[ir.Value, None]:
        read = (v for node in nodes for v in node.inputs if v is not None and v.producer() not in own)
        return {
            v: None
            for v in read
            if v not in updates.states and constant_tensor(v) is None and same_dims(v.shape, parameter.shape)
        }

    frontier = tensors(sorted(own, key=order.__getitem__))
    between: set[ir.Node] = set()

    def step(value: ir.Value) -> bool:
        node = value.producer()
        if node is None or node not in closed:
            return False
        del frontier[value]
        between.add(node)
        frontier.update(tensors([node]))
        return True

    def place(value: ir.Value) -> int:
        node = value.producer()
        return -1 if node is None else order.get(node, -1)

    if len(frontier) == 1:  # a single scaled gradient, as g · (−lr): one node back
        (value,) = frontier
        node = value.producer()
        if node is not None and node in closed and len(tensors([node])) == 1:
            step(value)
    while len(frontier) > 1 and step(max(frontier, key=place)):
        continue
    return (next(iter(frontier)) if len(frontier) == 1 else None), between


def _interface(
    chosen: list[ir.Node], parameter: ir.Value, new: ir.Value, gradient: ir.Value, updates: _Updates
) -> _Region:
    inside, names = set(chosen), {parameter: "param", gradient: "grad"}
    state_names = set()
    prefix = f"{updates.states[parameter]}."
    for node in chosen:
        for value in node.inputs:
            if value in updates.states and value not in names:
                names[value] = _free(updates.states[value].removeprefix(prefix), names)
                state_names.add(names[value])
    for node in chosen:
        for value in node.inputs:
            if value is not None and value not in names and value.producer() not in inside:
                tensor = constant_tensor(value)
                if tensor is None or tensor.nbytes > 16:
                    names[value] = _formal(value, names)
    outputs = [new]
    outputs += [node.outputs[0] for node in chosen if node.outputs[0].is_graph_output() and node.outputs[0] is not new]
    return _Region(chosen, names, outputs, frozenset(state_names - {"step"}))


def _free(name: str, names: dict[ir.Value, str]) -> str:
    """A left-over gradient is state that is called grad as well: it becomes grad_2."""
    taken = set(names.values())
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)


def _formal(value: ir.Value, names: dict[ir.Value, str]) -> str:
    """`optimizer.betas.0` is called betas_0, a computed number scalar_7."""
    given = (value.name or "").partition(".")[2].replace(".", "_") if value.is_graph_input() else ""
    return given if given and given not in names.values() else f"scalar_{len(names)}"


def _fuse(region: _Region, forms: dict[Any, ir.Function], rw: Rewriter) -> None:
    root = region.outputs[0].producer()
    assert root is not None
    form = _form(region)
    if form not in forms:
        forms[form] = _function(region, rw)
    function = forms[form]
    rw.add_function(function, root)
    call = rw.op(
        function.name,
        *region.inputs,
        at=root,
        domain=SEALED_DOMAIN,
        outputs=len(region.outputs),
        name=f"{next(iter(region.inputs)).name}.update",
    )
    rw.provenance.copied(call, *region.nodes)
    for old, new in zip(region.outputs, call.outputs):
        new.type, new.shape = old.type, old.shape
        rw.replace_value(old, new)
    for node in reversed(region.nodes):
        if node.graph is not None and rw.is_dead(node):
            rw.erase(node)


def _form(region: _Region) -> Any:
    """What makes two updates the same function: operators, attributes, constants, and how they are joined."""
    places: dict[ir.Value, Any] = dict(region.inputs)
    lines = []
    for number, node in enumerate(region.nodes):
        operands = []
        for value in node.inputs:
            tensor = constant_tensor(value) if value not in places else None
            operands.append(
                (str(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes())
                if tensor is not None
                else None
                if value is None
                else places[value]
            )
        attributes = tuple(sorted((name, str(attr.value)) for name, attr in node.attributes.items()))
        lines.append((node.op_type, tuple(operands), attributes))
        places[node.outputs[0]] = number
    types = tuple(str(value.dtype) for value in region.inputs)
    return tuple(region.inputs.values()), tuple(lines), tuple(places[value] for value in region.outputs), types


def _function(region: _Region, rw: Rewriter) -> ir.Function:
    """A function whose body is a copy of the region, constants inside."""
    base = _NAMES.get(region.state_names, "OptimizerUpdate")
    taken = {name for domain, name, _ in rw.model.functions if domain == SEALED_DOMAIN}
    name = next(n for n in (base, *(f"{base}{i}" for i in range(2, len(taken) + 3))) if n not in taken)
    formals = {value: ir.Value(name=formal) for value, formal in region.inputs.items()}
    body, copies = _copy(region, formals)
    opset = rw.opset(region.nodes[-1]) or 0
    doc = "The update of one parameter and of its state by an optimizer."
    results = [copies[value] for value in region.outputs]
    return fused_function.build(name, list(formals.values()), body, [], opset, doc, results)


def _copy(region: _Region, formals: dict[ir.Value, ir.Value]) -> tuple[list[ir.Node], dict[ir.Value, ir.Value]]:
    """The region's nodes over the formal inputs, named by their operators, and what stands for each value."""
    copies, body = dict(formals), []
    counts = collections.Counter(region.inputs.values())

    def add(node: ir.Node, name: str) -> ir.Value:
        counts[name] += 1
        node.name = node.outputs[0].name = name if counts[name] == 1 else f"{name}_{counts[name]}"
        body.append(node)
        return node.outputs[0]

    for node in region.nodes:
        for value in node.inputs:
            tensor = constant_tensor(value)
            if value is not None and value not in copies:
                assert tensor is not None, f"{value.name} is neither an input of the region nor constant"
                content = ir.AttrTensor("value", ir.tensor(tensor.numpy()))
                copies[value] = add(ir.Node("", "Constant", [], [content]), "constant")
        operands = [None if value is None else copies[value] for value in node.inputs]
        inner = ir.Node("", node.op_type, operands, list(node.attributes.values()))
        copies[node.outputs[0]] = add(inner, node.op_type.lower())
    return body, copies
