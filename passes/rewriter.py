"""The one engine that mutates graphs.

Passes and rules never touch containers: they ask the Rewriter to replace, erase, insert and rename. It keeps names
unique, graph outputs and captures by nested bodies correct, provenance metadata alive, shapes of new nodes known, and
tells its listeners which nodes to look at again.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import UnsupportedOpError

from . import schema
from .effects import Effect, bodies, nodes_in, roots
from .journal import Journal
from .provenance import FROM, RULE
from .scopes import SEALED_DOMAIN as SEALED_DOMAIN
from .scopes import Scopes
from .shape_inference import NoShapes, ShapeInference


def inherit(node: ir.Node, source: ir.Node) -> None:
    """Give a node the metadata of another that it lacks; which rule made it of what is each node's own."""
    for key, text in source.metadata_props.items():
        if key not in (RULE, FROM):
            node.metadata_props.setdefault(key, text)


class Rewriter(Scopes, Journal):
    """Owns every mutation of one model. Not thread-safe."""

    def __init__(self, model: ir.Model, shapes: ShapeInference | None = None) -> None:
        Scopes.__init__(self, model)
        Journal.__init__(self)
        self.shapes: ShapeInference = shapes or NoShapes()
        self._listeners: list[Callable[[ir.Node], None]] = []
        self._names: set[str] | None = None
        self._suffixes: collections.Counter[str] = collections.Counter()
        self._positions: dict[ir.Graph, dict[ir.Value, list[int]]] = {}
        self.grown = 0.0  # bytes that folding has added to the model
        self._pooled: dict[tuple[ir.Graph, str, tuple[int, ...], bytes], ir.Value] = {}

    def matched(self, what: str) -> None:
        """Count one applied rewrite under the name `what`, once it is done: new nodes are labelled as made by it."""
        self._scopes = self._by_operator = None
        super().matched(what)

    def start_pass(self, name: str = "") -> None:
        """Before the pass `name`: forget what was counted, and what was known of functions, which may have changed."""
        super().start_pass(name)
        self.trace.started(name, self.model)
        self._function_effects = None

    # ---- listeners

    def listen(self, listener: Callable[[ir.Node], None]) -> Callable[[], None]:
        """Call `listener(node)` for every node whose neighbourhood changed; returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _touch(self, nodes: Iterable[ir.Node | None]) -> None:
        for node in nodes:
            if node is not None and node.graph is not None:
                for listener in self._listeners:
                    listener(node)

    # ---- names and constants

    def unique_name(self, hint: str) -> str:
        """`hint` if no value or node of the model has it, else the first free of hint_1, hint_2 …; then taken."""
        if self._names is None:
            self._names = self._collect_names()
        name = hint
        while name in self._names:
            self._suffixes[hint] += 1
            name = f"{hint}_{self._suffixes[hint]}"
        self._names.add(name)
        return name

    def _collect_names(self) -> set[str]:
        names: set[str] = set()
        for root in roots(self.model):
            for graph in self._register(root, root):
                names.update(v.name for v in [*graph.inputs, *graph.outputs, *graph.initializers.values()] if v.name)
                for node in graph:
                    names.update(out.name for out in node.outputs if out.name)
                    if node.name:
                        names.add(node.name)
        return names

    def constant(self, array: np.ndarray | ir.TensorProtocol, hint: str, at: ir.Node, share: bool = True) -> ir.Value:
        """A constant usable by nodes at `at`: an initializer of the main graph, a Constant node inside a function.

        It has the dtype and the shape of `array`, and is named after `hint`. Equal small constants of one scope are one
        value, unless `share` is False.
        """
        tensor = array if isinstance(array, ir.TensorProtocol) else ir.tensor(array)
        assert at.graph is not None
        root = self.root(at.graph)
        key = None
        if share and tensor.nbytes <= 1024 and tensor.dtype != ir.DataType.STRING and root is self.model.graph:
            key = (root, str(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes())
            pooled = self._pooled.get(key)
            if pooled is not None and pooled.is_initializer():
                return pooled
        name = self.unique_name(hint)
        if root is not self.model.graph:
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=self.unique_name(f"{name}_node"))
            value = node.outputs[0]
            value.name, value.type, value.shape = name, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            at.graph.insert_before(at, node)
            self.provenance.made(node, at)
            return value
        tensor.name = name
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        root.initializers.add(value)
        if key is not None:
            self._pooled[key] = value
        return value

    # ---- building

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        at: ir.Node,
        domain: str = "",
        outputs: int = 1,
        name: str | None = None,
        overload: str = "",
        attributes: Iterable[ir.Attr] = (),
        **params: Any,
    ) -> ir.Node:
        """Insert a new node before `at`, in the form that is valid at the opset of its scope.

        `op_type`, `domain` and `overload` name the operator, `outputs` is how many results it has; None among the
        inputs is one that is left out.
        `params` are given by their name in the operator's schema, be it an attribute or an input at this opset; arrays
        for inputs become constants. None and an attribute's default are left out. `attributes` are taken as they are.
        Metadata is taken from `at`; `matched` labels the node (see provenance).

        Raises UnsupportedOpError when the operator, or one of the parameters, does not exist at that opset.
        """
        assert at.graph is not None
        opset = self.opset(at, domain)
        operands, attributes = list(inputs), list(attributes)
        local = (domain, op_type, overload) in self.model.functions
        if not local and not self._exists(domain, op_type, opset):
            raise UnsupportedOpError(f"{op_type} of domain {domain or 'ai.onnx'!r} does not exist at opset {opset}")
        for key, param in params.items():
            if param is None:
                continue
            index = None if local else schema.input_index(domain, op_type, opset or 0, key)
            if index is not None:
                operands.extend([None] * (index + 1 - len(operands)))
                operands[index] = self.constant(np.asarray(param), f"{at.outputs[0].name}_{key}", at)
            elif local:
                attributes.append(ir.convenience.convert_attribute(key, param))
            elif schema.has_attribute(domain, op_type, opset or 0, key):
                if param != schema.attribute_default(domain, op_type, opset or 0, key):
                    attributes.append(ir.convenience.convert_attribute(key, param))
            else:
                raise UnsupportedOpError(f"{op_type} has no parameter {key!r} at opset {opset}")
        node = ir.Node(
            domain,
            op_type,
            operands,
            attributes,
            overload=overload,
            num_outputs=outputs,
            name=self.unique_name(name or at.name or f"{at.outputs[0].name}_{op_type}"),
            metadata_props=dict(at.metadata_props),
        )
        for i, value in enumerate(node.outputs):
            base = at.outputs[min(i, len(at.outputs) - 1)].name or op_type
            value.name = self.unique_name(base)
        at.graph.insert_before(at, node)
        self.provenance.made(node, at)
        for body in bodies(node):
            self._owner[body] = node
            self._register(body, self.root(at.graph))
        self.shapes.infer_node(node)
        self._touch([node])
        return node

    @staticmethod
    def _exists(domain: str, op_type: str, opset: int | None) -> bool:
        """Operators of other domains are not ours to judge."""
        if domain not in schema.STANDARD_DOMAINS or (domain == "" and op_type in schema.EXTENSIONS):
            return True
        return opset is not None and schema.find(domain, op_type, opset) is not None

    # ---- replacing

    def can_replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether `new` can stand in for `old` without a copy: a graph output stays a value of its own name."""
        if not old.is_graph_output():
            return True
        if new.is_graph_output() or new.is_graph_input() or new.graph is not old.graph:
            return False
        if new.is_initializer():  # a body or a function must compute its outputs; so must files of IR version < 4
            return old.graph is self.model.graph and self.model.ir_version >= 4
        return True

    def replace_value(self, old: ir.Value, new: ir.Value) -> None:
        """Let every reader of `old`, graph outputs and nested bodies included, read `new`. `old` keeps its producer.

        ValueError when `can_replace` is False.
        """
        if not self.can_replace(old, new):
            raise ValueError(f"{old.name!r} is a graph output and {new.name!r} cannot stand in for it")
        readers = [use.node for use in old.uses()]
        if old.is_graph_output():
            assert old.graph is not None
            positions = self._output_positions(old.graph)
            positions[new] = positions.pop(old)
            for i in positions[new]:
                old.graph.outputs[i] = new
            for value in (old, new):
                self.provenance.renamed(value)
            taken = old.name
            old.name = self.unique_name(f"{taken}_replaced")
            new.name = taken
        for use in old.uses():
            use.node.replace_input_with(use.idx, new)
        self._inherit_type(old, new)
        self._touch([*readers, new.producer(), *(self._owner.get(n.graph) for n in readers if n.graph is not None)])

    def _output_positions(self, graph: ir.Graph) -> dict[ir.Value, list[int]]:
        """Where each value stands among a graph's outputs; kept, so that many outputs are replaced in linear time."""
        if graph not in self._positions:
            found: dict[ir.Value, list[int]] = {}
            for i, value in enumerate(graph.outputs):
                found.setdefault(value, []).append(i)
            self._positions[graph] = found
        return self._positions[graph]

    @staticmethod
    def _inherit_type(old: ir.Value, new: ir.Value) -> None:
        if new.type is None:
            new.type = old.type
        if new.shape is None:
            new.shape = old.shape

    def replace(self, node: ir.Node, *new: ir.Value | None) -> None:
        """Replace a node's outputs by `new` (None for an output that nobody reads) and erase the node.

        The new producers take over provenance metadata that they lack.
        """
        for old, value in zip(node.outputs, [*new, *[None] * len(node.outputs)]):
            if value is None:
                continue
            self.trace.replaced(node, value)
            self.replace_value(old, value)
            producer = value.producer()
            if producer is not None:
                inherit(producer, node)
        self.erase(node)

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let input `index` of a node read `value`; of operands that are not there, none is left at the end."""
        before = node.inputs[index]
        node.replace_input_with(index, value)
        while value is None and node.inputs and node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)
        self._touch([node, before.producer() if before is not None else None])

    def erase(self, node: ir.Node) -> None:
        """Erase a node that nobody reads, and every pure node that is dead without it."""
        assert not any(out.uses() or out.is_graph_output() for out in node.outputs), f"{node.name} is read"
        stack = [node]
        while stack:
            dead = stack.pop()
            if dead.graph is None:
                continue
            producers = [value.producer() for value in self._operands(dead)]
            self._detach(dead)
            for producer in producers:
                if producer is not None and producer.graph is not None:
                    if self.is_dead(producer):
                        stack.append(producer)
                    else:
                        self._touch([producer])

    @staticmethod
    def _operands(node: ir.Node) -> list[ir.Value]:
        """What the node reads, captures of its bodies included."""
        found = [value for value in node.inputs if value is not None]
        for body in bodies(node):
            for inner in nodes_in(body):
                found.extend(value for value in inner.inputs if value is not None)
        return found

    def _detach(self, node: ir.Node) -> None:
        self.provenance.erased(node)
        for body in bodies(node):
            for inner in list(nodes_in(body)):
                for i in range(len(inner.inputs)):
                    inner.replace_input_with(i, None)
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        node.graph = None
        graph._nodes.remove(node)  # Graph.remove goes through all outputs of the graph, each time

    def is_dead(self, node: ir.Node) -> bool:
        """Whether nobody reads any output and dropping the node cannot be observed."""
        if any(out.uses() or out.is_graph_output() for out in node.outputs):
            return False
        return self.effect(node) < Effect.OPAQUE

    def drop_initializer(self, value: ir.Value) -> None:
        """Remove an initializer, the value that it is, which nobody reads."""
        assert value.is_initializer() and not value.uses() and not value.is_graph_output()
        assert value.graph is not None and value.name is not None
        del value.graph.initializers[value.name]

    def drop_output(self, graph: ir.Graph, index: int) -> None:
        """Let a body no longer hand out its output number `index`; `graph` is that body."""
        graph.outputs.pop(index)
        self._positions.pop(graph, None)

    def drop_input(self, graph: ir.Graph, index: int) -> None:
        """Let a body no longer take its input number `index`, which nobody reads; `graph` is that body."""
        assert not graph.inputs[index].uses(), f"{graph.inputs[index].name} is read"
        graph.inputs.pop(index)

    def take_body(self, node: ir.Node, name: str) -> ir.Graph:
        """Take the body in the attribute `name` out of a node that is about to be replaced, for the one to come."""
        return node.attributes.pop(name).as_graph()

    def add_function(self, function: ir.Function, at: ir.Node) -> None:
        """Make a model-local function callable at `at`: add it, import its domain, raise the IR version to 8."""
        assert at.graph is not None
        self.model.functions.setdefault(function.identifier(), function)
        self._function_effects = None
        self.root(at.graph).opset_imports.setdefault(function.domain, 1)
        self.model.ir_version = max(self.model.ir_version, 8)
