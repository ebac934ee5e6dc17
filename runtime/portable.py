"""A portable program: a folder that runs on CPUs, GPUs and TPUs through XLA, without the ONNX file that it came from.

    manifest.json         the signature, the state with what updates it, the order of arguments, versions
    program.stablehlo     what jax.export serialized: StableHLO for each platform
    program.mlir          the same as text
    weights.safetensors   weights and the first state, by name

Written by `pfvm compile --export stablehlo -o FOLDER`, read by `pfvm.load(FOLDER)` and `pfvm run FOLDER`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler import weights as weight_files
from pfvm.compiler.options import Options
from pfvm.errors import InvalidModelError, MissingExtraError, OptionError, PfvmError, flag

from .device import Device, parse_device
from .executable import TensorSpec
from .synthesis import check_shapes, parse_shapes

if TYPE_CHECKING:
    from .xla.portable import PortableExecutable

# Options of a device that do not reach the program.
_NOT_HERE = ("mesh", "shard", "bf16", "effort", "timeout", "explain")
_EXPORT = "export to StableHLO"
FORMAT = "pfvm-stablehlo"
VERSION = 1
MANIFEST = "manifest.json"
PROGRAM = "program.stablehlo"
TEXT = "program.mlir"
WEIGHTS = "weights.safetensors"


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """State of a program: its type, what it is (param, buffer, optimizer, …; "" unknown) and what output updates it."""

    spec: TensorSpec
    kind: str
    source: str
    output: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class PortableProgram:
    """The content of the folder. `arguments` are names in the order of the program, None for entropy."""

    inputs: tuple[TensorSpec, ...]
    state: tuple[StateSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arguments: tuple[str | None, ...]
    donated: frozenset[str]
    checks: tuple[str, ...]
    platforms: tuple[str, ...]
    serialized: bytes
    weights: Mapping[str, np.ndarray]


def is_portable(path: Any) -> bool:
    """Is this the folder of a portable program?"""
    return isinstance(path, (str, os.PathLike)) and pathlib.Path(path, MANIFEST).is_file()


def export_to(options: Options, model: ir.Model) -> None:
    """What `--export stablehlo` asks for. Raises UnsupportedOpError, OptionError, MissingExtraError, PfvmError."""
    from .xla.portable_export import export_portable

    made = export_portable(model, parse_shapes(options.shape), options.precision)
    assert options.output is not None
    _write(options.output, made.manifest, made.program, made.text, made.weights)


def check_export(options: Options) -> Device:
    """The device that the options name. Raises OptionError, and MissingExtraError without jax."""
    device = parse_device(options.device or "")
    if device.backend != "xla":
        raise OptionError(f"{_EXPORT} is for xla devices, not {device.name}: give {flag('device', 'xla:cpu')}")
    if options.output is None:
        raise OptionError(f"{_EXPORT} writes a folder: give {flag('output', 'FOLDER')}")
    if options.output.suffix == ".onnx" or (options.output.exists() and not options.output.is_dir()):
        raise OptionError(f"{_EXPORT} writes a folder, and {options.output} is a file: give {flag('output', 'FOLDER')}")
    for name in _NOT_HERE:
        if getattr(options, name, None) not in (None, (), False):
            raise OptionError(f"{_EXPORT} takes no option {name}")
    if importlib.util.find_spec("jax") is None:
        raise MissingExtraError(_EXPORT, "xla")
    return device


def _write(
    folder: pathlib.Path, manifest: Mapping[str, Any], program: bytes, text: str, weights: Mapping[str, np.ndarray]
) -> None:
    """Whole or not at all. An older program there is replaced, a folder of something else is not."""
    from pfvm import __version__

    if folder.exists() and any(folder.iterdir()) and not is_portable(folder):
        raise OptionError(f"{folder} is not empty and holds no portable program; choose another folder")
    types, stored = {}, {}
    for name, array in weights.items():
        stored[name] = weight_files.storable(array)
        if stored[name].dtype != array.dtype:
            types[name] = ir.DataType.from_numpy(array.dtype).name  # numbers of less than a byte, one to a byte
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "pfvm": __version__,
        **manifest,
        "unpacked": types,
        "files": {"program": PROGRAM, "text": TEXT, "weights": WEIGHTS},
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            weight_files.write_safetensors(staging / WEIGHTS, stored)
            (staging / PROGRAM).write_bytes(program)
            (staging / TEXT).write_text(text, encoding="utf-8")
            (staging / MANIFEST).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            staging.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise PfvmError(f"cannot write {folder}: {error.strerror or error}") from error


def read_portable(folder: str | os.PathLike[str]) -> PortableProgram:
    """Raises InvalidModelError for a folder of another form or version, PfvmError where a file cannot be read."""
    path = pathlib.Path(folder)
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise InvalidModelError(
                f"{path}: a program of format {manifest['format']} {manifest['version']}; this pfvm reads {FORMAT} "
                f"{VERSION}"
            )
        weights = weight_files.read_safetensors(path / WEIGHTS)
        for name, dtype in manifest["unpacked"].items():
            weights[name] = weights[name].view(ir.DataType[dtype].numpy())
        state = tuple(
            StateSpec(_spec(entry), entry.get("kind", ""), entry.get("source", ""), entry.get("output"))
            for entry in manifest["state"]
        )
        program = PortableProgram(
            tuple(map(_spec, manifest["inputs"])),
            state,
            tuple(map(_spec, manifest["outputs"])),
            tuple(manifest["arguments"]),
            frozenset(manifest["donated"]),
            tuple(manifest["checks"]),
            tuple(manifest["platforms"]),
            (path / PROGRAM).read_bytes(),
            weights,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelError(f"{path}: not a portable program as pfvm writes it: {error!r}") from error
    except OSError as error:
        raise PfvmError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    _check(path, program)
    return program


def _check(path: pathlib.Path, program: PortableProgram) -> None:
    given = {spec.name for spec in program.inputs}
    missing = [name for name in program.arguments if name is not None and name not in given | program.weights.keys()]
    if missing:
        raise InvalidModelError(f"{path}: {WEIGHTS} lacks {missing[0]!r}, which the program takes")
    outputs = {spec.name for spec in program.outputs}
    wrong = [s.output for s in program.state if s.output is not None and s.output not in outputs]
    if wrong:
        raise InvalidModelError(f"{path}: the manifest names {wrong[0]!r}, which is no output of the program")


def _spec(entry: Mapping[str, Any]) -> TensorSpec:
    dtype = None if entry["dtype"] is None else ir.DataType[entry["dtype"]]
    return TensorSpec(entry["name"], dtype, None if entry["shape"] is None else tuple(entry["shape"]))


def load_portable(path: str | os.PathLike[str], device: str | Device, options: Mapping[str, Any]) -> PortableExecutable:
    """Loads a portable program. Raises OptionError for a device that is not XLA's, NoDeviceError, InvalidModelError."""
    target = parse_device(device)
    given = [name for name, value in options.items() if value is not None]
    if target.backend != "xla" or target.topology is not None:
        raise OptionError(
            f"{path} is a StableHLO program, which runs on xla:cpu, xla:cuda and xla:tpu, not on {target.name}"
        )
    if given:
        raise OptionError(f"{path} is a StableHLO program, made already: it takes no option {given[0]!r}")
    target.require()
    from .xla.portable import PortableExecutable

    return PortableExecutable(read_portable(path), target.platform)


def made_up(executable: PortableExecutable, seed: int, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Seeded inputs for a program, of which only the signature is known: floats of N(0, 1), integers 0 and 1.

    Raises OptionError for a shape that names no input or has another rank.
    """
    check_shapes(executable.inputs, shapes)
    sizes: dict[str, int] = {}
    for spec in executable.inputs:
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ())):
            if isinstance(dim, str):
                sizes[dim] = size
    feeds = {}
    for index, spec in enumerate(executable.inputs):
        rng = np.random.default_rng([seed, index])
        dims = shapes.get(spec.name) or [d if isinstance(d, int) else sizes.get(d or "", 2) for d in spec.shape or ()]
        assert spec.dtype is not None
        drawn = rng.standard_normal(dims) if spec.dtype.is_floating_point() else rng.integers(0, 2, dims)
        feeds[spec.name] = np.asarray(drawn).astype(spec.dtype.numpy())
    return feeds
