"""A compiler from nothing, in nine chapters. Read it from top to bottom; every chapter builds something that works.

python examples/tour.py

It is a small model of pfvm. There is a graph and a text for it, shapes with open dimensions, an interpreter that says
what a graph means, rules that rewrite it, passes that are checked, a training step that is a graph again, a plan for
a machine with too little memory, and a compiler of a device. Each chapter asserts what it promises, and the last one
does all of it once more with pfvm itself. Nothing is needed but numpy until chapter 8, which uses JAX if it is there.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import pathlib
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

# ======================================================================================================================
# 1. A graph
#
# A tensor program is a graph: nodes compute, values flow. Two classes say it all, if each value knows who makes it and
# who reads it; then everything later, from dead code to memory plans, is a walk along these two links.


@dataclass(eq=False)
class Value:
    """An array that flows through a graph. `node` makes it, nobody does where it is an input; `users` read it."""

    name: str
    node: Node | None = None
    shape: Shape = ()
    users: dict[Node, None] = field(default_factory=dict)  # a dict keeps an order, a set would not


@dataclass(eq=False)
class Node:
    """One operator at work. It makes one value: several would change nothing here but the length."""

    op: str
    inputs: list[Value]
    attributes: dict[str, Any]
    output: Value


Shape = tuple[int | str, ...]  # a dimension is a number, or a name where it is open: ("n", 4)


@dataclass
class Graph:
    """Inputs, and outputs by name. The nodes are those that the outputs need: code that is dead is simply not there."""

    name: str
    inputs: list[Value]
    outputs: dict[str, Value]

    def nodes(self) -> list[Node]:
        """Every node once, after those that it reads from: an order in which they can run."""
        done: dict[Node, None] = {}
        stack = [(value.node, False) for value in reversed(self.outputs.values())]
        while stack:  # a deep graph would overflow Python's own stack, so this one is ours
            node, is_ready = stack.pop()
            if node is None or node in done:
                continue
            if is_ready:
                done[node] = None
            else:
                stack += [(node, True), *((value.node, False) for value in reversed(node.inputs))]
        return list(done)


# A graph that cannot be read cannot be debugged. As text it is a Python function, and so Python's own parser reads it;
# who brings a graph as text can write a test in three lines. Printing and reading are inverse, which is asserted below.


def parse(text: str) -> Graph:
    """The graph of a function whose every line calls one operator."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    known = {a.arg: Value(a.arg, shape=_shape(a.annotation)) for a in function.args.args}
    inputs = list(known.values())
    for line in function.body[:-1]:
        match line:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(op), arguments, keywords)):
                attributes = {each.arg or "": ast.literal_eval(each.value) for each in keywords}
                known[name] = make(op, *(known[ast.unparse(each)] for each in arguments), name=name, **attributes)
    match function.body[-1]:
        case ast.Return(ast.Dict(keys, values)):
            outputs = {ast.literal_eval(k): known[ast.unparse(v)] for k, v in zip(keys, values) if k is not None}
    return Graph(function.name, inputs, outputs)


def _shape(annotation: ast.expr | None) -> Shape:
    return tuple(d.id if isinstance(d, ast.Name) else ast.literal_eval(d) for d in getattr(annotation, "elts", ()))


def show(graph: Graph) -> str:
    """The text of a graph."""
    arguments = ", ".join(f"{value.name}: ({_dims(value.shape)})" for value in graph.inputs)
    lines = [f"def {graph.name}({arguments}):"]
    for node in graph.nodes():
        given = [v.name for v in node.inputs] + [f"{k}={v!r}" for k, v in node.attributes.items()]
        lines.append(f"    {node.output.name} = {node.op}({', '.join(given)})")
    outputs = ", ".join(f"{name!r}: {value.name}" for name, value in graph.outputs.items())
    return "\n".join([*lines, f"    return {{{outputs}}}"])


def _dims(shape: Shape) -> str:
    return ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")


# ======================================================================================================================
# 2. Operators and shapes
#
# All that the compiler knows of an operator is one row of a table: how its shape follows from those of its inputs, and
# how to compute it. `xp` is numpy, or anything that looks like numpy; chapter 8 comes back to that. An operator is
# impure when two calls with equal inputs may differ. Forgetting this is how a compiler makes all dropout masks equal.


class Operator(NamedTuple):
    """shape(*shapes, **attributes) and run(xp, *arrays, **attributes)."""

    shape: Callable[..., Shape]
    run: Callable[..., Any]
    is_pure: bool = True


class ShapeError(ValueError):
    """Shapes that do not fit, or cannot be shown to."""


def error_of(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """What a call fails with: where a mistake must be found, its message is asserted."""
    try:
        return f"no error, but {call(*given, **named)}"
    except Exception as error:
        return str(error)


def broadcast(a: Shape, b: Shape) -> Shape:
    """numpy's rule, for open dimensions too: `n` fits `n` and 1. Whether n and m are equal nobody knows: an error."""
    rank = max(len(a), len(b))
    dims: list[int | str] = []
    for left, right in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b):
        if left != right and 1 not in (left, right):
            raise ShapeError(f"{left} and {right} cannot be shown to be equal")
        dims.append(right if left == 1 else left)
    return tuple(dims)


def product(a: Shape, b: Shape) -> Shape:
    """Of two matrices."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise ShapeError(f"no product of matrices ({_dims(a)}) and ({_dims(b)})")
    return a[0], b[1]


OPERATORS = {
    "Const": Operator(lambda value: np.shape(value), lambda xp, value: xp.asarray(value, "float64")),
    "Identity": Operator(lambda a: a, lambda xp, a: a),
    "Transpose": Operator(lambda a: (a[1], a[0]), lambda xp, a: a.T),
    "MatMul": Operator(product, lambda xp, a, b: a @ b),
    "Add": Operator(broadcast, lambda xp, a, b: a + b),
    "Sub": Operator(broadcast, lambda xp, a, b: a - b),
    "Mul": Operator(broadcast, lambda xp, a, b: a * b),
    "Relu": Operator(lambda a: a, lambda xp, a: xp.maximum(a, 0.0)),
    "Positive": Operator(lambda a: a, lambda xp, a: xp.where(a > 0, 1.0, 0.0)),
    "Sum": Operator(  # over one axis, which stays as 1
        lambda a, axis: tuple(1 if i == axis else dim for i, dim in enumerate(a)),
        lambda xp, a, axis: a.sum(axis=axis, keepdims=True),
    ),
    "Noise": Operator(lambda a: a, lambda xp, a: a + xp.random.normal(size=a.shape), is_pure=False),
}

_numbers = iter(range(10**9))


def make(op: str, *inputs: Value, name: str = "", **attributes: Any) -> Value:
    """A new node, linked to what it reads. Its shape is inferred here, so that no node is ever without one."""
    value = Value(name or f"{op.lower()}_{next(_numbers)}")
    value.node = Node(op, list(inputs), attributes, value)
    try:
        value.shape = OPERATORS[op].shape(*(each.shape for each in inputs), **attributes)
    except ShapeError as error:  # an error that does not name its place is half an error
        raise ShapeError(f"{op} → {value.name}: {error}") from None
    for each in inputs:
        each.users[value.node] = None
    return value


NET = """
def net(x: (n, 4), t: (n, 2), w: (4, 3), v: (3, 2)):
    same = Identity(x)
    turned = Transpose(w)
    back = Transpose(turned)
    half = Const(value=[[0.5]])
    two = Const(value=[[2.0]])
    one = Mul(half, two)
    scaled = Mul(back, one)
    product = MatMul(same, scaled)
    hidden = Relu(product)
    again = Relu(product)
    both = Add(hidden, again)
    y = MatMul(both, v)
    return {'y': y}
""".strip()

net = parse(NET)
assert show(net) == NET, "reading and printing are inverse"
assert net.outputs["y"].shape == ("n", 2), "the batch stays open, whatever is done with it"
bad = "def bad(a: (n, 4), b: (m, 4)):\n    c = Add(a, b)\n    return {'c': c}"
assert error_of(parse, bad) == "Add → c: n and m cannot be shown to be equal"

print(f"1, 2  a graph of {len(net.nodes())} nodes, read from a text; y has the shape ({_dims(net.outputs['y'].shape)})")

# ======================================================================================================================
# 3. What a graph means
#
# Before anything is made fast there must be no doubt about what is right. These lines are the oracle: slow, obvious,
# and what every later chapter is compared with. (pfvm's is ONNX Runtime with its optimizations switched off.)


def evaluate(graph: Graph, feeds: dict[str, Any], xp: Any = np) -> dict[str, Any]:
    """Output name → array."""
    known: dict[Value, Any] = {value: feeds[value.name] for value in graph.inputs}
    for node in graph.nodes():
        operands = [known[value] for value in node.inputs]
        known[node.output] = OPERATORS[node.op].run(xp, *operands, **node.attributes)
    return {name: known[value] for name, value in graph.outputs.items()}


def some_feeds(graph: Graph, batch: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers for the inputs, with `batch` in the place of every open dimension."""
    draw = np.random.default_rng(seed)
    return {v.name: draw.normal(size=[batch if isinstance(d, str) else d for d in v.shape]) for v in graph.inputs}


def agree(a: Graph, b: Graph, seed: int = 0) -> bool:
    """Do two graphs with the same interface compute the same, up to rounding?"""
    feeds = some_feeds(a, seed=seed)
    left, right = evaluate(a, feeds), evaluate(b, feeds)
    return left.keys() == right.keys() and all(np.allclose(left[name], right[name]) for name in left)


x = some_feeds(net)
assert np.allclose(evaluate(net, x)["y"], 2 * np.maximum(x["x"] @ x["w"], 0) @ x["v"])
print("3     and it means 2 · relu(x·w) · v")

# ======================================================================================================================
# 4. Rules, and the engine that applies them
#
# A rule looks at one node and says what could stand in its place, or nothing. It changes nothing itself: one engine
# owns every change, and so the links between values are right always and everywhere. The engine keeps a worklist. A
# change puts only its neighbours back on the list, and that is the whole difference between a compiler whose time grows
# with the graph and one that walks over all of it again after each rewrite.

Rule = Callable[[Node], Value | None]


class Rewriter:
    """Owns a graph while it is rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.alive = set(graph.nodes())
        self.matches: Counter[str] = Counter()
        self.visits = 0

    def apply(self, rules: dict[str, list[Rule]]) -> None:
        """Applies rules, keyed by operator ("" for any), until none has anything to say."""
        work = deque(self.graph.nodes())
        while work:
            node = work.popleft()
            self.visits += 1
            for each in (*rules.get(node.op, ()), *rules.get("", ())) if node in self.alive else ():
                if (found := each(node)) is not None:
                    assert found.shape == node.output.shape, f"{each.__name__} changes a shape"  # its first promise
                    self.matches[each.__name__] += 1
                    work.extend(self._replace(node.output, found))
                    break

    def _replace(self, old: Value, new: Value) -> list[Node]:
        """Whoever reads `old` reads `new`. Returns the nodes for which this may have made a rule possible."""
        touched = list(old.users)
        for node in touched:
            node.inputs = [new if value is old else value for value in node.inputs]
            new.users[node] = None
        old.users.clear()
        for name, value in self.graph.outputs.items():  # the name of an output is the user's: it stays
            if value is old:
                self.graph.outputs[name] = new
        made = [new.node]
        while made:  # by the rule
            if (one := made.pop()) is not None and one not in self.alive:
                self.alive.add(one)
                touched.append(one)
                made += [value.node for value in one.inputs]
        unread = [old]
        while unread:  # a node that nobody reads any more goes, and those that only it had read go with it
            value = unread.pop()
            if value.node in self.alive and not value.users and value not in self.graph.outputs.values():
                self.alive.remove(value.node)
                for each in dict.fromkeys(value.node.inputs):
                    del each.users[value.node]
                    unread.append(each)
        return touched


def constant(value: Value) -> np.ndarray | None:
    """What a value holds in every run, where that is known. An input never is: it may differ in the next call."""
    if value.node is None or value.node.op != "Const":
        return None
    return np.asarray(value.node.attributes["value"], "float64")


def drop_identity(node: Node) -> Value | None:
    """Identity(a) → a"""
    return node.inputs[0]


def turn_twice(node: Node) -> Value | None:
    """Transpose(Transpose(a)) → a"""
    inner = node.inputs[0].node
    return inner.inputs[0] if inner is not None and inner.op == "Transpose" else None


def times_one(node: Node) -> Value | None:
    """Mul(a, 1) → a, if the 1 does not broadcast a to a larger shape."""
    for a, b in (node.inputs, node.inputs[::-1]):
        number = constant(b)
        if number is not None and np.all(number == 1.0) and a.shape == node.output.shape:
            return a
    return None


def fold(node: Node) -> Value | None:
    """A pure operator of constants → what it computes. Rolling the dice once for all time is no optimization."""
    operands = [constant(value) for value in node.inputs]
    if not operands or not OPERATORS[node.op].is_pure or any(each is None for each in operands):
        return None
    return make("Const", value=OPERATORS[node.op].run(np, *operands, **node.attributes).tolist())


RULES: dict[str, list[Rule]] = {"Identity": [drop_identity], "Transpose": [turn_twice], "Mul": [times_one], "": [fold]}

small = parse(NET)
rewriter = Rewriter(small)
rewriter.apply(RULES)
assert [node.op for node in small.nodes()] == ["MatMul", "Relu", "Relu", "Add", "MatMul"]
assert rewriter.matches == {"drop_identity": 1, "turn_twice": 1, "fold": 1, "times_one": 1}
assert agree(net, small)


def visits(blocks: int) -> int:
    """How often the engine looks at a node, in a chain of Identity → Transpose → Transpose → Relu blocks."""
    value = start = Value("x", shape=("n", 4))
    for _ in range(blocks):
        for op in ("Identity", "Transpose", "Transpose", "Relu"):
            value = make(op, value, name=op)
    chain = Rewriter(Graph("chain", [start], {"y": value}))
    chain.apply(RULES)
    assert len(chain.graph.nodes()) == blocks
    return chain.visits


assert visits(4000) <= 4.1 * visits(1000), "four times the graph, four times the work"
print(f"4     rules leave {len(small.nodes())} nodes; 4,000 blocks are {visits(4000):,} looks at a node")

# ======================================================================================================================
# 5. Passes, and a pipeline that does not trust them
#
# What needs to see the graph as a whole is a pass. Passes run in rounds until a round finds nothing, since one makes
# room for another. After each, the pipeline counts what is left and, if asked, compares numbers with the original; when
# they differ it is known which pass lied. Of all tools for writing a compiler this one pays back soonest.


def simplify(rw: Rewriter) -> None:
    """The rules of chapter 4."""
    rw.apply(RULES)


def share(rw: Rewriter) -> None:
    """Two pure nodes that compute the same from the same become one."""
    seen: dict[Any, Value] = {}

    def same(node: Node) -> Value | None:
        if not OPERATORS[node.op].is_pure:
            return None
        key = node.op, tuple(map(id, node.inputs)), repr(node.attributes)
        first = seen.setdefault(key, node.output)
        return None if first is node.output or first.node is None else first

    rw.apply({"": [same]})


Pass = Callable[[Rewriter], None]


def optimize(graph: Graph, passes: Sequence[Pass] = (simplify, share), verify: bool = False) -> list[tuple[str, int]]:
    """Rewrites a graph in place; returns what was found, by pass and rule, in order.

    Raises AssertionError, which names the pass, when `verify` finds another result.
    """
    original = parse(show(graph)) if verify else None
    found: list[tuple[str, int]] = []
    while True:
        before = len(found)
        for each in passes:
            rw = Rewriter(graph)
            each(rw)
            found += [(f"{each.__name__}: {name}", count) for name, count in rw.matches.items()]
            assert original is None or agree(original, graph), f"{each.__name__} changes what is computed"
        if len(found) == before:
            return found


best = parse(NET)
for name, count in optimize(best, verify=True):
    print(f"5     {name} ×{count}")
assert [node.op for node in best.nodes()] == ["MatMul", "Relu", "Add", "MatMul"]
assert not optimize(best), "compiled again, it changes no more"


def wishful(rw: Rewriter) -> None:
    """A pass with a fault: it takes every number for positive."""
    rw.apply({"Relu": [lambda node: node.inputs[0]]})


wrong = error_of(optimize, parse(NET), (simplify, wishful), verify=True)
assert wrong == "wishful changes what is computed"

noisy = parse("def f(x: (n, 4)):\n  a = Noise(x)\n  b = Noise(x)\n  y = Sub(a, b)\n  return {'y': y}")
optimize(noisy)
assert len(noisy.nodes()) == 3, "two throws of the dice are two"

# ======================================================================================================================
# 6. A training step is a graph
#
# The derivative of a graph is built by walking it backwards; each operator says how the derivative of its output
# becomes those of its inputs, in operators that we already have. So the backward pass is no new thing: it is optimized,
# planned and run as everything else. A weight goes in as an input, and the new weight comes out beside the loss. There
# is no other state, and any runtime can train with it.


def turn(value: Value) -> Value:
    """The transpose."""
    return make("Transpose", value)


GRADIENTS: dict[str, Callable[[Node, Value], list[Value]]] = {
    "Identity": lambda node, dy: [dy],
    "Transpose": lambda node, dy: [turn(dy)],
    "MatMul": lambda node, dy: [make("MatMul", dy, turn(node.inputs[1])), make("MatMul", turn(node.inputs[0]), dy)],
    "Add": lambda node, dy: [dy, dy],
    "Sub": lambda node, dy: [dy, make("Mul", dy, make("Const", value=[[-1.0]]))],
    "Mul": lambda node, dy: [make("Mul", dy, node.inputs[1]), make("Mul", dy, node.inputs[0])],
    "Relu": lambda node, dy: [make("Mul", dy, make("Positive", node.inputs[0]))],
    "Sum": lambda node, dy: [make("Add", dy, make("Mul", node.inputs[0], make("Const", value=[[0.0]])))],
}


def reduce_to(value: Value, shape: Shape) -> Value:
    """What was broadcast on the way forward is added up on the way back."""
    for axis, (have, want) in enumerate(zip(value.shape, shape)):
        if have != want:
            value = make("Sum", value, axis=axis)
    return value


def gradients(graph: Graph, loss: Value, wanted: list[Value]) -> list[Value]:
    """The derivative of a loss of shape (1, 1) by each of the wanted values."""
    slopes: dict[Value, Value] = {loss: make("Const", value=[[1.0]])}
    for node in reversed(graph.nodes()):
        if node.output in slopes and node.inputs:
            for value, slope in zip(node.inputs, GRADIENTS[node.op](node, slopes[node.output])):
                slope = reduce_to(slope, value.shape)
                slopes[value] = make("Add", slopes[value], slope) if value in slopes else slope
    return [slopes[value] for value in wanted]


def training_step(graph: Graph, weights: list[str], rate: float) -> Graph:
    """Squared error of output y against input t, and a step of gradient descent: new weights as outputs "w.new"."""
    step = parse(show(graph))
    inputs = {value.name: value for value in step.inputs}
    error = make("Sub", step.outputs["y"], inputs["t"])
    loss = make("Sum", make("Sum", make("Mul", error, error), axis=0), axis=1)
    step.outputs = {"loss": loss}
    slopes = gradients(step, loss, [inputs[name] for name in weights])
    for name, slope in zip(weights, slopes):
        update = make("Mul", slope, make("Const", value=[[rate]]))
        step.outputs[f"{name}.new"] = make("Sub", inputs[name], update)
    return step


step = training_step(net, ["w", "v"], rate=1e-3)
nodes = len(step.nodes())
optimize(step, verify=True)

bumped = {**x, "w": x["w"].copy()}
bumped["w"][1, 2] += 1e-6
slope = (evaluate(step, bumped)["loss"] - evaluate(step, x)["loss"]).item() / 1e-6  # by its definition
assert math.isclose(slope, ((x["w"] - evaluate(step, x)["w.new"]) / 1e-3)[1, 2], rel_tol=1e-3)

state, losses = dict(x), []
for _ in range(200):
    result = evaluate(step, state)
    state |= {"w": result["w.new"], "v": result["v.new"]}
    losses.append(result["loss"].item())
assert losses[-1] < 0.5 * losses[0]
print(f"6     a training step of {nodes} nodes, {len(step.nodes())} optimized; loss {losses[0]:.1f} → {losses[-1]:.1f}")

# ======================================================================================================================
# 7. A plan
#
# A processor computes in a small fast memory, and someone must say what lies there when: which value at which address,
# what is sent away to make room, and when it comes back. Here the sizes are known, the order is that of the graph, and
# when there is no room, the value goes whose next use is farthest away (Belady, 1966). The plan is a text again. It is
# not believed either: a machine of a few lines runs it on one flat array that is full of NaN.

Place = tuple[str, int]  # the name of a value, and its address


class Step(NamedTuple):
    """One instruction: load, store, free, or an operator."""

    op: str
    reads: tuple[Place, ...] = ()
    write: Place | None = None

    def __str__(self) -> str:
        reads = " ".join(f"{name}@{at}" for name, at in self.reads)
        return f"{self.op:<9} {reads:<40} {'→ {}@{}'.format(*self.write) if self.write else ''}".rstrip()


def plan(graph: Graph, words: int, batch: int) -> list[Step]:
    """The instructions, in a memory of so many words. Raises MemoryError where one node alone does not fit."""
    steps: list[Step] = []
    at: dict[Value, int] = {}  # what lies in fast memory, and where
    saved = set(graph.inputs)  # what main memory has
    uses: dict[Value, deque[float]] = {}  # when it will be read
    for time, node in enumerate(graph.nodes()):
        for value in dict.fromkeys(node.inputs):
            uses.setdefault(value, deque()).append(time)
    for value in graph.outputs.values():
        uses.setdefault(value, deque()).append(math.inf)

    def size(value: Value) -> int:
        return math.prod(batch if isinstance(dim, str) else dim for dim in value.shape)

    def gap(needed: int) -> int | None:
        """The first address with so much room behind it."""
        start = 0
        for value, taken in sorted(at.items(), key=lambda item: item[1]):
            if taken - start >= needed:
                break
            start = taken + size(value)
        return start if start + needed <= words else None

    def place(value: Value, busy: list[Value]) -> Place:
        while (start := gap(size(value))) is None:
            idle = [each for each in at if each not in busy]
            if not idle:
                raise MemoryError(f"{value.name} does not fit beside what its node reads")
            leave(max(idle, key=lambda each: uses[each][0]))
        at[value] = start
        return value.name, start

    def leave(value: Value) -> None:
        is_stored = len(uses[value]) > 0 and value not in saved
        steps.append(Step("store" if is_stored else "free", ((value.name, at.pop(value)),)))
        saved.update([value] if is_stored else ())

    for node in graph.nodes():
        operands = list(dict.fromkeys(node.inputs))
        busy = [*operands, node.output]
        for value in operands:
            if value not in at:
                steps.append(Step("load", write=place(value, busy)))
        result = place(node.output, busy)
        steps.append(Step(node.op, tuple((value.name, at[value]) for value in node.inputs), result))
        for value in operands:
            uses[value].popleft()
            if not uses[value]:
                leave(value)
    for value in dict.fromkeys(graph.outputs.values()):
        if value in at:
            leave(value)
    return steps


def run_plan(steps: Sequence[Step], graph: Graph, words: int, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a plan on a simulated memory. What was freed or never written is NaN, and spreads to the result."""
    fast, main = np.full(words, np.nan), dict(feeds)
    nodes = {node.output.name: node for node in graph.nodes()}
    shapes = {v.name: v.shape for v in (*graph.inputs, *(node.output for node in graph.nodes()))}

    def cells(name: str, at: int) -> np.ndarray:
        shape = [len(feeds["x"]) if isinstance(dim, str) else dim for dim in shapes[name]]
        return fast[at : at + math.prod(shape)].reshape(shape)

    for op, reads, write in steps:
        operands = [cells(*place) for place in reads]
        if write is None:
            if op == "store":
                main[reads[0][0]] = operands[0].copy()
            operands[0][...] = np.nan
        elif op == "load":
            cells(*write)[...] = main[write[0]]
        else:
            cells(*write)[...] = OPERATORS[op].run(np, *operands, **nodes[write[0]].attributes)
    return {name: main[value.name] for name, value in graph.outputs.items()}


def same_results(steps: Sequence[Step], words: int) -> bool:
    """Does a plan of the training step compute what the oracle does?"""
    results = run_plan(steps, step, words, x)
    return all(np.allclose(results[name], value) for name, value in evaluate(step, x).items())


roomy, tight = plan(step, 1000, batch=8), plan(step, 100, batch=8)
assert same_results(roomy, 1000) and same_results(tight, 100)
assert sum(each.op == "store" for each in roomy) == len(step.outputs) < sum(each.op == "store" for each in tight)
shifted = [s._replace(write=(s.write[0], s.write[1] + 1)) if s.write and s.op == "Relu" else s for s in tight]
assert not same_results(shifted, 100), "an address that is off by one is found"
traffic = [sum(each.op in ("load", "store") for each in steps) for steps in (roomy, tight)]
print(f"7     a plan in 1,000 words moves {traffic[0]} values, one in 100 words {traffic[1]}; it ends with")
print("\n".join(f"        {each}" for each in tight[-4:]))

# ======================================================================================================================
# 8. A device
#
# The table of chapter 2 computes with whatever `xp` it is handed. Hand it jax.numpy inside jax.jit, and the arrays are
# no arrays: they write down what is done to them. So the interpreter becomes the front end of another compiler, XLA,
# and the whole graph one program for a CPU, GPU or TPU. Inputs are arguments of it, so new weights do not compile anew.

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of all devices the one that everybody has
try:
    import jax
except ModuleNotFoundError:
    print("8     without JAX (pip install 'pfvm[xla]') this chapter cannot run")
else:
    with jax.enable_x64(True):
        program = jax.jit(lambda feeds: evaluate(step, feeds, jax.numpy))
        on_device = {name: np.asarray(value) for name, value in program(x).items()}
        text = program.lower(x).as_text()
    assert all(np.allclose(on_device[name], value) for name, value in evaluate(step, x).items())
    assert len(re.findall(r"stablehlo\.dot_general", text)) == sum(node.op == "MatMul" for node in step.nodes())
    print(f"8     XLA has it as one program of {text.count('stablehlo.')} operations, and computes the same")

# ======================================================================================================================
# 9. The real one
#
# Nothing above needs to be believed, and nothing of it is missing in pfvm. There it is longer, because the operators
# are all those of ONNX, at every version, with control flow and thousands of nodes. First the same net as ONNX.

import onnx  # noqa: E402 - a tour meets its guests where they come in
import onnx_ir  # noqa: E402
import pfvm  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from pfvm.compiler.plan.dump import print_l3ir  # noqa: E402
from pfvm.compiler.plan.planner import plan as make_plan  # noqa: E402
from pfvm.passes import forward, rule  # noqa: E402


def to_onnx(graph: Graph, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A graph whose operators are ONNX's too, in float32, with these inputs as constants. ONNX has a text as well."""

    def declared(values: Iterable[Value]) -> str:
        return ", ".join(f"float[{', '.join(map(str, value.shape))}] {value.name}" for value in values)

    inputs = declared(value for value in graph.inputs if value.users and value.name not in weights)
    outputs = declared(graph.outputs.values())
    text = f'<ir_version: 10, opset_import: ["": 21]> {graph.name} ({inputs}) => ({outputs}) {{'
    constants = dict(weights)
    for node in graph.nodes():
        if node.op == "Const":
            constants[node.output.name] = node.attributes["value"]
        else:
            text += f"{node.output.name} = {node.op} ({', '.join(value.name for value in node.inputs)}) "
    proto = onnx.parser.parse_model(text + "}")
    tensors = {name: np.asarray(value, "float32") for name, value in constants.items()}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in tensors.items())
    return proto


model = to_onnx(parse(NET), {"w": x["w"], "v": x["v"]})
feeds = {"x": x["x"].astype("float32")}
expected = evaluate(net, x)["y"]


# Chapters 4 and 5: rules, passes, a verifier, and a record of what each pass did. A rule of your own looks as ours did.
@rule("Add")
def twice_is_enough(node: Any, rw: Any) -> bool:
    """Add(a, a) → a: wrong, of course."""
    return node.inputs[0] is node.inputs[1] and forward(node, rw, node.inputs[0], "twice")


with tempfile.TemporaryDirectory() as folder:
    compiled = pfvm.optimize(model, verify=True, artifacts=folder)
    record = json.loads(pathlib.Path(folder, "passes.json").read_text())
assert len(compiled.graph.node) <= 4, "all that our rules found, and more"
assert compiled.graph.input == model.graph.input and compiled.graph.output == model.graph.output
assert "pass tour.py changed output 'y'" in error_of(pfvm.optimize, model, verify=True, rules=[twice_is_enough])
print(f"9     pfvm: {record['nodes'][0]} → {record['nodes'][1]} nodes in {1e3 * record['seconds']:.0f} ms:", end=" ")
print(", ".join(f"{each['name']} {sum(each['matches'].values())}" for each in record["passes"] if each["matches"]))

# Chapter 6: the step of the same net. pfvm's loss is the mean of all squares, ours their sum: hence the factor.
trainer = pfvm.grad(model, "y", loss_fn="mse", lr=1e-3 * expected.size)
trained = pfvm.load(pfvm.optimize(trainer))({**feeds, "target": x["t"].astype("float32")})
assert np.allclose(trained["w.new"], evaluate(step, x)["w.new"], atol=1e-4)

# Chapter 7: a plan, for a machine that a file describes.
planned = make_plan(onnx_ir.from_proto(compiled), {"machine": "mncore2", "shapes": {"x": (8, 4)}})
heads = [line for line in print_l3ir(planned.model, planned.machine).splitlines() if not line.startswith(" ")]
print(f"      its plan has {len(heads)} steps; the last are\n" + "\n".join(f"        {line}" for line in heads[-4:]))

# Chapter 8: every device that is here, and the numbers of chapter 3.
for device in pfvm.devices():
    if device.status == "ready" and device.platform in ("cpu", "emu"):
        result = pfvm.load(compiled, device=device.name)(feeds)["y"]
        assert np.allclose(result, expected, rtol=1e-2, atol=5e-2 if device.backend == "mncore2" else 1e-4)
        print(f"      {device.name}: {device.note}, within {np.abs(result - expected).max():.1e} of chapter 3")

print("""
where it is in pfvm:  1 onnx_ir, compiler/importer.py    2 compiler/shapes.py        3 runtime/oracle.py
                      4 passes/rewriter.py, passes/*.py  5 passes/pipeline.py        6 compiler/grad/, compiler/capture/
                      7 compiler/plan/                   8 runtime/ort.py, runtime/xla/""")
