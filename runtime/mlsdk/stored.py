"""signature.json of a codegen_dir: what `load_codegen_dir` needs to call pfvm.onnx without the Python function.

It holds the nesting of arguments and results, and for each state of the model the name by which a Context knows it:
"model@linear1@weight" for a registered tensor, "model@linear1@weight.momentum" for what an optimizer keeps of it,
"optimizer.lr" for a number of a registered optimizer. State that nobody registered starts from the file's values.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.utils._pytree as pytree
from pfvm.compiler.capture.dtypes import to_torch
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.numbers import ReachedNumber
from pfvm.compiler.capture.optimizers import find, new_entry
from pfvm.compiler.capture.random import seed_state
from pfvm.compiler.capture.reach import Place, Reach, ReachedTensor, walk
from pfvm.compiler.capture.structure import Structure
from pfvm.compiler.driver import CompileResult
from pfvm.compiler.exporter import write_text
from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import StateEntry, read_manifest
from pfvm.errors import InvalidModelError, StaleWeightError
from pfvm.runtime.compiled import CompiledFunction as Compiled
from pfvm.runtime.compiled import runner
from pfvm.runtime.device import Device, load_executable

from .function import CompiledFunction
from .registry import Registry

FILE = "signature.json"
VERSION = 1


def write_signature(
    folder: pathlib.Path, function: CompiledFunction, original: Callable[..., Any], registry: Registry
) -> None:
    """Write signature.json beside the model."""
    exported = function.exported
    names = _known_names(original, exported, registry)
    data = {
        "version": VERSION,
        "name": function.name,
        "automap": function._automap,
        "inputs": _to_json(exported.inputs),
        "outputs": _to_json(exported.outputs),
        "arguments": exported.argument_names,
        "sizes": sorted(exported.size_outputs),
        "state": {name: names.get(name) for name in (*exported.states, *exported.numbers)},
    }
    write_text(folder / FILE, json.dumps(data, indent=1) + "\n")


def _to_json(structure: Structure) -> dict[str, Any]:
    constants = [c if isinstance(c, (bool, int, float, str)) or c is None else repr(c) for c in structure.constants]
    return {"nesting": pytree.treespec_dumps(structure.spec), "names": structure.names, "constants": constants}


def _known_names(original: Callable[..., Any], exported: Exported, registry: Registry) -> dict[str, str]:
    """Model's name of a state → name in the registry, where there is one."""
    reach = walk(original)
    owners = {t.name: name for t in reach.tensors if (name := registry.name_of(t.tensor))}
    optimizers = {id(o): name for name, o in registry.optimizers.items()}
    owners |= {path: optimizers[id(o)] for path, o in reach.optimizers if id(o) in optimizers}
    known: dict[str, str] = {}
    found: dict[str, Any] = {**exported.states, **exported.numbers}
    for name, state in found.items():
        direct = registry.name_of(state.tensor) if isinstance(state, ReachedTensor) else None
        owner = max((o for o in owners if state.name.startswith(f"{o}.")), key=len, default=None)
        if direct is not None:
            known[name] = direct
        elif owner is not None and state.kind in ("optimizer", "hyperparameter"):
            known[name] = owners[owner] + state.name.removeprefix(owner)
    return known


def load(
    folder: pathlib.Path, device: Device, registry: Registry, options: Mapping[str, Any] | None = None
) -> CompiledFunction:
    """The function of a codegen_dir. Raises InvalidModelError for a folder without a readable signature.json."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise InvalidModelError(f"{path} has version {data['version']}; this pfvm reads version {VERSION}")
        inputs, outputs = (_structure(data[key]) for key in ("inputs", "outputs"))
    except OSError as error:
        raise InvalidModelError(f"{path}: {error.strerror}; Context.compile writes it into its codegen_dir") from error
    except (KeyError, ValueError, NotImplementedError) as error:
        raise InvalidModelError(
            f"{path} cannot be read: {error}; register the classes of its arguments and results before"
        ) from error
    model = read_model(folder / "pfvm.onnx")
    states, numbers, updates = _state(model, data["state"], registry)
    exported = Exported(
        model, inputs, outputs, states, numbers, updates, False, tuple(data["arguments"]), frozenset(data["sizes"]),
        cleared=(), guards=(), constants=(), modules=(), module_names={},
        optimizers=tuple(registry.optimizers.values()),
    )  # fmt: skip
    executable = load_executable(model, device, **(options or {}))
    run, _ = runner(exported, executable, None)
    compiled = Compiled(exported, CompileResult(model, []), executable, run, device, folder)
    return CompiledFunction(compiled, data["name"], data["automap"])


def _structure(data: dict[str, Any]) -> Structure:
    return Structure(pytree.treespec_loads(data["nesting"]), tuple(data["names"]), tuple(data["constants"]))


def _state(
    model: ir.Model, names: dict[str, str | None], registry: Registry
) -> tuple[dict[str, ReachedTensor], dict[str, ReachedNumber], dict[str, str]]:
    live = _Live(registry)
    states: dict[str, ReachedTensor] = {}
    numbers: dict[str, ReachedNumber] = {}
    entries = read_manifest(model)
    for entry in entries:
        stored = model.graph.initializers[entry.name].const_value
        assert stored is not None
        value = np.array(stored.numpy())
        found = live.find(names.get(entry.name), entry, value)
        if isinstance(found, ReachedNumber):
            numbers[entry.name] = found
        else:
            states[entry.name] = found
    return states, numbers, {e.name: e.output for e in entries if e.output is not None}


class _Live:
    """The tensors and numbers of a registry, under the names that signature.json uses."""

    def __init__(self, registry: Registry) -> None:
        self._tensors = {name: ReachedTensor(name, t, _constant(t)) for name, t in registry.tensors.items()}
        self._optimizers = registry.optimizers
        self._known = {n.name: n for n in self._read_optimizers().numbers}
        self._known_tensors = self._tensors | {t.name: t for t in self._read_optimizers().tensors}

    def _read_optimizers(self) -> Any:
        return find(Reach(tensors=list(self._tensors.values()), optimizers=list(self._optimizers.items())))

    def find(self, name: str | None, entry: StateEntry, value: np.ndarray[Any, Any]) -> ReachedTensor | ReachedNumber:
        """The live state behind a name; one of the function's own where there is none."""
        if entry.kind == "rng":
            return seed_state()
        if name in self._known:
            return self._known[name]
        if name in self._known_tensors:
            return _fitting(self._known_tensors[name], entry, to_torch(value))
        is_number = entry.kind in ("hyperparameter", "optimizer") and value.ndim == 0 and value.dtype in (float, int)
        own: Any = value.item() if is_number else to_torch(value)
        made = None if name is None or entry.kind != "optimizer" else self._to_be_made(name, own)
        return made if made is not None else _own(entry, own)

    def _to_be_made(self, name: str, value: Any) -> ReachedTensor | ReachedNumber | None:
        """State that the registered optimizer has not made yet: it gets the file's value with the first step."""
        owner, _, short = name.rpartition(".")
        key = "momentum_buffer" if short == "momentum" else short  # as in capture/optimizers.py
        parameter = self._tensors[owner].tensor if owner in self._tensors else None
        for optimizer in self._optimizers.values():
            if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
                return new_entry(optimizer, parameter, owner, key, value, is_initial=True)
        return None


def _fitting(live: ReachedTensor, entry: StateEntry, stored_value: torch.Tensor) -> ReachedTensor:
    now, then = live.tensor, stored_value
    if now.shape != then.shape or now.dtype != then.dtype:
        raise StaleWeightError(
            f"{live.name!r} is {now.dtype} {list(now.shape)} here, and {then.dtype} {list(then.shape)} in the folder "
            f"(as {entry.name!r}); compile again"
        )
    return live


def _constant(value: Any) -> Place:
    return Place(None, lambda _: value)


def _own(entry: StateEntry, value: Any) -> ReachedTensor | ReachedNumber:
    """State that nothing in this program holds; the loaded function keeps it from call to call."""
    if isinstance(value, torch.Tensor):
        return ReachedTensor(entry.source, value, _constant(value))
    box = [value]
    place = Place(None, lambda _: box[0], lambda _, new: box.__setitem__(0, new))
    return ReachedNumber(entry.source, value, place, entry.kind)
