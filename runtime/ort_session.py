"""ONNX Runtime sessions, pinned so that they never trade accuracy for speed silently."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from pfvm.errors import NoDeviceError, OptionError, UnsupportedOpError, short

from .ort_errors import load_error
from .ort_expand.expander import expand as expand_model
from .ort_expand.expander import needs_expansion, without_unsafe
from .ort_expand.rules import UNSAFE_MARKS
from .ort_model import external_folder, large_initializers, serialize
from .ort_values import to_ort

if TYPE_CHECKING:
    import onnxruntime

# Optimizers that compute something else than the model says; a test shows each of them failing when it is on.
DISABLED_OPTIMIZERS = (
    "MatmulTransposeFusion",  # Transpose → MatMul with a 1-D right side: FusedMatMul ignores the transposition
    "AttentionFusion",  # takes every mask value but 0 for 1, where the graph computes (1 - mask) * -10000
)
_MOST_THREADS = 4096  # ONNX Runtime starts as many as it is told, however long that takes
_CUDA = "CUDAExecutionProvider"
# QDQ groups become integer kernels: results move by a quantization step. Off unless asked for.
_INTEGER_KERNELS = "QDQSelectorActionTransformer"

SESSION_CONFIG = {
    # With integer kernels, DequantizeLinear → MatMul becomes MatMulNBits, whose default level 4 rounds the activations
    # to int8, which the model never said. 1 = float32.
    "session.qdq_matmulnbits_accuracy_level": "1",
}


def session_options(
    *,
    threads: int | None = None,
    custom_ops_library: str | os.PathLike[str] | None = None,
    optimize: bool = True,
    spinning: bool | None = None,
) -> onnxruntime.SessionOptions:
    """Session options with everything pinned that could change results. Raises OptionError."""
    import onnxruntime

    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise OptionError(f"threads must be at least 1, not {short(threads)}")
    if threads is not None and threads > _MOST_THREADS:
        raise OptionError(f"threads must be at most {_MOST_THREADS}, not {threads}: each is started")
    if custom_ops_library is not None and not isinstance(custom_ops_library, (str, os.PathLike)):
        raise OptionError(f"custom_ops_library is a file's path, not {short(custom_ops_library)}")
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors arrive as exceptions; ORT's own lines on stderr would repeat them
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    for key, value in SESSION_CONFIG.items():
        options.add_session_config_entry(key, value)
    set_spinning(options, spinning)
    if custom_ops_library is not None:
        _register(options, os.fspath(custom_ops_library))
    return options


def set_spinning(options: onnxruntime.SessionOptions, spinning: bool | None) -> None:
    """Whether idle threads wait busily for work. None leaves it to ONNX Runtime, which spins."""
    if spinning is not None:
        for pool in ("intra", "inter"):
            options.add_session_config_entry(f"session.{pool}_op.allow_spinning", str(int(spinning)))


def _register(options: onnxruntime.SessionOptions, library: str) -> None:
    if not os.path.isfile(library):
        raise OptionError(f"custom operator library {library!r} does not exist")
    try:
        options.register_custom_ops_library(os.path.abspath(library))
    except Exception as error:
        raise OptionError(f"{library!r} is not a custom operator library for ONNX Runtime: {error}") from error


def open_session(
    model: ir.Model | str | os.PathLike[str] | bytes,
    options: onnxruntime.SessionOptions,
    integer_kernels: bool,
    device: str,
    expand: bool = False,
) -> tuple[onnxruntime.InferenceSession, list[onnxruntime.OrtValue]]:
    """The session, and the memory that it borrows. Raises what a pfvm error says best (see `load_error`).

    expand: replace what ONNX Runtime has no kernel for, in what it is given to load; `model` itself is not changed.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    memory: list[onnxruntime.OrtValue] = []
    source: str | bytes
    if isinstance(model, ir.Model):
        shared = large_initializers(model)
        memory = [to_ort(tensor.numpy()) for tensor in shared.values()]
        if shared:
            options.add_external_initializers(list(shared), memory)
        folder = external_folder(model)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        source = serialize(model, shared)
    else:
        source = model if isinstance(model, bytes) else os.fspath(model)
    providers = _providers(device)
    disabled = [*DISABLED_OPTIMIZERS, *([] if integer_kernels else [_INTEGER_KERNELS])]

    def create(data: str | bytes) -> onnxruntime.InferenceSession:
        try:
            session = onnxruntime.InferenceSession(data, options, providers=providers, disabled_optimizers=disabled)
            _check_provider(session.get_providers(), device)
            return session
        except NoDeviceError:
            raise
        except Exception as error:
            raise load_error(error, model if isinstance(model, ir.Model) else None, device) from error

    if not isinstance(source, bytes):
        return create(source), memory
    if not expand:
        if isinstance(model, ir.Model) and any(mark.encode() in source for mark in UNSAFE_MARKS):
            source = without_unsafe(onnx.ModelProto.FromString(source)).SerializeToString()
        return create(source), memory
    return _create_expanded(source, create), memory


def run_values(
    session: onnxruntime.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, onnxruntime.OrtValue]
) -> list[onnxruntime.OrtValue]:
    """What session.run_with_ort_values does, for feeds that are known to fit.

    Its checks of every name and value take longer than the rest of a call: 45 → 8 µs with 8 values, 150 → 40 with 60.
    """
    import onnxruntime

    native = session._sess.run_with_ort_values({name: v._ortvalue for name, v in feeds.items()}, list(outputs), None)
    # By index: its iterator takes 11 µs for each value.
    return [onnxruntime.OrtValue(native[i]) for i in range(len(outputs))]


def _providers(device: str) -> list[str | tuple[str, dict[str, str]]]:
    """ONNX Runtime's name for where a device runs, the CPU last. Raises NoDeviceError for a build without CUDA."""
    import onnxruntime

    if device == "pfvm:cpu":
        return ["CPUExecutionProvider"]
    _check_provider(onnxruntime.get_available_providers(), device)
    # TF32 would round the operands of float32 products to 10 bits.
    return [(_CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"]


def _check_provider(providers: Sequence[str], device: str) -> None:
    """ONNX Runtime falls back to the CPU where it finds no GPU; a user who asked for one should know."""
    if device == "pfvm:cuda" and _CUDA not in providers:
        raise NoDeviceError(
            f"device {device} is not here: ONNX Runtime has {', '.join(providers)}; it needs an NVIDIA GPU with its "
            "driver, and onnxruntime-gpu in the place of onnxruntime: pip uninstall onnxruntime && "
            "pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )


def _create_expanded(
    source: bytes, create: Callable[[bytes], onnxruntime.InferenceSession]
) -> onnxruntime.InferenceSession:
    """A model that ONNX Runtime runs is loaded as it is. Its operators tell most of the others; types tell the rest."""
    proto = onnx.ModelProto.FromString(source)
    if needs_expansion(proto):
        expanded = expand_model(proto)
        return create(source if expanded is None else expanded.SerializeToString())
    try:
        return create(source)
    except UnsupportedOpError:
        expanded = expand_model(proto)
        if expanded is None:
            raise
    return create(expanded.SerializeToString())
