"""Passes broken on purpose, one small mistake at a time, to see that `--verify` notices.

A mutant is a pass's source with one change of a kind that people make: a guard left out, operands swapped, a number one
too large, a comparison turned, an attribute forgotten, `and` for `or`, the sign of a number. It compiles the pass's own
graph of `test_every_pass`, that graph in every setting, and graphs that the pass has to leave alone. Where what it
writes is not what the pass itself writes, `--verify` has to refuse it, unless it computes the same: that is then tried
on many more inputs.

    python tests/pass_mutants.py            # every mutant of every pass
"""

from __future__ import annotations

import ast
import collections
import copy
import dataclasses
import functools
import importlib.util
import multiprocessing
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from near_misses import NEAR
from pass_settings import settings
from pfvm import passes
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import MismatchError, PfvmError
from pfvm.passes import pipeline
from pfvm.passes.infer_shapes import InferShapes
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.trace import NoTrace
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.oracle import Oracle
from pfvm.runtime.ort import evaluate
from pfvm.runtime.synthesis import synthesize
from pfvm.runtime.verify import Verifier, make_verifier
from support import model
from test_every_pass import EXAMPLES

_STEPS, _SECONDS = 3000, 3
"""Rules tried, and time, after which a mutant hangs."""
_MORE = range(10, 19)
"""Seeds of the inputs on which survivors are tried."""

# ---- mistakes


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mistake: its kind, the line, and what stands there after it. `source` makes the whole module."""

    kind: str
    line: int
    tree: ast.Module
    number: int  # of the node in a walk over the tree
    change: Callable[[Any], None]

    def _mutated(self) -> tuple[ast.Module, ast.AST]:
        tree = copy.deepcopy(self.tree)
        node = next(n for i, n in enumerate(ast.walk(tree)) if i == self.number)
        self.change(node)
        return tree, node

    @property
    def source(self) -> str:
        return ast.unparse(self._mutated()[0])

    @property
    def text(self) -> str:
        return ast.unparse(self._mutated()[1])[:80]


def mutants(source: str) -> list[Mutant]:
    """Every mistake that can be made in a module."""
    tree = ast.parse(source)
    return [
        Mutant(kind, getattr(node, "lineno", 0), tree, number, change)
        for number, node in enumerate(ast.walk(tree))
        for kind, change in _mistakes(node)
    ]


def _mistakes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.If) and _only_refuses(node):
        yield "guard left out", lambda n: setattr(n, "test", ast.Constant(False))
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and for or", lambda n: setattr(n, "op", other)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TURNED:
        turned = _TURNED[type(node.ops[0])]
        yield "comparison turned", lambda n: n.ops.__setitem__(0, turned())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "number one too large", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign lost", lambda n: setattr(n, "op", ast.UAdd())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "op":
        if len(node.args) >= 3 and not any(isinstance(arg, ast.Starred) for arg in node.args[:3]):
            yield "operands swapped", lambda n: n.args.__setitem__(slice(1, 3), [n.args[2], n.args[1]])
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in ("at", "domain", "outputs", "name", None):
                yield "attribute forgotten", functools.partial(_forget, index=i)


def _forget(call: ast.Call, index: int) -> None:
    del call.keywords[index]


_TURNED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def _only_refuses(node: ast.If) -> bool:
    """`if …: return False`, `return None`, `return rw.reject(…)`, `continue`."""
    if len(node.body) != 1 or node.orelse:
        return False
    (inner,) = node.body
    if isinstance(inner, ast.Continue):
        return True
    if not isinstance(inner, ast.Return):
        return False
    value = inner.value
    is_reject = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "reject"
    return value is None or is_reject or (isinstance(value, ast.Constant) and value.value in (False, None))


# ---- running them


class Hangs(Exception):
    """A mutant that does not end."""


class _Limit(NoTrace):
    def __init__(self) -> None:
        self._steps = 0

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise Hangs

    def refused(self, *_: Any) -> None:
        self._step()

    def rewritten(self, *_: Any) -> None:
        self._step()


@dataclasses.dataclass
class Graph:
    """One graph of a pass: the model, who verifies it, and what the pass itself makes of it."""

    name: str
    model: ir.Model
    verifier: Verifier
    expected: bytes


def graphs(name: str, with_settings: bool = True) -> list[Graph]:
    """The graphs of a pass, on which it works as it should."""
    example = EXAMPLES[name]
    source = model(example) if isinstance(example, str) else example
    protos = [("its graph", source), *((f"left alone {i}", model(t)) for i, t in enumerate(NEAR.get(name, ())))]
    protos += list(settings(source)) if with_settings else []
    found = []
    for label, proto in protos:
        read = read_model(proto)
        compiled = compiled_by(pipeline.load(name)(), read)
        found.append(Graph(label, read, make_verifier(read), _bytes(compiled)))
    return found


def compiled_by(each: Any, source: ir.Model, verifier: Verifier | None = None) -> ir.Model:
    """What one pass makes of a model. Raises MismatchError from the verifier, and whatever the pass raises."""
    working = read_model(source)
    rewriter = Rewriter(working, ShapeInference(working))
    rewriter.trace = _Limit()

    def after(current: ir.Model, record: pipeline.PassRecord) -> None:
        if verifier is not None and record.changed:
            verifier(current, record.name)

    pipeline.run(rewriter, [InferShapes(), each], {"evaluate": evaluate}, after)
    return working


def _bytes(compiled: ir.Model) -> bytes:
    return to_proto(compiled).SerializeToString(deterministic=True)


def load_mutant(name: str, source: str) -> Any:
    """The pass of a mutated module."""
    module_name, _, cls = pipeline.REGISTRY[name].partition(":")
    full = f"pfvm.passes.mutant_of_{module_name}"
    module = ModuleType(full)
    module.__package__ = "pfvm.passes"
    sys.modules[full] = module
    try:
        exec(compile(source, full, "exec"), module.__dict__)
        return getattr(module, cls)()
    finally:
        del sys.modules[full]


def judge(source: str, name: str, on: list[Graph]) -> str:
    """What became of a mutant, whose module has this source.

    "no effect": it writes what the pass writes. "caught": --verify tells. "crash": the pass fails, as everybody sees.
    "equal": another graph that computes the same on many more inputs. "rounding": what is different is within the
    tolerance, as a cast to half precision left out; with a tighter one --verify tells. "missed: …": another graph that
    computes something else, unnoticed.
    """
    outcome = "no effect"
    try:
        broken = load_mutant(name, source)
    except Exception:  # a default that the module cannot be loaded with
        return "crash"
    signal.signal(signal.SIGALRM, _hangs)
    for graph in on:
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            compiled = compiled_by(broken, graph.model, graph.verifier)
            written = _bytes(compiled)
        except MismatchError:
            return "caught"
        except Exception:  # whatever a broken pass raises is seen
            return "crash"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if written != graph.expected:
            difference_found = _differs(graph.model, compiled)
            if difference_found:
                tight = _refuses(Verifier(graph.model, _TIGHT), compiled)
                return "rounding" if tight else f"missed: {graph.name}: {difference_found}"
            outcome = "equal"
    return outcome


class Apart:
    """Judges in another process: a runtime may abort on a broken file. Whoever sees that sees a crash."""

    def __init__(self, with_settings: bool) -> None:
        self._with_settings = with_settings
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def judge(self, source: str, name: str) -> str:
        """As the function `judge`, on the graphs of the pass."""
        try:
            return self._pool.submit(_judge, source, name, self._with_settings).result()
        except BrokenProcessPool:
            self._pool = self._start()
            return "crash"

    def close(self) -> None:
        self._pool.shutdown()


def _judge(source: str, name: str, with_settings: bool) -> str:
    return judge(source, name, _graphs(name, with_settings))


_graphs = functools.lru_cache(maxsize=1)(graphs)

_TIGHT = Tolerance(rtol=2e-5, atol=1e-6)


def _refuses(verifier: Verifier, compiled: ir.Model) -> bool:
    try:
        verifier(compiled, "the mutant")
    except MismatchError:
        return True
    return False


def _hangs(*_: Any) -> None:
    raise Hangs


def _differs(original: ir.Model, compiled: ir.Model) -> str | None:
    """Where two models differ on inputs of other sizes and magnitudes than --verify tries."""
    try:
        onnx.checker.check_model(to_proto(compiled), full_check=True)
        first, second = Oracle(original), Oracle(compiled)
        for seed in _MORE:
            feeds = _scaled(synthesize(original, seed, size=2 + seed % 3), seed)
            try:
                expected = first(feeds)
            except PfvmError:
                continue
            results = second(feeds)
            for key, value in expected.items():
                found = difference(key, value, results[key], Tolerance())
                if found is not None:
                    return f"seed {seed}, {found}"
    except Exception as error:  # onnx's checker raises its own types
        return f"{type(error).__name__}: {error}"
    return None


def _scaled(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    factor = (1.0, 10.0, 0.1)[seed % 3]
    return {
        name: (value * factor).astype(value.dtype) if getattr(value, "dtype", None) == np.float32 else value
        for name, value in feeds.items()
    }


def source_of(name: str) -> str:
    """The source of a pass's module."""
    module_name = pipeline.REGISTRY[name].partition(":")[0]
    spec = importlib.util.find_spec(f"{passes.__name__}.{module_name}")
    assert spec is not None and spec.origin is not None
    return pathlib.Path(spec.origin).read_text(encoding="utf-8")


def main(names: list[str]) -> None:
    """Prints each mutant that is missed, and counts by pass."""
    total: collections.Counter[str] = collections.Counter()
    apart = Apart(with_settings=True)
    for name in names or EXAMPLES:
        counts = collections.Counter[str]()
        for mutant in mutants(source_of(name)):
            outcome = apart.judge(mutant.source, name)
            counts[outcome.partition(":")[0]] += 1
            if outcome.startswith("missed"):
                print(f"{name}:{mutant.line}: {mutant.kind}: {mutant.text!r}: {outcome}", flush=True)
        print(f"{name}: {dict(counts)}", flush=True)
        total += counts
    apart.close()
    print(f"total: {dict(total)}")


if __name__ == "__main__":
    main(sys.argv[1:])
