"""The `pfvm` command: flags and exit codes. What a command does lives in the module of its name.

Nothing heavy is imported here: `pfvm --help` loads neither torch nor jax nor onnxruntime.
Exit codes, groups of commands and examples: tools/help.py.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pfvm.compiler import progress
from pfvm.errors import OptionError, PfvmError

from . import console, startup
from .bench.flags import bench
from .bisection import bisect
from .compile import compile_command
from .diff import diff
from .doctor import doctor
from .explain import explain
from .help import Commands, ManyOptions, device_names
from .l3ir import app as l3ir_app
from .loop import loop
from .plan import plan as plan_command
from .stats import stats

app = typer.Typer(
    name="pfvm",
    cls=Commands,
    context_settings={"max_content_width": 120},
    help="An ONNX graph compiler: any ONNX file or PyTorch function in, one smaller and equal graph out.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(l3ir_app, name="l3ir")

Model = Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)]
Exact = Annotated[bool, typer.Option("--exact", help="Of mncore2:emu: without rounding.")]
Shapes = Annotated[list[str], typer.Option("--shape", help="Shape of an input: x=1,3,224,224. Repeatable.")]
Device = Annotated[str, typer.Option("--device", help="See `pfvm devices`.", autocompletion=device_names)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Mesh = Annotated[
    str | None, typer.Option("--mesh", help="Of xla devices: several, data=4,model=2; the batch is split over data.")
]
Shard = Annotated[
    list[str], typer.Option("--shard", help="With --mesh: split weights, 'linear*.weight=model,None', or auto.")
]
CustomOps = Annotated[Path | None, typer.Option("--custom-ops-lib", help="Custom operators for ONNX Runtime.")]


_COLLECT_EVERY = 1_000_000
"""Allocations between two collections; Python's own is 700, which costs a tenth of the start."""


def _version(wanted: bool) -> None:
    if wanted:
        from pfvm import __version__

        print(f"pfvm {__version__}")
        raise typer.Exit


def _quiet(wanted: bool) -> None:
    if wanted:
        console.set_quiet(True)


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", callback=_quiet, is_eager=True, help="Print errors only, and JSON.")
    ] = False,
) -> None:
    """The options of the command itself."""


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="FILE.py:FUNCTION", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", show_default=False)],
    sample: Annotated[
        str, typer.Option("--sample", help="Name in the file of the example inputs, or of a function that makes them.")
    ] = "sample",
    freeze: Annotated[
        bool | None,
        typer.Option(
            "--freeze/--no-freeze",
            help="Weights as constants, or as inputs with a default. Default: constants for an nn.Module.",
            show_default=False,
        ),
    ] = None,
    dynamic: Annotated[
        list[str], typer.Option("--dynamic", help="Leave a dimension open: x:0=batch for the first of x. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
) -> None:
    """Translate a PyTorch function to ONNX, one to one."""
    from .export import export as run_export
    from .working import working

    with working(f"capturing {target}"):
        line = run_export(target, output, sample, freeze, dynamic)
    progress.remark(line)


app.command(name="compile", cls=ManyOptions)(compile_command)


@app.command()
def grad(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", show_default=False)],
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss", help="The output that is the loss, or that --loss-fn is applied to.", show_default=False
        ),
    ] = None,
    loss_fn: Annotated[
        str | None,
        typer.Option(
            "--loss-fn", help="cross_entropy or mse, of the output and a new input, target.", show_default=False
        ),
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, momentum, adam or adamw.")] = "sgd",
    lr: Annotated[float | None, typer.Option("--lr", help="Default of the input lr: 0.001 unless given.")] = None,
    momentum: Annotated[float, typer.Option("--momentum")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="For --optimizer momentum.")] = False,
    weight_decay: Annotated[
        float | None, typer.Option("--weight-decay", help="Default: 0; adamw: 0.01.", show_default=False)
    ] = None,
    beta1: Annotated[float, typer.Option("--beta1")] = 0.9,
    beta2: Annotated[float, typer.Option("--beta2")] = 0.999,
    eps: Annotated[float, typer.Option("--eps")] = 1e-8,
    params: Annotated[
        list[str], typer.Option("--params", help="Train the constants of this name; * matches anything. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    freeze: Annotated[list[str], typer.Option("--freeze", help="Do not train those of this name. Repeatable.")] = [],  # noqa: B006
    class_axis: Annotated[int, typer.Option("--class-axis", help="Of the output, for cross_entropy.")] = 1,
    shape: Shapes = [],  # noqa: B006
) -> None:
    """Make a training step from an inference model.

    Forward, backward and optimizer are one ONNX file; `pfvm loop` makes several steps of it.
    """
    from .grad import grad as make_step
    from .working import working

    settings = {
        "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
        "beta1": beta1, "beta2": beta2, "eps": eps,
    }  # fmt: skip
    with working(f"differentiating {model}"):
        line = make_step(model, output, shape, settings, loss=loss, loss_fn=loss_fn, optimizer=optimizer, params=params,
                         freeze=freeze, class_axis=class_axis)  # fmt: skip
    progress.remark(line)


app.command()(loop)
app.command(name="plan")(plan_command)


@app.command()
def run(
    model: Annotated[
        Path, typer.Argument(help="ONNX file, or a folder that --export stablehlo wrote.", show_default=False)
    ],
    device: Device = "pfvm:cpu",
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz with an array per input.")] = None,
    outputs: Annotated[Path | None, typer.Option("--outputs", help=".npz to write the outputs to.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of made-up inputs.")] = 0,
    shape: Shapes = [],  # noqa: B006 - typer copies it
    custom_ops_lib: CustomOps = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Of pfvm:cpu. Default: one a core.")] = None,
    max_compilations: Annotated[
        int | None, typer.Option("--max-compilations", min=1, help="Of xla devices: different shapes at most.")
    ] = None,
    bucket: Annotated[
        list[str], typer.Option("--bucket", help="Of xla devices: pad this dimension, batch=1,8,32. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    exact: Exact = False,
    mesh: Mesh = None,
    shard: Shard = [],  # noqa: B006
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="So many calls, each on the state that the last one left.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Run a model once, with given or made-up inputs."""
    from .run import run as run_model

    options = {
        "custom_ops_library": custom_ops_lib, "threads": threads, "max_compilations": max_compilations,
        "exact": exact or None, "mesh": mesh, "shard": shard or None,
    }  # fmt: skip
    run_model(model, device, inputs, outputs, seed, shape, options, bucket, as_json, steps)


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="ONNX file, or FILE.py:FUNCTION of PyTorch.", show_default=False)],
    other: Annotated[Path | None, typer.Argument(help="The model to compare with; the same one by default.")] = None,
    device_a: Annotated[
        str,
        typer.Option(
            "--device-a",
            help="Where the first one runs; oracle is ONNX Runtime without optimizations, on one thread.",
            autocompletion=device_names,
        ),
    ] = "oracle",
    device_b: Annotated[
        str, typer.Option("--device-b", help="Where the second one runs.", autocompletion=device_names)
    ] = "oracle",
    rtol: Annotated[
        float, typer.Option("--rtol", min=0, help="Allowed error of a float, as a part of its own size.")
    ] = 1e-3,
    atol: Annotated[
        float,
        typer.Option("--atol", min=0, help="Allowed on top, as a part of max(1, the output's largest float)."),
    ] = 1e-5,
    nodes: Annotated[bool, typer.Option("--nodes", help="Find the first node that differs.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Of pfvm:cpu. Default: 1, as the oracle.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz to use instead of made-up inputs.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first of three seeds of made-up inputs.")] = 0,
    shape: Shapes = [],  # noqa: B006 - typer copies it
    custom_ops_lib: CustomOps = None,
    sample: Annotated[str, typer.Option("--sample", help="Of a function: its example inputs in the file.")] = "sample",
    exact: Exact = False,
    mesh: Mesh = None,
    shard: Shard = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Tell whether two models are equal; exit with 1 if not.

    Or one model on two devices, or a PyTorch function and its graph.

    With --nodes on mncore2:emu, every step from PyTorch to the emulator's rounding is compared value by value.
    """
    from .check import check_files
    from .report import print_check
    from .working import working

    with working(f"checking {model}"):
        report = check_files(
            model, other, device_a, device_b, rtol, atol, nodes, inputs, seed, shape, custom_ops_lib, threads, sample,
            exact, mesh, shard,
        )  # fmt: skip
    print_check(report, as_json)
    if not report.equal:
        raise typer.Exit(1)


app.command(cls=ManyOptions)(bench)
app.command()(explain)
app.command()(stats)
app.command()(diff)
app.command()(bisect)


@app.command()
def passes(as_json: AsJson = False) -> None:
    """List the passes and their options."""
    from .listing import print_passes

    print_passes(as_json)


@app.command()
def ops(device: Device = "pfvm:cpu", as_json: AsJson = False) -> None:
    """List the operators that a device runs."""
    from .listing import print_ops

    print_ops(device, as_json)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """List the devices, and what to install for those that are missing."""
    from .listing import print_devices

    print_devices(as_json)


app.command()(doctor)


@app.command()
def view(
    paths: Annotated[list[Path], typer.Argument(help="Files, or artifacts directories.", show_default=False)],
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write one HTML file that needs nothing else, without drawings.")
    ] = None,
) -> None:
    """Show stages, passes, plan, figures and log in one local page."""
    from .view.command import view as run_view

    run_view(paths, browser, export)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits with its code.

    What imports and graphs allocate is no garbage: it is looked through seldom, and not once more at the end.
    """
    gc.set_threshold(_COLLECT_EVERY)
    startup.defer_sympy()
    console.any_encoding()
    code = run_command(arguments)
    gc.freeze()
    sys.exit(code)


def run_command(arguments: list[str] | None = None) -> int:
    """Runs the command; errors become one line on stderr and an exit code. PFVM_DEBUG=1 shows tracebacks."""
    debug = os.environ.get("PFVM_DEBUG", "0") not in ("", "0")
    if not debug:  # what libraries log and warn of ends up in our own message, or is not the user's to act on
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
        warnings.simplefilter("ignore")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        _refuse_empty(given)
        status = _status(app(given or ["--help"], standalone_mode=False))
        console.flush()
        return status if given else 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except PfvmError as error:
        _report(error, str(error), debug)
        return 2
    except BrokenPipeError:  # `pfvm ops | head`
        console.drop_output()
        return 0
    except OSError as error:  # a name that is too long; without a file's name: a full disk below stdout
        if error.filename is None:
            console.drop_output()
        unnamed = "the current directory" if error.errno == errno.ENOENT else "cannot write the output"
        _report(error, f"{error.filename or unnamed}: {error.strerror or error}", debug)
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of typer's
            _report(error, error.format_message(), debug)
            return 2
        traceback.print_exc()
        print("error: this is a fault of pfvm itself; please report it with the lines above", file=sys.stderr)
        return 70
    finally:
        console.set_quiet(False)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """`-o "$UNSET"` would be the current directory. Raises OptionError."""
    for flag, argument in zip(["pfvm", *arguments], arguments):
        if not argument or (argument.startswith("--") and argument.find("=") == len(argument) - 1):
            raise OptionError(f"nothing is given after {argument.rstrip('=') or flag!r}: an empty shell variable?")


def _status(result: Any) -> int:
    return result if isinstance(result, int) else 0


def _report(error: Exception, message: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print("error: " + " ".join(message.split()), file=sys.stderr)
