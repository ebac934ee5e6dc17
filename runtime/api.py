"""pfvm.optimize and pfvm.load: a model in whatever form it comes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import onnx
import onnx_ir as ir
from pfvm.compiler.driver import CompileResult
from pfvm.compiler.driver import compile_source as compile_with
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import Options, parse
from pfvm.errors import InputError, OptionError, short

from .on_demand import evaluate, make_verifier

if TYPE_CHECKING:
    from .device import Device
    from .executable import Executable

Model = TypeVar("Model", str, os.PathLike, onnx.ModelProto, ir.Model)


def optimize(model: Model, **options: Any) -> Model:
    """Compiles a model and returns it in the form in which it came; the argument is not changed.

    model: a path (then `output=` is required, and returned), an onnx.ModelProto, or an onnx_ir.Model.
    options: the fields of pfvm.Options, as on the command line: opt_level=2, disable=["fold-constants"], artifacts=DIR

    Raises InvalidModelError, UnsupportedOpError (an unknown op of ai.onnx), OptionError, and InputError for a model of
    another type; with a path, a failure leaves an existing output as it was.
    """
    if not isinstance(model, (str, os.PathLike, onnx.ModelProto, ir.Model)):
        raise InputError(f"optimize takes a path, a ModelProto or an onnx_ir.Model, got {type(model).__name__}")
    parsed = parse(options, from_python=True)
    if isinstance(model, (str, os.PathLike)) and parsed.output is None:
        raise OptionError("optimize(path) needs output=PATH for the compiled file")
    compiled = compile_source(model, parsed, keep_original=False).model
    result: Any = compiled
    if isinstance(model, onnx.ModelProto):
        result = to_proto(compiled)
    elif isinstance(model, str):
        result = str(parsed.output)
    elif isinstance(model, os.PathLike):
        result = parsed.output
    return result


def compile_source(
    source: Any, options: Options, reports: dict[str, Any] | None = None, *, keep_original: bool = True
) -> CompileResult:
    """Reads a model, compiles it with ONNX Runtime as the folding engine and writes what the options ask for.

    With `options.device`, the compiled model is loaded there first: what the device cannot run is an error. With an
    artifacts directory too, it gets the files that tell what the device's compiler decided (l3ir.txt, report.json, …):
    where that takes a call, the model runs once with made-up inputs, InputError where none fit. `options.device` may
    be a list of topologies (xla:tpu@v5e:1x1,v6e:1x1); then each has a folder there. With `options.export`, the device
    need not be here, and the output is a portable program.

    reports: gets the content of report.json of each topology by the device's name, {"error": …} where it failed.
    keep_original: False where nobody reads `original` of the result, which then may be None: that spares a copy.
    """
    compile_it = functools.partial(
        compile_with,
        source,
        evaluate=evaluate,
        make_verifier=make_verifier,
        finish=_finisher(options),
        keep_original=keep_original,
    )
    if options.device is None:
        return compile_it(options)
    from .device import device_files, load_executable, parse_devices
    from .portable import check_export, export_to
    from .synthesis import parse_shapes, workable
    from .topologies import compile_for_each

    if options.export is not None:
        check_export(options)
        result = compile_it(options.model_copy(update={"output": None}))
        export_to(options, result.model)
        return result
    devices = parse_devices(options.device)
    for device in devices:
        device.require()  # before any work is done
    shapes = parse_shapes(options.shape)

    def accept(model: ir.Model) -> Mapping[str, bytes]:
        given = device_options(options)
        if devices[0].topology is not None:
            found = compile_for_each(model, devices, {**given, "shapes": shapes}, {} if reports is None else reports)
            return {} if options.artifacts is None else found
        executable = load_executable(model, devices[0], **given)
        if options.artifacts is None:
            return {}
        return device_files(executable, devices[0], lambda: workable(model, executable, shapes=shapes))

    return compile_it(options, accept=accept)


def _finisher(options: Options) -> Callable[[ir.Model], tuple[ir.Model, dict[str, Any]]] | None:
    """What puts the compiled model into fewer bits and measures its accuracy; None where nobody asked for it."""
    if options.quantize is None and not options.fp16:
        return None
    from .reduced import finisher

    return finisher(options.quantize or "fp16")


def device_options(options: Options) -> dict[str, Any]:
    """The options of compiling that are the device's, None where they are not given."""
    return {
        "precision": options.precision,
        "bf16": options.bf16 or None,
        "effort": options.effort,
        "timeout": options.timeout,
        "mesh": options.mesh,
        "shard": options.shard or None,
    }


def load(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model,
    device: str | Device = "pfvm:cpu",
    **options: Any,
) -> Executable:
    """Loads a model on a device: `exe({"x": array}) -> {"y": array}`.

    model: a path, the bytes of a file, an onnx.ModelProto or an onnx_ir.Model. It runs as it is; call `optimize` first
        to compile it. Or the folder of a portable program (`pfvm compile --export stablehlo`), for xla devices.
    device: "pfvm:cpu", "xla:cpu" or another of `pfvm.devices()`.
    options of pfvm:cpu:
        threads=N: threads inside an operator; default: one a core.
        spinning=True|False: whether idle threads wait busily; default: ONNX Runtime's choice, which is True.
        custom_ops_library=PATH: shared library with custom operators.
        integer_kernels=True: quantized groups on int8 kernels, faster and a quantization step off here and there.
        optimize=False: the graph exactly as written, without ONNX Runtime's own optimizations.
    options of xla:cpu:
        precision="default"|"high"|"highest": of float32 products, on GPUs and TPUs.
        bf16=True: computes float32 as bfloat16 where that is customary.
        mesh="data=4,model=2": spread over so many devices, which xla:cpu makes by itself: inputs over `data` along
            their batch, weights and state whole on each.
        shard=["linear*.weight=model,None"]: split these over axes of the mesh instead; "auto": the large ones.
        max_compilations=N: how many sets of input shapes may be compiled; default: 64.
        more, on what runs on the host and how shapes are grouped: see pfvm.runtime.xla.executable.XlaExecutable.

    options of xla:tpu@TOPOLOGY, which compiles for a TPU that is not here and runs nothing: precision, bf16;
        effort="fast"; shapes={"x": (1, 3, 224, 224)} where dimensions are open; timeout=SECONDS.

    Raises InvalidModelError, UnsupportedOpError (names the node), OptionError, MissingExtraError, NoDeviceError, and
    InputError for a model of another type.
    """
    if not isinstance(model, (str, os.PathLike, bytes, onnx.ModelProto, ir.Model)):
        raise InputError(f"load takes a path, bytes, a ModelProto or an onnx_ir.Model, not {short(model)}")
    from .device import load_executable, parse_device
    from .portable import is_portable, load_portable

    if is_portable(model):
        assert isinstance(model, (str, os.PathLike))
        return load_portable(model, device, options)
    parse_device(device).require()  # before a large model is read
    return load_executable(read_model(model), device, **options)
