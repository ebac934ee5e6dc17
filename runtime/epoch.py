"""`pfvm.epoch`: a training step over data that stays on the device, a whole epoch in one call."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler import options as option_schema
from pfvm.compiler.driver import CompileResult
from pfvm.compiler.epoch import SEED, epoch_model
from pfvm.compiler.mesh import DATA, parse_mesh
from pfvm.errors import InputError, MissingExtraError, OptionError, short

from .api import compile_source
from .compiled import settings_for, spread
from .device import Device, load_executable, parse_device
from .resident import DeviceArray, Resident, resident

if TYPE_CHECKING:
    from pfvm.compiler.capture.export import Exported

    from .executable import Executable


def epoch(
    fn: Callable[..., Any],
    data: Any,
    batch_size: int,
    device: str | Device = "pfvm:cpu",
    codegen_dir: str | os.PathLike[str] | None = None,
    options: option_schema.Options | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    shuffle: bool = True,
    device_options: Mapping[str, Any] | None = None,
    mesh: str | None = None,
    shard: str | Sequence[str] | None = None,
) -> Epoch:
    """Compile a training step together with the loop over its data: `run = pfvm.epoch(…)`, then `run()` is an epoch.

    fn: a training step, as for `pfvm.compile`.
    data: what `fn` takes, with all N rows in the place of a batch: {"x": [N, 3], "t": [N]} for a step on {"x": [b, 3],
        "t": [b]}. It is copied to the device now and stays there; later changes of these tensors are not seen.
    batch_size: rows of a step. An epoch is N // batch_size steps; the rows left over wait.
    shuffle: another order of the rows in every epoch, computed on the device from a seed: the same on every device.
    device, codegen_dir, options, device_options, mesh, shard: as for `pfvm.compile`. On a mesh the data is whole on
        each device, and the rows of a step are split over `data`.

    Raises what `pfvm.compile` raises, MissingExtraError without torch, OptionError for a batch size that is no positive
    integer, and InputError for data whose first axes differ or are shorter than a batch.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("pfvm.epoch", "torch")
    from pfvm.compiler.capture.export import capture
    from pfvm.compiler.capture.order import row_order
    from pfvm.compiler.capture.repeat import per_step, repeatable

    from .torch_rows import first_rows

    target = parse_device(device)
    target.require()
    settings = settings_for(options, codegen_dir)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise OptionError(f"batch_size: expected an integer of at least 1, got {short(batch_size)}")
    if mesh is not None and batch_size % (parts := parse_mesh(mesh).get(DATA, 1)):
        raise InputError(
            f"batch_size={batch_size} cannot be split over the mesh {mesh}: it is not a multiple of {DATA}={parts}; "
            "choose one that is, or a mesh without that axis"
        )
    sample, rows = first_rows(data, batch_size)
    step = repeatable(capture(fn, sample))
    model = epoch_model(step.model, rows, batch_size, row_order(rows, batch_size, shuffle), per_step(step))
    result = compile_source(model, settings)
    executable = load_executable(result.model, target, **{**(device_options or {}), **spread(mesh, shard)})
    return Epoch(step, model, result, executable, target, settings.artifacts, data, rows // batch_size)


class Epoch:
    """A compiled epoch: `run()` takes every batch once and returns the step's results, stacked along a first axis.

    `model` is the compiled graph, `exported` the graph before the passes, `steps` the number of steps in a call.
    """

    def __init__(
        self,
        step: Exported,
        exported: ir.Model,
        result: CompileResult,
        executable: Executable,
        device: Device,
        artifacts: pathlib.Path | None,
        data: Any,
        steps: int,
    ) -> None:
        from .torch_rows import all_rows
        from .torch_steps import StepsState

        self.exported = exported
        self.model: ir.Model = result.model
        self.passes = result.passes
        self.executable = executable
        self.device = device
        self.artifacts = artifacts
        self.steps = steps
        self._outputs = step.outputs
        self._is_shuffled = any(value.name == SEED for value in result.model.graph.inputs)
        on_device = resident(executable, step.updates)
        arrays = {name: on_device.put(array, name) for name, array in all_rows(step, data).items()}
        self._state = StepsState(step, _WithData(on_device, arrays), steps)

    def __call__(self, seed: int | None = None) -> Any:
        """One epoch. `seed` decides the order of the rows; by default torch's generator draws one.

        Raises what a call of a compiled step raises.
        """
        from .torch_rows import new_seed
        from .torch_state import as_tensor

        feeds = {SEED: np.asarray(new_seed() if seed is None else seed, np.int64)} if self._is_shuffled else {}
        results = self._state.run(feeds)
        return self._outputs.pack({name: as_tensor(value) for name, value in results.items()})

    def __repr__(self) -> str:
        return f"<Epoch {self.exported.graph.name!r} of {self.steps} steps on {self.device.name}>"


class _WithData:
    """A Resident some of whose inputs are on the device for good."""

    def __init__(self, inner: Resident, data: Mapping[str, DeviceArray]) -> None:
        self._inner = inner
        self._data = data
        self.put, self.get = inner.put, inner.get

    @property
    def device(self) -> str:
        return self._inner.device

    def __call__(
        self, feeds: Mapping[str, Any], state: dict[str, DeviceArray]
    ) -> tuple[dict[str, Any], dict[str, DeviceArray]]:
        state.update(self._data)
        return self._inner(feeds, state)
