"""`pfvm compile`: the flags of the one schema of options (compiler/options.py)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pfvm.errors import OptionError

from .help import HelpAll
from .sources import keep

_FILE, _DEVICE = "The file", "The device"  # panels of --help-all


def compile_command(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file to write.")] = None,
    artifacts: Annotated[
        Path | None, typer.Option("--artifacts", "--codegen-dir", help="Folder for every stage and passes.json.")
    ] = None,
    opt_level: Annotated[
        int | None,
        typer.Option(
            "-O",
            "--opt-level",
            min=0,
            max=3,
            help="0 no pass at all; 1 fold constants, drop what is dead or does nothing; 2 every pass (the default); "
            "3 as 2 for now.",
        ),
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--pass",
            help="Also run PASS, or run it with options: PASS{option=value}; -O0 -p PASS runs it alone. Repeatable; "
            "`pfvm passes` lists them.",
        ),
    ] = None,
    disable: Annotated[list[str] | None, typer.Option("--disable", help="Do not run PASS. Repeatable.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Write for one runtime alone: ort.")] = None,
    option_json: Annotated[
        Path | None,
        typer.Option("--option-json", help='File of options: {"args": ["--flag=value"]}.', rich_help_panel=_FILE),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            "--opset", help="Convert to this opset of ai.onnx first; not all operators can.", rich_help_panel=_FILE
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the model after every pass and compare with the original.")
    ] = False,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Weights in a file beside the model.", rich_help_panel=_FILE)
    ] = False,
    safetensors: Annotated[
        bool,
        typer.Option("--safetensors", help="Weights in a safetensors file beside the model.", rich_help_panel=_FILE),
    ] = False,
    max_growth: Annotated[
        int | None,
        typer.Option(
            "--max-growth",
            help="Bytes that folding may add to the model; default: 1 KiB a result, 1 MiB in all.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    fused_ops: Annotated[
        str | None,
        typer.Option(
            "--fused-ops",
            help="What a fused node is: function, a call of a function in the file (the default), or inline, left "
            "unfused in standard operators.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option("--quantize", help="dynamic-int8: int8 weights.", rich_help_panel=_FILE)
    ] = None,
    fp16: Annotated[
        bool, typer.Option("--fp16", help="float16 inside; prints the accuracy.", rich_help_panel=_FILE)
    ] = False,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", help="Python file of rules of your own. Repeatable."),
    ] = None,
    strip_provenance: Annotated[
        bool,
        typer.Option(
            "--strip-provenance", help="Leave out which rule made a node, and of what.", rich_help_panel=_FILE
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="Also load it there: what it cannot run is an error. xla:tpu@v5e:1x1,v6e:1x1 compares TPUs that are "
            "not here.",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", help="Shape of an input on the device: x=1,3,224,224. Repeatable.", rich_help_panel=_DEVICE
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="Of float32 products on a GPU or TPU: default (on a TPU of bfloat16 operands), high or highest "
            "(float32, the default of a GPU).",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    bf16: Annotated[
        bool,
        typer.Option(
            "--bf16",
            help="On an xla device: bfloat16 for products and what stands between them; state stays float32.",
            rich_help_panel=_DEVICE,
        ),
    ] = False,
    effort: Annotated[
        str | None,
        typer.Option(
            "--effort",
            help="For xla:tpu@TOPOLOGY: full (the default), or fast for a first look.",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="For xla:tpu@TOPOLOGY: seconds that the compiler may take.", rich_help_panel=_DEVICE
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            help="stablehlo: write a program that xla:cpu, xla:cuda and xla:tpu run without the ONNX file, to the "
            "folder -o. See `pfvm run`.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what runs where on the device, and why.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a line: nodes, bytes, passes.")
    ] = False,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            help="Of xla devices: spread it over several, data=4,model=2; the batch over data.",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option(
            "--shard",
            help="With --mesh: split weights, 'linear*.weight=model,None', or auto. Repeatable.",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="Not built yet.", hidden=True)] = None,
    help_all: HelpAll = False,
) -> None:
    """Compile a model: the same signature and meaning, fewer nodes."""
    given = {
        k: v for k, v in locals().items() if k not in ("model", "option_json", "as_json") and v not in (None, False)
    }
    from pfvm.compiler.options import parse
    from pfvm.runtime.api import compile_source

    from .console import is_quiet
    from .report import print_compiled
    from .working import working

    placeholders = {} if artifacts is None else {"codegen_dir": str(artifacts)}
    options = parse(option_json, placeholders=placeholders, **given)
    written = [str(path) for path in (options.output, options.artifacts) if path is not None]
    is_estimate = "@" in (options.device or "")
    if not written and not options.explain and not is_estimate:
        raise OptionError("nothing would be written: give -o FILE or --artifacts DIR")
    keep("-o", options.output, [option_json, *map(Path, rules or ())])
    start = time.perf_counter()
    reports: dict[str, Any] = {}
    with working(f"compiling {model}"):
        result = compile_source(model, options, reports, keep_original=as_json or not is_quiet())
    seconds = time.perf_counter() - start
    device = options.device if options.explain else None
    if as_json:
        from .segments import segments

        found = None if device is None else segments(result.model, device)
        print_compiled(result, seconds, written, as_json, reports, found)
        return
    print_compiled(result, seconds, written, reports=reports)
    if reports:
        from .topologies import print_topologies

        print_topologies(reports)
    if device is not None:
        from .segments import print_segments

        print_segments(result.model, device)
