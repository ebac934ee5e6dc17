"""`pfvm explain`: which rules were tried at a node, why each was refused, which made it, and what became of it.

What runs where on a device is another question: `pfvm compile --device D --explain`, see segments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pfvm.errors import OptionError, describe_node, did_you_mean

from .console import out, print_json, table
from .working import working

if TYPE_CHECKING:
    import onnx_ir as ir

    from .following import Follower

_MOST = 8  # nodes of one name, or made of one, that are explained


def explain(
    model: Annotated[Path, typer.Argument(help="ONNX file, compiled or not.", show_default=False)],
    node: Annotated[str, typer.Argument(help="Name of a node, or of a tensor that it makes.", show_default=False)],
    opt_level: Annotated[int | None, typer.Option("-O", "--opt-level", min=0, max=3, help="As in compile.")] = None,
    passes: Annotated[list[str] | None, typer.Option("-p", "--pass", help="As in compile. Repeatable.")] = None,
    disable: Annotated[list[str] | None, typer.Option("--disable", help="As in compile. Repeatable.")] = None,
    rules: Annotated[list[str] | None, typer.Option("--rules", help="As in compile. Repeatable.")] = None,
    fused_ops: Annotated[str | None, typer.Option("--fused-ops", help="As in compile.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="As in compile.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Tell which rules were tried at a node, and why each was refused.

    Also what became of it. The model is compiled for that, and nothing is written. In a compiled file, NODE may also
    be the name that a node had before: then the nodes that were made of it are explained.
    """
    from pfvm.compiler.driver import compile_model
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.options import parse
    from pfvm.runtime.ort import evaluate

    from .following import Follower, Followers

    given = {
        "opt_level": opt_level, "passes": passes, "disable": disable, "rules": rules, "fused_ops": fused_ops,
        "target": target,
    }  # fmt: skip
    options = parse({key: value for key, value in given.items() if value is not None})
    source = read_model(model)
    found = _find(source, node)
    places = {each: place for place, each in enumerate(_nodes(source))}
    followers = [Follower(functools.partial(_at, place=places[each])) for each in found]
    with working(f"compiling {model}"):
        compile_model(source, options, evaluate=evaluate, trace=Followers(followers))
    explained = [_explained(each, follower) for each, follower in zip(found, followers)]
    if as_json:
        print_json({"version": 1, "asked": node, "nodes": explained})
        return
    for line in _heading(node, found):
        out().print(line, soft_wrap=True)
    for number, each in enumerate(explained):
        if number:
            out().print("")
        _print(each)


def _find(model: ir.Model, wanted: str) -> list[ir.Node]:
    """The nodes of that name, else the one that makes that tensor, else those that were made of a node of that name.

    Raises OptionError.
    """
    from pfvm.passes.provenance import FROM, names

    nodes = list(_nodes(model))
    tests: tuple[Any, ...] = (
        lambda node: node.name == wanted,
        lambda node: any(value.name == wanted for value in node.outputs),
        lambda node: wanted in names(node.metadata_props.get(FROM)),
    )
    for test in tests:
        found = [node for node in nodes if test(node)]
        if found:
            return found[:_MOST]
    raise OptionError(_nothing(model, nodes, wanted))


def _nothing(model: ir.Model, nodes: list[ir.Node], wanted: str) -> str:
    """Why there is no such node."""
    from pfvm.passes.provenance import RULE

    for what, values in (("a constant", model.graph.initializers.values()), ("an input", model.graph.inputs)):
        for value in values:
            if value.name == wanted:
                readers = ", ".join(describe_node(use.node) for use in list(value.uses())[:_MOST])
                return f"{wanted!r} is {what} of the model, not a node; " + (
                    f"it is read by {readers}" if readers else "nobody reads it"
                )
    known = [name for node in nodes for name in (node.name, *(value.name for value in node.outputs)) if name]
    compiled = any(RULE in node.metadata_props for node in nodes)
    advice = "; a node that passes removed is explained with the file that it was in" if compiled else ""
    return f"the model has no node or tensor {wanted!r}{did_you_mean(wanted, dict.fromkeys(known))}{advice}"


def _heading(wanted: str, found: list[ir.Node]) -> Iterator[str]:
    if all(wanted != name for node in found for name in (node.name, *(value.name for value in node.outputs))):
        yield f"{wanted!r} is now part of {', '.join(describe_node(node) for node in found)}"
        yield ""
    elif len(found) > 1:
        yield f"{len(found)} nodes are called {wanted!r}"
        yield ""


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    from pfvm.passes.effects import roots

    for root in roots(model):
        yield from root.all_nodes()


def _at(model: ir.Model, place: int) -> list[ir.Node]:
    """The node at that place, in a copy of the model."""
    return [list(_nodes(model))[place]]


def _explained(node: ir.Node, follower: Follower) -> dict[str, Any]:
    """What is told of one node, as --json prints it."""
    from pfvm.passes.provenance import FROM, RULE, names

    from .following import signature

    left = [each for each in _nodes(follower.model) if each in follower.nodes] if follower.nodes else [node]
    return {
        "node": describe_node(node),
        "signature": signature(node),
        "rule": node.metadata_props.get(RULE),
        "from": names(node.metadata_props.get(FROM)),
        "steps": [{"round": step.round, "rule": step.rule, "what": step.what} for step in follower.steps],
        "end": [f"{describe_node(each)}: {signature(each)}" for each in left],
        "refused": [
            {"rule": rule, "at": at, "why": why} for (rule, at), reasons in follower.reasons.items() for why in reasons
        ],
        "unmatched": follower.never_matched(),
    }


def _print(explained: dict[str, Any]) -> None:
    for line in _lines(explained):
        out().print(line, soft_wrap=True)
    if explained["refused"]:
        out().print("")
        rows = table("refused", "at", "why")
        for each in explained["refused"]:
            rows.add_row(each["rule"], each["at"], each["why"])
        out().print(rows)
    if explained["unmatched"]:
        out().print("")
        rows = table("pass", "rules that looked at it and did not match")
        for name, rules in explained["unmatched"].items():
            rows.add_row(name, ", ".join(rules))
        out().print(rows)


def _lines(explained: dict[str, Any]) -> Iterator[str]:
    yield f"{explained['node']}: {explained['signature']}"
    if explained["rule"]:
        of = f" from {', '.join(explained['from'])}" if explained["from"] else ""
        yield f"  made by {explained['rule']}{of}"
    for step in explained["steps"]:
        yield f"  round {step['round']}: {step['rule']}: {step['what']}"
    ends = explained["end"]
    if not ends:
        ends = ["no node of its own" if explained["steps"] else "gone, with the function or body that it was in"]
    elif not explained["steps"]:
        ends = ["as it was"]
    for end in ends:
        yield f"  in the end: {end}"
    if not (explained["refused"] or explained["unmatched"] or explained["steps"]):
        yield "  no pass has a rule for this operator"
