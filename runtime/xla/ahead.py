"""A model compiled for a TPU that is not here: everything but running it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
import onnx_ir as ir
from pfvm.compiler.mesh import mesh_size, parse_mesh
from pfvm.compiler.signature import read_manifest
from pfvm.errors import InputError, NoDeviceError, OptionError, PfvmError, UnsupportedOpError, flag
from pfvm.runtime.synthesis import input_shapes, synthesize
from pfvm.runtime.topology import parse_topology

from .compiled import Lowered
from .executable import XlaExecutable
from .own_settings import own_settings
from .segments import MustCut
from .tpu_compiler import DEFAULT_TIMEOUT, TpuProgram, check_effort, compile_for

# Inputs and state of so few elements may decide a shape: they have values, larger ones only a type.
_SMALL = 1024


class AheadExecutable(XlaExecutable):
    """`xla:tpu@v5e:1x1`: XlaExecutable's programs, compiled by libtpu for a topology. A call raises NoDeviceError.

    shapes: of inputs by name; needed where the model leaves dimensions open, since a TPU's programs have fixed shapes.
    precision, bf16: see XlaExecutable. effort: "full", or "fast" for a quick look: a worse program in a tenth of the
        time.
    timeout: seconds that the compiler may take.
    mesh, shard: one program for several devices of the topology, see XlaExecutable.

    State that the model's outputs replace is donated. Raises OptionError for a topology that there is not.
    """

    def __init__(
        self,
        model: ir.Model,
        topology: str,
        *,
        precision: str | None = None,
        bf16: bool = False,
        effort: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        mesh: str | None = None,
        shard: str | Sequence[str] | None = None,
    ) -> None:
        self.topology = parse_topology(topology)
        self.effort = check_effort(effort)
        self.devices_used = self._devices_of(mesh)
        super().__init__(model, "tpu", precision=precision, bf16=bf16, compile_only=True, mesh=mesh, shard=shard)
        self._mesh, self._shard = mesh, shard
        self.shapes = dict(shapes or {})
        self._timeout = timeout
        given = {spec.name for spec in (*self.inputs, *self.optional_inputs)}
        entries = [entry for entry in read_manifest(model) if entry.output is not None and entry.name in given]
        self.donate({entry.name: entry.output or "" for entry in entries})

    def _devices_of(self, mesh: str | None) -> int:
        count = 1 if mesh is None else mesh_size(parse_mesh(mesh))
        if count > self.topology.devices:
            raise OptionError(f"mesh {mesh} needs {count} devices, and {self.name} has {self.topology.devices}")
        return count

    @property
    def name(self) -> str:
        """The device string."""
        return f"xla:tpu@{self.topology.name}"

    @property
    def mesh_text(self) -> str:
        """What the device string is followed by on a mesh: " on data=4"."""
        return self._placement.text

    def of(self, model: ir.Model) -> AheadExecutable:
        """Another model, with the same options."""
        return AheadExecutable(
            model, self.topology.name, precision=self.precision, bf16=self.bf16, effort=self.effort, shapes=self.shapes,
            timeout=self._timeout, mesh=self._mesh, shard=self._shard,
        )  # fmt: skip

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The program before XLA compiles it. Raises InputError where a dimension is open."""
        given = {self._graph_inputs[name]: array for name, array in self._feeds().items()}
        with own_settings():
            given.update(self._state(given))
            runners = self._plan.device_runners
            if len(runners) != 1:
                raise PfvmError(f"{self.name}: the model computes nothing: its outputs are constants or inputs")
            try:
                return runners[0].lowered(given, "tpu")
            except MustCut as request:
                raise UnsupportedOpError(str(request.error)) from request

    @functools.cached_property
    def program(self) -> TpuProgram:
        """The compiled program. Raises what `tpu_compiler.compile_for` raises."""
        return compile_for(self.topology, self.lowered, self.effort, self._timeout)

    @property
    def report(self) -> dict[str, Any]:
        """The content of report.json: cycles, time, memory and their sources. Compiles where that has not been done."""
        from .tpu_report import make_report

        return make_report(self)

    def __call__(self, feeds: Mapping[str, Any]) -> NoReturn:
        raise NoDeviceError(
            f"{self.name} is compiled for, not run on: running needs a TPU {self.topology.chip.name}, and there "
            "device xla:tpu; xla:cpu runs the same program here"
        )

    def run_on_device(self, feeds: Mapping[str, Any], state: dict[str, Any]) -> NoReturn:
        """As a call: raises NoDeviceError."""
        self(feeds)

    def _feeds(self) -> dict[str, Any]:
        """Inputs of the shapes to compile for: made-up values of those that may decide shapes, types of the others."""
        extents = input_shapes(self.model, self.shapes)
        feeds: dict[str, Any] = {}
        for spec in self.inputs:
            shape = extents[spec.name]
            if shape is None:
                raise InputError(
                    f"{self.name}: input {spec.name!r} ({spec}) has open dimensions, and a TPU's programs have fixed "
                    f"ones; give {flag('shape', f'{spec.name}=…')}"
                )
            if spec.kind != "tensor" or spec.dtype in (None, ir.DataType.STRING):
                raise UnsupportedOpError(f"{self.name}: input {spec.name!r} ({spec}): a TPU's programs take arrays")
            feeds[spec.name] = jax.ShapeDtypeStruct(shape, spec.dtype.numpy())
        return {**feeds, **synthesize(self.model, 0, self.shapes, largest=_SMALL)}

    def _state(self, given: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        """Small state with its values, large state as types without data."""
        found: dict[ir.Value, Any] = {}
        for value in self._weights.state:
            if value not in given:
                struct = self._weights.struct(value)
                found[value] = self._weights.read(value) if struct.size <= _SMALL else struct
        return found

    def arguments(self) -> list[dict[str, Any]]:
        """What the program takes, in order: for a reader of the serialized executable.

        kind: "input", "state" (also an input of the model), "weight" (constants, brought into the program's order when
        the model is loaded) or "entropy".
        """
        lowered = self.lowered
        state = {v.name for v in self._weights.state}
        rows = []
        for i, aval in enumerate(lowered.exported.in_avals):
            value = lowered.inputs[i] if i < len(lowered.inputs) else None
            name = None if value is None else value.name
            last = lowered.random and i == len(lowered.exported.in_avals) - 1
            kind = "entropy" if last else "weight" if name is None else "state" if name in state else "input"
            rows.append(
                {"kind": kind, "name": name, "dtype": str(np.dtype(aval.dtype)), "shape": list(aval.shape),
                 "donated": i in lowered.donated, "used": i in lowered.exported.module_kept_var_idx}
            )  # fmt: skip
        return rows
