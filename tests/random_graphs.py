"""Random typed graphs for property tests: every draw is a valid model that ONNX Runtime runs.

Values are float, int64 or bool tensors of rank 0 to 3 over a small set of sizes, one of them symbolic. Operators are
those that passes rewrite, with a bias to no-ops, shared operands, shape arithmetic, constants and graph outputs in the
middle of chains; If, Loop and Scan bodies capture outer values; local functions are called several times; operators of
training run, and so do random ones whose numbers nobody reads.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from random_patterns import PATTERNS

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = (17, 17, 20, 23)
BATCH = 3  # what the symbolic dim is when the model runs


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A value in scope; `shape` is what it is at run time."""

    name: str
    dtype: int
    shape: tuple[int, ...]


class Builder:
    """One graph under construction; bodies are builders that see the values of the enclosing one."""

    def __init__(self, rng: random.Random, outer: Builder | None = None) -> None:
        self.rng = rng
        self.counter = outer.counter if outer else [0]
        self.values: list[Tensor] = list(outer.values) if outer else []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = outer.initializers if outer else []
        self.functions: list[onnx.FunctionProto] = outer.functions if outer else []
        self.depth = outer.depth + 1 if outer else 0
        self.opset = outer.opset if outer else rng.choice(OPSETS)
        self.own: list[Tensor] = []

    def name(self) -> str:
        self.counter[0] += 1
        return f"v{self.counter[0]}"

    def emit(self, op: str, inputs: list[str], dtype: int, size: tuple[int, ...], /, **attributes: object) -> Tensor:
        return self.emit_all(op, inputs, dtype, [size], **attributes)[0]

    def emit_all(
        self, op: str, inputs: list[str], dtype: int, sizes: Sequence[tuple[int, ...]], /, **attributes: object
    ) -> list[Tensor]:
        tensors = [Tensor(self.name(), dtype, tuple(size)) for size in sizes]
        self.nodes.append(helper.make_node(op, inputs, [tensor.name for tensor in tensors], **attributes))
        self.values.extend(tensors)
        self.own.extend(tensors)
        return tensors

    def constant(self, array: np.ndarray) -> str:
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        if self.rng.random() < 0.5:
            self.initializers.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def pick(self, dtype: int | None = None, rank: int | None = None) -> Tensor | None:
        found = [v for v in self.values if dtype in (None, v.dtype) and rank in (None, len(v.shape))]
        return self.rng.choice(found[-6:] if self.rng.random() < 0.7 else found) if found else None

    def step(self) -> None:
        kind = self.rng.choice(_STEPS)
        if isinstance(kind, str):
            getattr(self, kind)()
        else:
            kind(self)

    # ---- one operator each

    def unary(self) -> None:
        x = self.pick(FLOAT)
        if x:
            self.emit(self.rng.choice(["Relu", "Neg", "Abs", "Tanh", "Identity", "Sigmoid"]), [x.name], FLOAT, x.shape)

    def no_op(self) -> None:
        x = self.pick(FLOAT)
        if x is None:
            return
        rank = len(x.shape)
        kind = self.rng.choice(
            ["Cast", "Transpose", "Add", "Mul", "Div", "Sub", "Concat", "Dropout", "Reshape", "Expand"]
        )
        if kind == "Cast":
            self.emit("Cast", [x.name], FLOAT, x.shape, to=FLOAT)
        elif kind == "Transpose" and rank:
            self.emit("Transpose", [x.name], FLOAT, x.shape, perm=list(range(rank)))
        elif kind in ("Add", "Sub", "Mul", "Div"):
            neutral = 0.0 if kind in ("Add", "Sub") else 1.0
            if self.rng.random() < 0.3:
                neutral += 1e-3
            self.emit(
                kind,
                [x.name, self.constant(np.full((1,) * self.rng.randint(0, rank), neutral, np.float32))],
                FLOAT,
                x.shape,
            )
        elif kind == "Concat" and rank:
            self.emit("Concat", [x.name], FLOAT, x.shape, axis=self.rng.randrange(rank))
        elif kind == "Dropout":
            self.emit("Dropout", [x.name], FLOAT, x.shape)
        elif kind == "Reshape" and rank:
            self.emit("Reshape", [x.name, self.shape_of(x)], FLOAT, x.shape)
        elif kind == "Expand" and rank:
            self.emit("Expand", [x.name, self.ints(*[1] * rank)], FLOAT, x.shape)

    def shape_of(self, x: Tensor) -> str:
        return self.emit("Shape", [x.name], INT, (len(x.shape),)).name

    def binary(self) -> None:
        x, y = self.pick(FLOAT), self.pick(FLOAT)
        if x and y:
            try:
                shape = np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                return
            self.emit(self.rng.choice(["Add", "Sub", "Mul", "Max", "Min"]), [x.name, y.name], FLOAT, shape)

    def again(self) -> None:
        """The same node once more."""
        candidates = [n for n in self.nodes if n.op_type in ("Relu", "Add", "Mul", "Shape", "Tanh", "Transpose")]
        if candidates:
            node = self.rng.choice(candidates)
            source = next((v for v in self.values if v.name == node.output[0]), None)
            if source:
                twin = self.emit(node.op_type, list(node.input), source.dtype, source.shape)
                self.nodes[-1].attribute.extend(node.attribute)
                assert twin.shape == source.shape

    def transpose(self) -> None:
        x = self.pick(FLOAT, 2)
        if x:
            self.emit("Transpose", [x.name], FLOAT, x.shape[::-1], perm=[1, 0])

    def matmul(self) -> None:
        x, y = self.pick(FLOAT, 2), self.pick(FLOAT, 2)
        if x and y and x.shape[1] == y.shape[0]:
            if self.rng.random() < 0.5:
                self.emit("MatMul", [x.name, y.name], FLOAT, (x.shape[0], y.shape[1]))
            else:
                self.emit("Gemm", [x.name, y.name], FLOAT, (x.shape[0], y.shape[1]), alpha=0.5)

    def count(self) -> None:
        x = self.pick(FLOAT)
        if x:
            mask = self.emit("Greater", [x.name, self.constant(np.float32(0.1))], BOOL, x.shape)
            wide = self.emit("Cast", [mask.name], INT, x.shape, to=INT)
            self.emit("ReduceSum", [wide.name], INT, (), keepdims=0)

    def shape_arithmetic(self) -> None:
        x = self.pick(FLOAT)
        if x and x.shape:
            shape = self.shape_of(x)
            first = self.emit("Gather", [shape, self.ints(0)], INT, (1,))
            rest = int(np.prod(x.shape[1:], dtype=np.int64))
            target = self.emit(
                "Concat", [first.name, self.ints(self.rng.choice([rest, -1]) if rest else rest)], INT, (2,), axis=0
            )
            self.emit("Reshape", [x.name, target.name], FLOAT, (x.shape[0], rest))

    def squeeze(self) -> None:
        x = self.pick(FLOAT)
        if x and len(x.shape) < 3:
            axis = self.rng.randint(0, len(x.shape))
            wide = self.emit("Unsqueeze", [x.name, self.ints(axis)], FLOAT, (*x.shape[:axis], 1, *x.shape[axis:]))
            if self.rng.random() < 0.5:
                self.emit("Squeeze", [wide.name, self.ints(axis)], FLOAT, x.shape)

    def cut(self) -> None:
        x = self.pick(FLOAT)
        if x and x.shape and x.shape[-1] > 1:
            end = self.rng.choice([x.shape[-1], 2**31 - 1, x.shape[-1] - 1])
            size = min(end, x.shape[-1])
            self.emit("Slice", [x.name, self.ints(0), self.ints(end), self.ints(-1)], FLOAT, (*x.shape[:-1], size))

    def permute(self) -> None:
        """Between two transposes stands what passes may carry them through."""
        x = self.pick(FLOAT, 3)
        if x is None:
            return
        there = self.rng.sample(range(3), 3)
        size = tuple(x.shape[i] for i in there)
        y = self.emit("Transpose", [x.name], FLOAT, size, perm=there)
        kind = self.rng.choice(["Relu", "ReduceMean", "Concat", "Softmax", "Pad"])
        if kind == "ReduceMean":
            axis = self.rng.randrange(3)
            size = (*size[:axis], 1, *size[axis + 1 :])
            axes = [self.ints(axis)] if self.opset >= 18 else []
            given = {} if axes else {"axes": [axis]}
            y = self.emit(kind, [y.name, *axes], FLOAT, size, keepdims=1, **given)
        elif kind == "Concat":
            axis = self.rng.randrange(3)
            size = (*size[:axis], 2 * size[axis], *size[axis + 1 :])
            y = self.emit(kind, [y.name, y.name], FLOAT, size, axis=axis)
        elif kind == "Pad":
            size = (size[0], size[1] + 1, size[2])
            y = self.emit(kind, [y.name, self.ints(0, 1, 0, 0, 0, 0)], FLOAT, size)
        else:
            y = self.emit(kind, [y.name], FLOAT, size)
        back = [there.index(i) for i in range(3)] if self.rng.random() < 0.7 else self.rng.sample(range(3), 3)
        self.emit("Transpose", [y.name], FLOAT, tuple(size[i] for i in back), perm=back)

    def select(self) -> None:
        x, y = self.pick(FLOAT), self.pick(FLOAT)
        if x and y and x.shape == y.shape:
            known = self.constant(np.array(self.rng.random() < 0.5))
            computed = self.emit("Greater", [x.name, self.constant(np.float32(0.37))], BOOL, x.shape).name
            self.emit("Where", [self.rng.choice([known, computed]), x.name, y.name], FLOAT, x.shape)

    def split(self) -> None:
        x = self.pick(FLOAT)
        if x and x.shape and x.shape[-1] == 2:
            parts = {"num_outputs": 2} if self.opset >= 18 else {}
            halves = self.emit_all("Split", [x.name], FLOAT, [(*x.shape[:-1], 1)] * 2, axis=-1, **parts)
            if self.rng.random() < 0.5:
                self.emit("Concat", [half.name for half in halves], FLOAT, x.shape, axis=-1)

    def batch_norm(self) -> None:
        """As in training: the running statistics are results too, some of them unread."""
        x = self.pick(FLOAT, 2)
        if x and x.shape[1]:
            scale = [self.constant(np.full(x.shape[1], 1.0 + i, np.float32)) for i in range(4)]
            sizes = [x.shape, (x.shape[1],), (x.shape[1],)]
            self.emit_all("BatchNormalization", [x.name, *scale], FLOAT, sizes, training_mode=1)

    def training_dropout(self) -> None:
        x = self.pick(FLOAT)
        if x:
            inputs = [x.name, self.constant(np.float32(0.5)), self.constant(np.array(True))]
            self.emit("Dropout", inputs, FLOAT, x.shape)
            dropped = self.values.pop()
            self.own.pop()
            self.shape_of(dropped)

    def call(self) -> None:
        x = self.pick(FLOAT)
        if x is None:
            return
        if not self.functions or self.rng.random() < 0.5:
            ops = [self.rng.choice(["Relu", "Tanh", "Neg", "Identity"]) for _ in range(self.rng.randint(1, 3))]
            inner = [helper.make_node(op, [f"t{i}"], [f"t{i + 1}"]) for i, op in enumerate(ops)]
            inner.append(helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float32(1))))
            inner.append(helper.make_node("Add", [f"t{len(ops)}", "one"], ["out"]))
            opsets = [helper.make_opsetid("", self.opset)]
            name = f"Local{len(self.functions)}"
            self.functions.append(helper.make_function("local", name, ["t0"], ["out"], inner, opsets))
        self.emit(self.rng.choice(self.functions).name, [x.name], FLOAT, x.shape, domain="local")

    def scan(self) -> None:
        """A running sum of what the body makes of each row and of outer values."""
        x, start = self.pick(FLOAT, 2), self.pick(FLOAT, 1)
        if x is None or start is None or self.depth > 1 or x.shape[1] != start.shape[0]:
            return
        inner = Builder(self.rng, self)
        carried, row = (Tensor(self.name(), FLOAT, start.shape) for _ in range(2))
        inner.values += [carried, row]
        for _ in range(self.rng.randint(1, 3)):
            inner.step()
        last = next((v for v in reversed(inner.own) if v.dtype == FLOAT and v.shape == start.shape), row)
        total = inner.emit(
            "Tanh", [inner.emit("Add", [carried.name, last.name], FLOAT, start.shape).name], FLOAT, start.shape
        )
        kept = inner.emit("Identity", [total.name], FLOAT, start.shape)
        body = helper.make_graph(inner.nodes, self.name(), [_info(carried), _info(row)], [_info(total), _info(kept)])
        self.emit_all("Scan", [start.name, x.name], FLOAT, [start.shape, x.shape], body=body, num_scan_inputs=1)

    def constant_chain(self) -> None:
        a = self.constant(np.array(self.rng.sample(range(8), 2), np.float32))
        b = self.emit(self.rng.choice(["Exp", "Neg", "Relu"]), [a], FLOAT, (2,))
        self.emit("Mul", [b.name, a], FLOAT, (2,))

    def noise(self) -> None:
        if self.opset >= 22:  # ONNX Runtime draws in older forms only
            return
        self.emit("RandomNormal", [], FLOAT, (2,), shape=[2], seed=1.0)
        drawn = self.values.pop()  # it must not reach an output, where it would be compared
        self.own.pop()
        self.emit("Shape", [drawn.name], INT, (1,))

    def branch(self) -> None:
        x = self.pick(FLOAT)
        if x is None or self.depth > 1:
            return
        condition = self.emit("Greater", [self.scalar(), self.constant(np.float32(0.37))], BOOL, ())
        bodies = [self._body(x) for _ in range(2)]
        self.emit("If", [condition.name], FLOAT, x.shape, then_branch=bodies[0], else_branch=bodies[1])

    def scalar(self) -> str:
        x = self.pick(FLOAT)
        assert x is not None
        return self.emit("ReduceSum", [x.name], FLOAT, (), keepdims=0).name

    def _body(self, like: Tensor) -> onnx.GraphProto:
        inner = Builder(self.rng, self)
        for _ in range(self.rng.randint(1, 4)):
            inner.step()
        last = next((v for v in reversed(inner.own) if v.dtype == FLOAT and v.shape == like.shape), None)
        result = inner.emit("Tanh", [last.name if last else like.name], FLOAT, like.shape)
        return helper.make_graph(inner.nodes, self.name(), [], [_info(result)])

    def loop(self) -> None:
        x = self.pick(FLOAT)
        if x is None or self.depth > 1:
            return
        inner = Builder(self.rng, self)
        step, go, carried = self.name(), self.name(), Tensor(self.name(), FLOAT, x.shape)
        inner.values.append(carried)
        for _ in range(self.rng.randint(1, 4)):
            inner.step()
        last = next((v for v in reversed(inner.own) if v.dtype == FLOAT and v.shape == x.shape), carried)
        again = inner.emit("Identity", [go], BOOL, ())
        result = inner.emit("Tanh", [last.name], FLOAT, x.shape)
        body = helper.make_graph(
            inner.nodes,
            self.name(),
            [helper.make_tensor_value_info(step, INT, []), helper.make_tensor_value_info(go, BOOL, []), _info(carried)],
            [_info(again), _info(result)],
        )
        trips = self.constant(np.array(self.rng.randint(0, 3), np.int64))
        self.emit("Loop", [trips, self.constant(np.array(True)), x.name], FLOAT, x.shape, body=body)


_STEPS = [
    *("unary", "no_op", "no_op", "binary", "again", "transpose", "matmul", "count", "shape_arithmetic"),
    *("squeeze", "cut", "constant_chain", "noise", "branch", "loop"),
    *("permute", "select", "split", "batch_norm", "training_dropout", "call", "scan"),
    *PATTERNS,
]


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    """Type without sizes: what a pass infers must not come from a declaration."""
    return helper.make_tensor_value_info(tensor.name, tensor.dtype, [None] * len(tensor.shape))


def random_model(seed: int, steps: int = 12) -> onnx.ModelProto:
    """A random model of inputs x[batch,2], w[2,3], c[2], i[batch,2,4]; a few values anywhere are graph outputs."""
    rng = random.Random(seed)
    builder = Builder(rng)
    inputs = {"x": ("batch", 2), "w": (2, 3), "c": (2,), "i": ("batch", 2, 4)}
    for name, shape in inputs.items():
        builder.values.append(Tensor(name, FLOAT, tuple(BATCH if d == "batch" else d for d in shape)))
    for _ in range(rng.randint(3, steps)):
        builder.step()
    if not builder.own:
        builder.emit("Relu", ["x"], FLOAT, (BATCH, 2))
    outputs = {builder.own[-1].name: builder.own[-1]}
    outputs.update({v.name: v for v in rng.sample(builder.own, min(2, len(builder.own)))})
    graph = helper.make_graph(
        builder.nodes,
        "random",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [_info(v) for v in outputs.values()],
        builder.initializers,
    )
    opsets = [helper.make_opsetid("", builder.opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=builder.functions, ir_version=10)
