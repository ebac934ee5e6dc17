"""The first pass, and the first match in it, after which a model is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from pfvm.compiler.driver import compile_model
from pfvm.compiler.options import Options
from pfvm.errors import describe_node
from pfvm.passes.pipeline import REGISTRY
from pfvm.passes.provenance import Group
from pfvm.passes.rules import Rule, apply_rules
from pfvm.runtime.ort import evaluate

from .faults import Fault, Judge


@dataclass(frozen=True)
class Match:
    """One application of a rule. number: which of the pass's, from 1."""

    rule: str
    node: str
    number: int


@dataclass(frozen=True)
class Found:
    """The first rewrite that breaks the model.

    run: which run of a pass it is, from 1, over all rounds. match: None where the pass is not made of rules, or does
    the damage outside them, which `note` says. before: the model just before; after: just after, None for a crash.
    """

    pass_name: str
    run: int
    round: int
    fault: Fault
    match: Match | None
    matches: int
    before: ir.Model
    after: ir.Model | None
    note: str = ""


class _Stop(BaseException):
    """Leaves the passes; no handler of theirs may catch it."""


class _Watch:
    """A Trace that counts runs and matches, and stops at a given one. run 0: never."""

    def __init__(self, run: int = 0, match: int = 0) -> None:
        self._stop = run, match
        self.model: ir.Model
        self.names: list[str] = []
        self.matches = 0
        self.last: Match | None = None

    def started(self, pass_name: str, model: ir.Model) -> None:
        self.model = model
        self.names.append(pass_name)
        self.matches, self.last = 0, None
        self._check()

    def refused(self, rule: str, node: ir.Node) -> None: ...
    def rejected(self, rule: str, why: str, node: ir.Node | None) -> None: ...
    def replaced(self, node: ir.Node, value: ir.Value) -> None: ...

    def rewritten(self, rule: str, node: ir.Node | None, groups: Sequence[Group], erased: Sequence[ir.Node]) -> None:
        if node is None or not rule:  # only what apply_rules did leaves a whole graph behind
            return
        self.matches += 1
        self.last = Match(rule, describe_node(node), self.matches)
        self._check()

    def _check(self) -> None:
        if (len(self.names), self.matches) == self._stop:
            raise _Stop


class Search:
    """Compiles a model again and again; each time the passes do the same."""

    def __init__(self, model: ir.Model, options: Options, judge: Judge) -> None:
        self._model, self._judge = model, judge
        self._options = options.model_copy(update={"verify": True})

    def find(self) -> Found | None:
        """The first rewrite after which the model is wrong; None when none is."""
        fault, watch, error = self._first_pass()
        if fault is None:
            return None
        run, total, name = len(watch.names), watch.matches, watch.names[-1]
        round_number = watch.names.count(watch.names[0])
        before = self._state(run, 0)
        where, at = self._alone(before, name, total, fault) or (self, run)
        if total and where._match(at, total)[1] is not None:
            number = where._first_match(at, total)
            match, at_match, after = where._match(at, number)
            last = where._state(at, number - 1)
            return Found(name, run, round_number, at_match or fault, match, total, last, after)
        site = None if error is None else _crash_site(error)
        if site is not None:
            match = Match(site[0].__name__, describe_node(site[1]), total + 1)
            return Found(name, run, round_number, fault, match, total, where._state(at, total), None)
        why = "does it outside its rules" if total else "is not made of rules"
        note = f"{name} {why}, so which match it is cannot be told"
        after = None if error is not None else watch.model
        return Found(name, run, round_number, fault, None, total, before, after, note)

    def _alone(self, before: ir.Model, name: str, total: int, fault: Fault) -> tuple[Search, int] | None:
        """A search in that pass alone, which is faster, and which run it is there; if it is the same there."""
        search = Search(before, only(self._options, name), self._judge)
        found, watch, _ = search._first_pass()
        is_same = fault.is_like(found) and watch.names[-1:] == [name] and watch.matches == total
        return (search, len(watch.names)) if is_same else None

    def first_fault(self) -> Fault | None:
        """What is wrong after the first pass that breaks the model."""
        return self._first_pass()[0]

    def _compile(self, watch: _Watch, after: Callable[[ir.Model], None]) -> Exception | None:
        """Returns what a pass raised."""

        def verify(model: ir.Model, pass_name: str) -> float:
            after(model)
            return 0.0

        try:
            compile_model(
                self._model, self._options, evaluate=evaluate, make_verifier=lambda original: verify, trace=watch
            )
        except Exception as error:  # whatever a pass raises is the fault that is looked for
            return error
        return None

    def _first_pass(self) -> tuple[Fault | None, _Watch, Exception | None]:
        watch = _Watch()
        found: list[Fault] = []

        def judge(model: ir.Model) -> None:
            fault = self._judge.fault(model)
            if fault is not None:
                found.append(fault)
                raise _Stop

        try:
            error = self._compile(watch, judge)
        except _Stop:
            return found[0], watch, None
        if error is not None and not watch.names:  # before any pass: the options or the model
            raise error
        return None if error is None else Fault.crash(error), watch, error

    def _first_match(self, run: int, total: int) -> int:
        """A match after which the model is wrong while it is right before; it is wrong after `total`."""
        right, wrong = 0, total
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self._match(run, middle)[1] is None:
                right = middle
            else:
                wrong = middle
        return wrong

    def _state(self, run: int, match: int) -> ir.Model:
        """The model after that many matches of that run."""
        watch = _Watch(run, match)
        try:
            self._compile(watch, lambda model: None)
        except _Stop:
            return watch.model
        raise AssertionError(f"run {run} has no match {match} any more")

    def _match(self, run: int, match: int) -> tuple[Match | None, Fault | None, ir.Model | None]:
        """The match, what is wrong after it, and the model."""
        watch = _Watch(run, match)
        try:
            error = self._compile(watch, lambda model: None)
        except _Stop:
            return watch.last, self._judge.fault(watch.model), watch.model
        return watch.last, None if error is None else Fault.crash(error), None


def _crash_site(error: Exception) -> tuple[Rule, ir.Node] | None:
    """The rule that raised, and the node at which it was tried; None for code outside rules."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is apply_rules.__code__:
            values = step.tb_frame.f_locals
            return (values["rule"], values["node"]) if "rule" in values and "node" in values else None
        step = step.tb_next
    return None


def only(options: Options, pass_name: str) -> Options:
    """The same options with this pass alone, and shapes inferred for it."""
    specs = [spec for spec in options.passes if spec.partition("{")[0].replace("_", "-") == pass_name]
    ours = specs or ([pass_name] if pass_name in REGISTRY else [])
    chosen = tuple(dict.fromkeys(("infer-shapes", *ours)))
    rules = () if pass_name in REGISTRY else options.rules
    return options.model_copy(
        update={"opt_level": 0, "passes": chosen, "disable": (), "rules": rules, "opset": None, "verify": False}
    )
