"""A training step → at most K steps in one call, until its loss is low enough: the step becomes the body of a Loop.

    x[b,3] ─┐                              x[K,b,3] ─┐
    w ──────┼─→ step ─→ loss[], new_w   ⇒  w ────────┼─→ Loop(step, while not loss < 0.1) ─→ loss[K], new_w, steps
    lr ─────┘                              lr ───────┘

The loop ends behind the step whose result meets the condition; `steps` says how many ran. Results have K rows all the
same, so that their shape is known before: those of steps that did not run are NaN, or 0 where the type has none.
"""

from __future__ import annotations

import dataclasses
import math
import re

import ml_dtypes
import numpy as np
import onnx_ir as ir
from pfvm.errors import OptionError, UnsupportedOpError, did_you_mean, flag
from pfvm.passes.loops import AROUND
from pfvm.passes.loops import STEPS as LOOP_OF_STEPS

from .importer import DECLARED_SHAPE
from .loop_builder import Roles, StepBuilder
from .signature import Interface

STEPS = "steps"
"""The output that says how many steps ran; `steps_1` where the step has an output of this name."""

_FORM = re.compile(r"\s*(?P<output>\S.*?)\s*(?P<op><=|>=|<|>)\s*(?P<number>[-+.\w]+)\s*")
_OPERATORS = {"<": "Less", ">": "Greater", "<=": "LessOrEqual", ">=": "GreaterOrEqual"}
_OPSET = 16  # the first in which the comparisons know every float


@dataclasses.dataclass(frozen=True)
class Until:
    """The condition on which a loop ends: `output` compared with `number`."""

    output: str
    op: str
    number: float

    def __str__(self) -> str:
        return f"{self.output} {self.op} {self.number:g}"


def parse_until(text: str | Until) -> Until:
    """ "loss < 0.1" → Until. Raises OptionError."""
    if isinstance(text, Until):
        return text
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    try:
        number = float(found["number"]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise OptionError(f"until: expected OUTPUT < NUMBER (or <=, >, >=), as in 'loss < 0.1', not {text!r}")
    return Until(found["output"], found["op"], number)


class UntilBuilder(StepBuilder):
    """Moves the nodes of a graph into the body of a Loop."""

    def __init__(self, model: ir.Model, roles: Roles, steps: int, until: Until) -> None:
        super().__init__(model, roles, steps)
        self._until = until
        self._outputs = list(model.graph.outputs)
        declared = Interface.of(model).declared()
        for value in self._outputs:
            if value.shape is None and value.name in declared:
                value.shape = declared[value.name].shape
        if model.graph.opset_imports.get("", 0) < _OPSET:
            raise UnsupportedOpError(
                f"until needs opset {_OPSET}, and the model has {model.graph.opset_imports.get('')}; convert it first: "
                f"pfvm compile {flag('opset', _OPSET + 1, f'pfvm.optimize(model, opset={_OPSET + 1})')}"
            )
        self._loss = self._compared()
        for index in roles.results:
            self._check_result(self._outputs[index])

    def build(self) -> None:
        graph, roles, outputs = self._graph, self._roles, self._outputs
        nodes = list(graph)
        number = self._scalar("step_number", ir.DataType.INT64)
        going = self._scalar("going", ir.DataType.BOOL)
        carried = {value: self._inner(value) for value, _ in roles.carried}
        taken = [self._taken(value, number) for value in roles.batches]
        seeding = [node for value in roles.seeds for node in self._advance(value, number)]
        graph.remove(nodes)
        graph.outputs.clear()
        self._more: list[ir.Node] = []
        names = [value.name for value in outputs]
        for i in roles.results:
            if outputs[i].producer() is not None:  # the Loop's output has the name
                outputs[i].name = self._unique(f"{names[i]}_step")
        again = self._condition(carried.get(self._loss, self._loss))
        rows = [self._row(carried.get(outputs[i], outputs[i]), number) for i in roles.results]
        done_before = self._scalar("steps_before", ir.DataType.INT64)
        done = self._op("Add", number, self._constant(np.array(1, np.int64), "one"))
        done.shape, done.type = ir.Shape([]), done_before.type
        for node in (*taken, *self._more):
            node.metadata_props[LOOP_OF_STEPS] = AROUND
        results, copies = self._results([outputs[i] for _, i in roles.carried], carried)
        body = ir.Graph(
            [number, going, *carried.values(), *(old for old, _ in rows), done_before],
            [again, *results, *(new for _, new in rows), done],
            nodes=[*taken, *seeding, *nodes, *self._more, *copies],
            name="step",
            opset_imports=graph.opset_imports,
        )
        order = [*(i for _, i in roles.carried), *roles.results]
        outer = {i: ir.Value(name=names[i], type=outputs[i].type) for i in order}
        steps = self._scalar(STEPS, ir.DataType.INT64)
        loop = ir.Node(
            "",
            "Loop",
            [
                self._constant(np.array(self._steps, np.int64), "most_steps"),
                self._constant(np.array(True), "start"),
                *carried,
                *(self._empty(outputs[i]) for i in roles.results),
                self._constant(np.array(0, np.int64), "none"),
            ],
            [ir.AttrGraph("body", body)],
            outputs=[*outer.values(), steps],
            name=self._unique("steps_until"),
            metadata_props={LOOP_OF_STEPS: str(self._steps)},
        )
        graph.append(loop)
        graph.outputs.extend([*(outer[i] for i in range(len(outputs))), steps])

    def _compared(self) -> ir.Value:
        names = {v.name or "": v for v in self._outputs}
        value = names.get(self._until.output)
        if value is None:
            near = did_you_mean(self._until.output, names)
            raise OptionError(
                f"until {str(self._until)!r}: the step has no output {self._until.output!r}{near}; it has "
                f"{', '.join(repr(self._outputs[i].name) for i in self._roles.results)} besides its state"
            )
        size = math.prod(value.shape) if value.shape is not None and value.shape.is_static() else 0
        if size != 1 or value.dtype is None or not value.dtype.is_floating_point():
            raise OptionError(
                f"until {str(self._until)!r}: {self._until.output!r} is {value.dtype}{value.shape}, expected one float"
            )
        return value

    def _check_result(self, value: ir.Value) -> None:
        if value.shape is None or not value.shape.is_static():
            raise UnsupportedOpError(
                f"until: the output {value.name!r} has the open shape {value.shape}, and room for its {self._steps} "
                "rows is made before the first step: fix the shape, or drop the output"
            )

    def _scalar(self, name: str, dtype: ir.DataType) -> ir.Value:
        value = ir.Value(name=self._unique(name), type=ir.TensorType(dtype), shape=ir.Shape([]))
        value.meta[DECLARED_SHAPE] = value.shape  # ONNX Runtime's Loop asks for it
        return value

    def _taken(self, batch: ir.Value, number: ir.Value) -> ir.Node:
        """This step's batch of all of them."""
        users = list(batch.uses())
        node = ir.node("Gather", [batch, number], {"axis": 0}, name=self._unique(f"{batch.name}_taken"))
        taken = node.outputs[0]
        taken.name, taken.type, taken.shape = self._unique(f"{batch.name}_step"), batch.type, batch.shape
        for use in users:
            use.node.replace_input_with(use.idx, taken)
        return node

    def _condition(self, loss: ir.Value) -> ir.Value:
        """Whether there is another step."""
        if loss.shape is not None and len(loss.shape):
            loss = self._op("Reshape", loss, self._constant(np.zeros(0, np.int64), "scalar"))
        assert self._loss.dtype is not None
        bound = np.array(self._until.number).astype(self._loss.dtype.numpy())
        met = self._op(_OPERATORS[self._until.op], loss, self._constant(bound, "bound"))
        again = self._op("Not", met)
        again.type, again.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        return again

    def _row(self, result: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The rows of the steps before, and those with this step's."""
        assert result.shape is not None
        shape = ir.Shape([self._steps, *result.shape])
        before = ir.Value(name=self._unique(f"{result.name}_rows"), type=result.type, shape=shape)
        before.meta[DECLARED_SHAPE] = shape
        index = self._op("Reshape", number, self._constant(np.array([1, 1], np.int64), "one_index"))
        row = self._op("Unsqueeze", result, self._constant(np.array([0], np.int64), "first"))
        after = self._op("ScatterND", before, index, row)
        after.type, after.shape = result.type, shape
        return before, after

    def _empty(self, result: ir.Value) -> ir.Value:
        assert result.shape is not None and result.dtype is not None
        dtype = result.dtype.numpy()
        is_float = np.issubdtype(dtype, np.inexact) or dtype == ml_dtypes.bfloat16
        rows = np.full((self._steps, *result.shape.numpy()), np.nan if is_float else 0).astype(dtype)
        return self._constant(rows, f"{result.name}_not_run")

    def _op(self, kind: str, *operands: ir.Value) -> ir.Value:
        node = ir.node(kind, list(operands), name=self._unique(f"until_{kind}"))
        node.outputs[0].name = self._unique(f"until_{kind.lower()}")
        self._more.append(node)
        return node.outputs[0]
