"""What `--help` says beyond the flags: groups, examples, exit codes; and the flag that every command has."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

GROUPS = {
    "Make": ("export", "compile", "grad", "loop", "plan"),
    "Run and compare": ("run", "check", "diff", "bisect", "bench"),
    "Look": ("view", "stats", "explain", "l3ir"),
    "About": ("passes", "ops", "devices", "doctor"),
}

EXAMPLES = {
    "": ("pfvm compile model.onnx -o pfvm.onnx", "pfvm run pfvm.onnx --device xla:cpu"),
    "export": (
        "pfvm export net.py:predict -o model.onnx",
        "pfvm export net.py:predict -o frozen.onnx --freeze --dynamic x:0=batch",
    ),
    "compile": (
        "pfvm compile model.onnx -o pfvm.onnx",
        "pfvm compile model.onnx -o pfvm.onnx --artifacts out --verify",
        "pfvm compile model.onnx --device xla:cpu --explain",
    ),
    "grad": (
        "pfvm grad model.onnx --loss scores --loss-fn cross_entropy -o step.onnx",
        "pfvm grad model.onnx --loss loss --optimizer adamw --lr 0.001 -o step.onnx",
    ),
    "loop": ("pfvm loop step.onnx -k 8 -o loop.onnx", "pfvm loop step.onnx -k 100 -o loop.onnx"),
    "plan": (
        "pfvm plan pfvm.onnx -o plan",
        "pfvm plan pfvm.onnx -o plan --scheduler spill_opt --shape x=8,784",
    ),
    "run": (
        "pfvm run pfvm.onnx",
        "pfvm run pfvm.onnx --device xla:cpu --inputs in.npz --outputs out.npz",
    ),
    "check": (
        "pfvm check model.onnx pfvm.onnx",
        "pfvm check model.onnx --device-b xla:cpu --nodes",
        "pfvm check net.py:predict --device-b mncore2:emu --rtol 0.01 --atol 0.01",
    ),
    "bisect": ("pfvm bisect model.onnx", "pfvm bisect model.onnx --rules my_rules.py -o reproducer"),
    "bench": (
        "pfvm bench pfvm.onnx --device pfvm:cpu --device xla:cpu",
        "pfvm bench pfvm.onnx --device xla:cpu --against onnxruntime --json bench.json",
        "pfvm bench mlp --train --device xla:cpu --against torch",
    ),
    "diff": ("pfvm diff model.onnx pfvm.onnx", "pfvm diff before.onnx after.onnx --json"),
    "view": ("pfvm view out", "pfvm view out/eval out/train", "pfvm view out --export report.html"),
    "stats": ("pfvm stats model.onnx pfvm.onnx", "pfvm stats model.onnx --shape x=8,3,224,224 --json"),
    "explain": ("pfvm explain model.onnx Relu_7", "pfvm explain pfvm.onnx scores"),
    "l3ir": ("pfvm l3ir show plan", "pfvm l3ir diff plan/l3ir.txt other/l3ir.txt"),
    "l3ir show": ("pfvm l3ir show plan", "pfvm l3ir show plan --op Gemm"),
    "l3ir diff": ("pfvm l3ir diff plan other", "pfvm l3ir diff plan other --json"),
    "l3ir check": ("pfvm l3ir check plan", "pfvm l3ir check dump.txt --machine mncore2"),
    "passes": ("pfvm passes", "pfvm passes --json"),
    "ops": ("pfvm ops", "pfvm ops --device xla:cpu --json"),
    "devices": ("pfvm devices", "pfvm devices --json"),
    "doctor": ("pfvm doctor", "pfvm doctor --json > doctor.json"),
}

EXIT_CODES = {
    0: "done",
    1: "found a difference or a fault (check, diff, bisect, doctor, l3ir)",
    2: "an error: one line on stderr says what and where",
    70: "a fault of pfvm itself",
    130: "interrupted",
}


class Commands(TyperGroup):
    """The group of all commands, or a group within it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.epilog = _examples("") + "\n\n" + _exit_codes()
        quiet = next((each for each in self.params if each.name == "quiet"), None)
        if isinstance(quiet, TyperOption):
            self._finish(self, "", quiet)

    def _finish(self, group: TyperGroup, prefix: str, quiet: TyperOption) -> None:
        """Gives each command its examples, and --quiet after its name too."""
        for name, command in group.commands.items():
            full = prefix + name
            command.epilog = _examples(full)
            if isinstance(command, TyperGroup):
                self._finish(command, f"{full} ", quiet)
                continue
            own = copy.copy(quiet)
            own.expose_value = False
            command.params.append(own)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands in their groups, instead of one list."""
        left = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, left))
        for title, names in {**GROUPS, "More": tuple(left)}.items():
            here = [(name, left.pop(name)) for name in names if name in left]
            if here:
                limit = formatter.width - 6 - width
                rows = [(f"{name:<{width}}", command.get_short_help_str(limit)) for name, command in here]
                with formatter.section(title):
                    formatter.write_dl(rows)


class ManyOptions(TyperCommand):
    """A command whose help would not fit a screen: --help names the options of a panel, --help-all describes them.

    A panel is what `typer.Option(rich_help_panel="Title")` says; options without one are always described.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options without a panel, and the panels."""
        parts: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            is_argument = param.param_type_name == "argument"
            title = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
            if param.get_help_record(ctx) is not None:
                parts.setdefault(title, []).append(param)
        short = {} if _HELP_ALL in ctx.meta else {title: parts.pop(title) for title in list(parts)[2:]}
        for title, params in parts.items():
            with formatter.section(title):
                formatter.write_dl([param.get_help_record(ctx) for param in params])
        if short:
            with formatter.section("More, which --help-all describes"):
                for title, params in short.items():
                    formatter.write("".join(f"{line}\n" for line in _named(title, params, formatter)))


_HELP_ALL = "pfvm.help_all"


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_help_all, is_eager=True, help="Describe every option and exit.")
]
"""A parameter of every command of ManyOptions."""


def _named(title: str, params: Iterable[Any], formatter: Any) -> list[str]:
    """The flags of a panel, none of them broken at its hyphens."""
    text = f"{title}: " + ", ".join("/".join((*param.opts, *param.secondary_opts)) for param in params)
    indent = " " * formatter.current_indent
    return textwrap.wrap(
        text, formatter.width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def device_names(incomplete: str) -> list[str]:
    """The devices whose name starts so, for the shell."""
    from pfvm.runtime.device import devices

    return [device.name for device in devices() if device.name.startswith(incomplete)]


def _examples(name: str) -> str:
    lines = EXAMPLES.get(name, ())
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines))) if lines else ""


def _exit_codes() -> str:
    return "\n".join(("\b", "Exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())))
