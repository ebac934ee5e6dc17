"""`pfvm bench --train`: a training step on devices, in PyTorch and by hand in JAX. Yardsticks: see train_steps.py."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pfvm.errors import OptionError, PfvmError
from pfvm.runtime.device import parse_device

from .candidates import Candidate, on_devices

Call = Callable[[], Any]

# Measures no step but how long it takes to capture one: see capture.py.
CAPTURE = "capture"
_ENGINES = {"torch": "torch", "torch.compile": "torch", "jax": "jax"}
_FOLDER = Path(__file__).parent / "baselines"


class Yardstick(NamedTuple):
    """A step that is measured, and how many of them are one call."""

    file: Path
    steps: int

    @property
    def title(self) -> str:
        """The name of its table."""
        return f"training {self.file.stem.removeprefix('train_')}" + (
            f", {self.steps} steps a call" if self.steps > 1 else ""
        )


def yardsticks(names: Sequence[str], steps: int) -> list[Yardstick]:
    """NAME, or NAME:K for K steps a call instead of `steps`. Raises OptionError."""
    found = []
    for text in names:
        name, _, count = text.rpartition(":")
        given = bool(name) and count.isdecimal()
        if given and int(count) < 1:
            raise OptionError(f"--train {text}: at least one step a call")
        found.append(Yardstick(yardstick(name), int(count)) if given else Yardstick(yardstick(text), steps))
    return found


def yardstick(name: str) -> Path:
    """The file of a yardstick: one of ours by its name ("mlp"), or a Python file. Raises OptionError."""
    own = _FOLDER / f"train_{name}.py"
    if own.is_file() and name != "steps":
        return own
    if name.endswith(".py") and Path(name).is_file():
        return Path(name)
    known = sorted(
        file.stem.removeprefix("train_") for file in _FOLDER.glob("train_*.py") if file.stem != "train_steps"
    )
    listed = ", ".join([*known, CAPTURE])
    raise OptionError(f"--train {name}: no such yardstick; there are {listed}, and files FILE.py like them")


def candidates(
    file: Path,
    devices: Sequence[str],
    against: Sequence[str],
    meshes: Sequence[str] = (),
    shard: Sequence[str] = (),
) -> list[Candidate]:
    """Devices first, in the order given. Raises OptionError, and what a device that is not there raises."""
    found = on_devices(devices, meshes, shard, str(file))
    for text in (part for each in against for part in each.split(",")):
        package = _ENGINES.get(text)
        if package is None:
            raise OptionError(f"--against {text!r}: with --train expected one of {', '.join(_ENGINES)}")
        if importlib.util.find_spec(package) is None:
            raise PfvmError(f"--against {text} needs the package {package!r}: pip install {package}")
        found.append(Candidate(text, package, str(file)))
    names = [candidate.name for candidate in found]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise OptionError(f"bench: {repeated!r} is given twice")
    return found


def prepare(candidate: Candidate, threads: int, spinning: bool, steps: int) -> Callable[[], Call]:
    """What is returned loads the candidate; a call runs `steps` steps and returns {"loss"}, float32[steps]."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module = _load(Path(candidate.file))
    batch = module.batch()
    many = {name: np.stack([value] * steps) for name, value in batch.items()}
    if candidate.name == "jax":
        model, _ = module.torch_step()
        weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        return lambda: _in_jax(module.jax_step(weights), batch if steps == 1 else many, steps)
    if candidate.engine == "torch":
        return lambda: _in_torch(module, batch, steps, candidate.name == "torch.compile")
    return lambda: _on_device(module, candidate, batch if steps == 1 else many, batch, threads, spinning, steps)


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise PfvmError(f"cannot import {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _on_device(
    module: ModuleType,
    candidate: Candidate,
    given: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    threads: int,
    spinning: bool,
    steps: int,
) -> Call:
    from pfvm.runtime.compiled import compile as pfvm_compile

    torch = importlib.import_module("torch")
    _, step = module.torch_step()
    device = candidate.device
    pinned = {"threads": threads, "spinning": spinning}
    own = pinned if parse_device(device).backend == "pfvm" else candidate.spread
    per_call = None if steps == 1 else steps
    compiled = pfvm_compile(step, _tensors(batch), device=device, steps_per_call=per_call, device_options=own)
    inputs = _tensors(given)

    def call() -> dict[str, np.ndarray]:
        return {"loss": torch.atleast_1d(compiled(inputs)["loss"]).numpy()}

    return call


def _in_torch(module: ModuleType, batch: Mapping[str, np.ndarray], steps: int, compile_it: bool) -> Call:
    torch = importlib.import_module("torch")
    _, step = module.torch_step()
    run = torch.compile(step) if compile_it else step
    inputs = _tensors(batch)

    def call() -> dict[str, np.ndarray]:
        return {"loss": np.array([run(inputs)["loss"].detach() for _ in range(steps)], np.float32)}

    return call


def _in_jax(built: tuple[Callable[..., Any], Any], batch: Mapping[str, np.ndarray], steps: int) -> Call:
    """State is donated; K steps are a lax.scan. Labels are int32, as JAX has them."""
    jax = importlib.import_module("jax")
    step, state = built
    given = {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in batch.items()}
    whole = step if steps == 1 else lambda state, batches: jax.lax.scan(step, state, batches)
    run = jax.jit(whole, donate_argnums=0)
    box = [state]

    def call() -> dict[str, np.ndarray]:
        box[0], loss = run(box[0], given)
        return {"loss": np.atleast_1d(np.asarray(loss))}

    return call


def _tensors(batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
    torch = importlib.import_module("torch")
    return {name: torch.tensor(value) for name, value in batch.items()}
