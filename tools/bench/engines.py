"""Inside a candidate's process: the engine as a call without arguments, and its outputs where they have names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pfvm.errors import PfvmError
from pfvm.tools.npz import read_npz

from . import training
from .candidates import Candidate

Call = Callable[[], Any]


class Settings(NamedTuple):
    """What all candidates have alike."""

    model: str
    feeds: str  # .npz
    threads: int
    spinning: bool
    train_steps: int = 0  # in a call; 0: the candidates run a model, not a training step


def prepare(candidate: Candidate, settings: Settings) -> Callable[[], Call]:
    """Reads the inputs. What is returned loads the candidate; a call then runs it once and waits for the results."""
    if settings.train_steps:
        return training.prepare(candidate, settings.threads, settings.spinning, settings.train_steps)
    if candidate.file:
        return lambda: _python_net(candidate, settings.threads)
    feeds = _feeds(settings)
    loaders = {"pfvm": _device, "onnxruntime": _onnxruntime, "as-written": _as_written, "openvino": _openvino}
    return lambda: loaders[candidate.engine](candidate, settings, feeds)


def _feeds(settings: Settings) -> dict[str, Any]:
    from pfvm.compiler.importer import read_model
    from pfvm.runtime.executable import specs_of

    required, optional, _ = specs_of(read_model(settings.model))
    return read_npz(settings.feeds, (*required, *optional))


def _device(candidate: Candidate, settings: Settings, feeds: dict[str, Any]) -> Call:
    from pfvm.compiler.importer import read_model
    from pfvm.runtime.device import load_executable, parse_device

    own = candidate.spread
    if parse_device(candidate.device).backend == "pfvm":
        own = {"threads": settings.threads, "spinning": settings.spinning}
    executable = load_executable(read_model(settings.model), candidate.device, **own)
    return lambda: executable(feeds)


def _onnxruntime(candidate: Candidate, settings: Settings, feeds: dict[str, Any]) -> Call:
    from pfvm.runtime.ort_plain import PlainOrt

    session = PlainOrt(settings.model, settings.threads, settings.spinning)
    return lambda: session(feeds)


def _as_written(candidate: Candidate, settings: Settings, feeds: dict[str, Any]) -> Call:
    """The oracle: ONNX Runtime without any optimization."""
    from pfvm.runtime.ort import OrtExecutable

    session = OrtExecutable(settings.model, threads=settings.threads, optimize=False)
    return lambda: session(feeds)


def _openvino(candidate: Candidate, settings: Settings, feeds: dict[str, Any]) -> Call:
    openvino = importlib.import_module("openvino")
    compiled = openvino.Core().compile_model(settings.model, "CPU", {"INFERENCE_NUM_THREADS": settings.threads})

    def call() -> dict[str, Any]:
        results = compiled(feeds)
        return {output.get_any_name(): results[output] for output in compiled.outputs}

    return call


def _python_net(candidate: Candidate, threads: int) -> Call:
    """FILE.py with FUNCTION() → (fn, params, inputs): the call is fn(params, inputs), compiled as its author likes.

    With torch also (module, inputs): the call is module(inputs), in eager mode and without gradients.
    """
    path = Path(candidate.file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PfvmError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    build = getattr(module, candidate.function, None)
    if build is None:
        raise PfvmError(f"{path.name} has no function {candidate.function!r}")
    torch = importlib.import_module("torch") if candidate.engine == "torch" else None
    if torch is not None:
        torch.set_num_threads(threads)
    built = build(candidate.argument) if candidate.argument else build()
    if torch is not None and isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module):
        module, x = built[0].eval(), built[1]
        return torch.inference_mode()(lambda: module(x))
    if not isinstance(built, tuple) or len(built) != 3:
        raise PfvmError(f"{candidate.function}() must return (fn, params, inputs), not {type(built).__name__}")
    fn, params, inputs = built
    return lambda: wait(fn(params, inputs))


def wait(value: Any) -> Any:
    """Waits for results that are still being computed (jax's arrays), inside tuples, lists and dicts."""
    if isinstance(value, dict):
        for each in value.values():
            wait(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            wait(each)
    elif hasattr(value, "block_until_ready"):
        value.block_until_ready()
    return value
