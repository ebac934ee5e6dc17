"""What is compared: a pfvm device, or another engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
    `argument`, a string that the function takes, or none where empty."""

    name: str
    engine: str
    file: str = ""
    function: str = ""
    argument: str = ""

    @property
    def runs_the_model(self) -> bool:
        """Does it run the model file, so that its results can be compared?"""
        return not self.file


def candidates(devices: Sequence[str], against: Sequence[str], model: str = "") -> list[Candidate]:
    """The candidates for a model in the order given, devices first; the first is what the others are compared with.

    model: stands for "{model}" in `against`, so that each model has its own net.

    Raises OptionError for an unknown device or engine or a repeated one, and what a device that is not there raises.
    """
    engines = [part.replace(_MODEL, model) for text in against for part in text.split(",")]
    found = [_device(text) for text in devices] + [_engine(text) for text in engines]
    names = [c.name for c in found]
    repeated = next((n for n in names if names.count(n) > 1), None)
    if repeated is not None:
        raise OptionError(f"bench: {repeated!r} is given twice")
    return found


def _device(text: str) -> Candidate:
    device = parse_device(text)
    device.require()
    return Candidate(text, "pfvm")


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
