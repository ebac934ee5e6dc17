"""The flags of `pfvm bench`. Nothing heavy is imported before it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pfvm.errors import OptionError
from pfvm.tools.help import HelpAll

# The panels of --help-all.
_TRAIN, _PLAN, _OPTIMIZERS = "With --train", "With --plan", "With --optimizers"
_MESH, _TURNS = "On several devices", "Inputs and turns"

_ENGINES = ("device", "against", "json_file", "plot_file", "threads", "rounds", "seconds", "timeout", "shape", "seed",
            "spinning", "mesh", "shard")  # fmt: skip
# What each kind of measurement reads, besides the models.
_READ = {
    "plans": ("json_file", "plot_file", "shape", "target", "search_steps", "seed"),
    "optimizers": ("peers_python", "runs", "json_file", "plot_file", "rounds", "seconds", "timeout", "shape", "seed"),
    "tpu": ("json_file", "timeout"),
    "train": (*_ENGINES, "steps_per_call"),
}

Shapes = Annotated[list[str], typer.Option("--shape", help="Shape of an input: x=1,3,224,224. Repeatable.")]


def bench(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(help="ONNX files; with --train, --optimizers or --tpu, see there.", show_default=False),
    ] = [],  # noqa: B006 - typer copies it
    device: Annotated[list[str], typer.Option("--device", help="See `pfvm devices`. Repeatable.")] = ["pfvm:cpu"],  # noqa: B006
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Measure training steps: mlp, small, transformer, resnet18, or FILE.py like those in "
            "tools/bench/baselines; mlp:50: 50 steps in one call; capture: the time to capture a GPT's step.",
        ),
    ] = False,
    steps_per_call: Annotated[
        int,
        typer.Option(
            "--steps-per-call",
            help="With --train: steps in one call, where a yardstick has no :K.",
            rich_help_panel=_TRAIN,
        ),
    ] = 1,
    plans: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Compare schedulers on ONNX files, or on the graphs() of a Python file: cycles where 1.5 times as "
            "much is alive as fits.",
        ),
    ] = False,
    target: Annotated[
        str, typer.Option("--machine", help="With --plan: a machine, or its file.", rich_help_panel=_PLAN)
    ] = "mncore2",
    search_steps: Annotated[
        int, typer.Option("--search-steps", help="With --plan: of auto_recompute_sa.", rich_help_panel=_PLAN)
    ] = 1000,
    optimizers: Annotated[
        bool,
        typer.Option(
            "--optimizers",
            help="Compare with onnxsim, OnnxSlim, onnxoptimizer and onnxscript: time, nodes left, latency of the "
            "result, correctness; on ONNX files, nets (eight of ours, or one by its name) and chain (1,000 to 64,000 "
            "nodes); without a name on nets and chain.",
        ),
    ] = False,
    tpu: Annotated[
        bool,
        typer.Option(
            "--tpu",
            help="Compare cycles on TPUs by their compiler's estimate: resnet50, bert and vgg19 (forward, and with "
            "backward; all without a name) from ONNX files, and by hand in JAX.",
        ),
    ] = False,
    peers_python: Annotated[
        Path | None,
        typer.Option(
            "--peers-python", help="With --optimizers: the Python that has the others.", rich_help_panel=_OPTIMIZERS
        ),
    ] = None,
    runs: Annotated[
        int,
        typer.Option(
            "--runs", help="With --optimizers: of each of them on a file.", min=1, rich_help_panel=_OPTIMIZERS
        ),
    ] = 3,
    against: Annotated[
        list[str],
        typer.Option(
            "--against",
            help="onnxruntime, openvino, jax:FILE.py[:FUNCTION], torch:FILE.py:FUNCTION[:ARGUMENT]; a,b. {model} in a "
            "name is each model's file name without its ending. With --train: torch, torch.compile or jax.",
        ),
    ] = [],  # noqa: B006
    mesh: Annotated[
        list[str],
        typer.Option(
            "--mesh",
            help="Also measure xla devices on this mesh, data=2 or data=2,model=2. Repeatable.",
            rich_help_panel=_MESH,
        ),
    ] = [],  # noqa: B006
    shard: Annotated[
        list[str],
        typer.Option(
            "--shard", help="With --mesh: split weights, 'linear*.weight=model,None', or auto.", rich_help_panel=_MESH
        ),
    ] = [],  # noqa: B006
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all figures.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="SVG file for a bar chart.")] = None,
    threads: Annotated[
        list[int], typer.Option("--threads", help="Of every candidate, pinned to as many cores. Repeatable.")
    ] = [1],  # noqa: B006
    rounds: Annotated[
        int, typer.Option("--rounds", help="Turns of each candidate, at least 5.", rich_help_panel=_TURNS)
    ] = 7,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of a turn.", rich_help_panel=_TURNS)] = 0.5,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            help="Seconds for loading, and for a turn: 600; with --optimizers, of processor time for a file: 100; with "
            "--tpu, of the compiler: 3600.",
            rich_help_panel=_TURNS,
        ),
    ] = None,
    shape: Shapes = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option("--seed", help="Of made-up inputs.", rich_help_panel=_TURNS)] = 0,
    spinning: Annotated[
        bool,
        typer.Option("--spinning/--no-spinning", help="Let ONNX Runtime's idle threads spin.", rich_help_panel=_TURNS),
    ] = False,
    help_all: HelpAll = False,
) -> None:
    """Measure models on devices and in other engines.

    One process each, in turns. --plan takes --shape, --seed, --json and --plot; --optimizers these, --rounds, --seconds
    and --timeout; --tpu --json and --timeout.
    """
    from .command import Request
    from .command import bench as run_bench

    command = ["pfvm", *sys.argv[1:]]
    _refuse_unread(ctx)
    _check_files(json_file, plot_file)
    if plans:
        from .plans import PlanRequest, bench_plans

        bench_plans(PlanRequest(models, json_file, plot_file, shape, target, search_steps, seed, command))
        return
    if optimizers:
        from .optimizers.command import OptimizersRequest, bench_optimizers

        bench_optimizers(
            OptimizersRequest(models, peers_python, json_file, plot_file, rounds, seconds, timeout or 100.0, shape,
                              seed, command, runs=runs)
        )  # fmt: skip
        return
    if tpu:
        from .tpu import TpuRequest, bench_tpu

        bench_tpu(TpuRequest(models, json_file, timeout=timeout or 3600.0, command=command))
        return
    if not models:
        raise OptionError("bench: name a model")
    run_bench(
        Request(models, device, against, json_file, threads, rounds, seconds, timeout or 600.0, shape, seed, spinning,
                command, plot_file, train, steps_per_call, mesh, shard)
    )  # fmt: skip


def _refuse_unread(ctx: typer.Context) -> None:
    """Raises OptionError for a flag that would change nothing."""
    flags = {param.name or "": param.opts[0] for param in ctx.command.params}
    given = [name for name in flags if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    kind = next((each for each in _READ if each in given), None)
    read = {"models", "quiet", kind, *(_ENGINES if kind is None else _READ[kind])}
    unread = [name for name in given if name not in read]
    if unread and kind:
        which = ", ".join(flags[name] for name in unread)
        raise OptionError(f"bench: {which} changes nothing with {flags[kind]}; leave it out")
    for name in unread:
        readers = " or ".join(flags[each] for each, names in _READ.items() if name in names)
        raise OptionError(f"bench: {flags[name]} changes nothing without {readers}; leave it out")


def _check_files(json_file: Path | None, plot_file: Path | None) -> None:
    """Raises OptionError for a file that could not be written, before what may take hours."""
    for option, file in (("--json", json_file), ("--plot", plot_file)):
        if file is not None and not file.absolute().parent.is_dir():
            raise OptionError(f"{option} {file}: no such folder")
    if plot_file is not None and plot_file.suffix != ".svg":
        raise OptionError(f"--plot {plot_file}: the chart is an SVG file: give it a name that ends in .svg")
