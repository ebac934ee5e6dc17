"""What is compared: a pfvm device, or another engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pfvm.compiler.mesh import parse_mesh, parse_shard
from pfvm.errors import OptionError, PfvmError
from pfvm.runtime.device import parse_device

# Engines that run the model file itself; the others run a net that a Python file builds.
_MODEL_ENGINES = ("onnxruntime", "openvino")
_FILE_ENGINES = {"torch": None, "jax": "build"}
_KNOWN = "onnxruntime, openvino, jax:FILE.py[:FUNCTION[:ARGUMENT]], torch:FILE.py:FUNCTION[:ARGUMENT]"
# In an engine's name: the name of the model's file without its ending.
_MODEL = "{model}"


class Candidate(NamedTuple):
    """`name` is what the user wrote; `engine` is "pfvm" for a device; a file engine has `file` and `function`, and
    `argument`, a string that the function takes, or none where empty. `mesh`, `shard`: of an xla device, which is one
    device without them."""

    name: str
    engine: str
    file: str = ""
    function: str = ""
    argument: str = ""
    mesh: str = ""
    shard: Sequence[str] = ()

    @property
    def device(self) -> str:
        """The device string, where it is one."""
        return self.name.removesuffix(f" on {self.mesh}") if self.mesh else self.name

    @property
    def spread(self) -> dict[str, Any]:
        """The options of `pfvm.load` for its mesh."""
        return {"mesh": self.mesh, "shard": list(self.shard) or None} if self.mesh else {}

    @property
    def runs_the_model(self) -> bool:
        """Does it run the model file, so that its results can be compared?"""
        return not self.file


def candidates(
    devices: Sequence[str],
    against: Sequence[str],
    model: str = "",
    meshes: Sequence[str] = (),
    shard: Sequence[str] = (),
) -> list[Candidate]:
    """The candidates for a model in the order given, devices first; the first is what the others are compared with.

    model: stands for "{model}" in `against`, so that each model has its own net. meshes, shard: xla devices are
        measured as one device and on each of these.

    Raises OptionError for an unknown device or engine or a repeated one, and what a device that is not there raises.
    """
    engines = [part.replace(_MODEL, model) for text in against for part in text.split(",")]
    found = [*on_devices(devices, meshes, shard), *(_engine(text) for text in engines)]
    names = [c.name for c in found]
    repeated = next((n for n in names if names.count(n) > 1), None)
    if repeated is not None:
        raise OptionError(f"bench: {repeated!r} is given twice")
    return found


def on_devices(devices: Sequence[str], meshes: Sequence[str], shard: Sequence[str], file: str = "") -> list[Candidate]:
    """Each device, and each xla device on each mesh. Raises OptionError for what is no mesh or rule."""
    found = []
    for text in devices:
        device = parse_device(text)
        device.require()
        found.append(Candidate(text, "pfvm", file))
        for mesh in meshes if device.backend == "xla" else ():
            parse_shard(shard, parse_mesh(mesh))
            found.append(Candidate(f"{text} on {mesh}", "pfvm", file, mesh=mesh, shard=tuple(shard)))
    if shard and not meshes:
        raise OptionError("bench: --shard says what is split over a mesh: give --mesh as well")
    if meshes and not any(candidate.mesh for candidate in found):
        raise OptionError("bench: --mesh is for xla devices: give --device xla:cpu, say")
    return found


def _engine(text: str) -> Candidate:
    engine, _, rest = text.partition(":")
    if engine in _MODEL_ENGINES and not rest:
        if importlib.util.find_spec(engine) is None:
            raise PfvmError(f"--against {engine} needs the package {engine!r}: pip install {engine}")
        return Candidate(text, engine)
    if engine not in _FILE_ENGINES or not rest:
        raise OptionError(f"--against {text!r}: expected one of {_KNOWN}")
    file, _, rest = rest.partition(":")
    function, _, argument = rest.partition(":")
    function = function or _FILE_ENGINES[engine] or ""
    if not function:
        raise OptionError(f"--against {text!r}: name the function that builds the net, as in torch:net.py:build")
    if not Path(file).is_file():
        raise OptionError(f"--against {text!r}: no file {file!r}")
    if importlib.util.find_spec(engine) is None:
        raise PfvmError(f"--against {text} needs the package {engine!r}: pip install {engine}")
    return Candidate(text, engine, str(Path(file).resolve()), function, argument)
