"""A user's own rules: a Python file of functions marked with `@rule`, applied by the engine that applies ours.

    # my_rules.py
    from pfvm.passes import forward, rule

    @rule("Relu")
    def relu_twice(node, rw):
        return rw.producer(node.inputs[0], "Relu") is not None and forward(node, rw, node.inputs[0], "relu_twice")

They are a pass called like the file, which runs first in every round, as soon as shapes are known.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import OptionError, PfvmError, RuleError, describe_node, did_you_mean, flag, one_line, short

from . import schema
from .rewriter import Rewriter
from .rules import Rule, apply_rules, rules_in

RuleSource = str | os.PathLike[str] | Rule
"""A file, or a function marked with `@rule`."""


@dataclasses.dataclass(frozen=True)
class UserRules:
    """The rules of one file, as a pass of the file's name.

    before:  x ─ Relu ─ Relu ─ y       with the rule relu_twice
    after:   x ─ Relu ─ y
    """

    name: str
    rules: Mapping[str, Sequence[Rule]]

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, self._guarded(rw))

    def _guarded(self, rw: Rewriter) -> dict[str, list[Rule]]:
        """The rules with their faults named, and stopped where they would go on for ever."""
        limit = 1000 + 20 * sum(len(graph) for graph in rw.scopes())
        functions = {rule: None for rules in self.rules.values() for rule in rules}
        guarded = {rule: _guard(rule, self.name, limit) for rule in functions}
        return {op_type: [guarded[rule] for rule in rules] for op_type, rules in self.rules.items()}


def load_rules(sources: Iterable[RuleSource]) -> list[UserRules]:
    """A pass for each file, and for the marked functions of each file where functions are given.

    Raises OptionError (no such file, no rules in it, a function or an operator that is none), RuleError where the file
    itself fails.
    """
    passes: dict[str, UserRules] = {}
    loose: dict[str, list[Rule]] = {}
    for source in sources:
        if isinstance(source, (str, os.PathLike)):
            path = pathlib.Path(source)
            name = path.name if path.name not in passes else str(path)
            passes[name] = UserRules(name, _checked(rules_in(vars(_module(path))), name))
        elif callable(source) and getattr(source, "op_types", None):
            loose.setdefault(_file(source), []).append(source)
        else:
            raise OptionError(f"rules are files, or functions marked with @rule from pfvm.passes, not {short(source)}")
    for name, functions in loose.items():
        table: dict[str, list[Rule]] = {}
        for function in functions:
            for op_type in function.op_types:  # type: ignore[attr-defined]
                table.setdefault(op_type, []).append(function)
        name = name if name not in passes else f"{name} (given as functions)"
        passes[name] = UserRules(name, _checked(table, name))
    return list(passes.values())


def _file(function: Rule) -> str:
    code = getattr(function, "__code__", None)
    return pathlib.Path(code.co_filename).name if code is not None else "rules"


def _module(path: pathlib.Path) -> ModuleType:
    """Runs the file; its own folder is importable from it, as when Python runs it."""
    if not path.is_file():
        raise OptionError(f"{flag('rules', path)}: no such file")
    name = f"pfvm_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{flag('rules', path)}: a file of rules is Python and ends in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.modules[name] = module  # as dataclasses and pickle expect
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RuleError(f"{path}{_line(error, path)}: {one_line(error)}") from error
    finally:
        sys.path.remove(folder)
        del sys.modules[name]
    return module


def _line(error: BaseException, path: str | pathlib.Path) -> str:
    """`, line 12`: where in that file the error arose."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f", line {error.lineno}"
    name = pathlib.Path(path).name
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if pathlib.Path(f.filename).name == name]
    return f", line {lines[-1]}" if lines else ""


def _checked(rules: dict[str, list[Rule]], name: str) -> dict[str, list[Rule]]:
    if not rules:
        raise OptionError(f"{name} has no rules: mark functions with @rule('Relu'), from pfvm.passes import rule")
    known = schema.operators()
    for op_type in rules:
        if "::" not in op_type and op_type not in known and op_type not in schema.EXTENSIONS:
            near = did_you_mean(op_type, sorted(known))
            where = ", ".join(rule.__name__ for rule in rules[op_type])
            advice = "; operators of other domains are written domain::Name"
            raise OptionError(f"{name}: ai.onnx has no operator {op_type!r}, at which {where} is tried{near}{advice}")
    return rules


def _guard(rule: Rule, file: str, limit: int) -> Rule:
    """The rule with its errors named by file, rule and node; at most `limit` applications in one run of the pass."""
    applied = 0

    def fail(node: ir.Node, what: str, line: str = "") -> RuleError:
        return RuleError(f"{file}{line}: rule {rule.__name__} at {describe_node(node)}: {what}")

    @functools.wraps(rule)
    def guarded(node: ir.Node, rw: Rewriter) -> bool:
        nonlocal applied
        before = describe_node(node)
        touched: list[ir.Node] = []
        stop = rw.listen(touched.append)
        try:
            result = rule(node, rw)
        except Exception as error:
            text = str(error) if isinstance(error, PfvmError) else one_line(error)
            raise RuleError(f"{file}{_line(error, _path(rule))}: rule {rule.__name__} at {before}: {text}") from error
        finally:
            stop()
        if not (result is None or isinstance(result, (bool, np.bool_))):
            raise fail(node, f"it returned {short(result)}; a rule returns True when it changed the graph, else False")
        if not result and (touched or rw.provenance.is_pending):
            raise RuleError(f"{file}: rule {rule.__name__} at {before}: it changed the graph but did not return True")
        applied += bool(result)
        if applied > limit:
            raise fail(node, f"it was applied {applied:,} times; it returns True but comes to no end")
        return bool(result)

    return guarded


def _path(rule: Callable[..., Any]) -> str:
    code = getattr(rule, "__code__", None)
    return code.co_filename if code is not None else ""


def beside(passes: Sequence[Any], sources: Iterable[RuleSource]) -> list[Any]:
    """The passes with the user's among them: after shapes are inferred, which is added where it is not asked for."""
    users = load_rules(sources)
    if not users:
        return list(passes)
    from .infer_shapes import InferShapes

    inferring = [each for each in passes if each.name == InferShapes.name] or [InferShapes()]
    return [*inferring, *users, *(each for each in passes if each not in inferring)]
