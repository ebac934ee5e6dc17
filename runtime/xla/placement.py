"""Where a model's arrays are: on one device, or spread over a mesh of devices.

GSPMD (XLA's partitioner) makes one program for all devices of a mesh from the program for one, and from how arguments
and donated results are spread. What it computes is that of the whole arrays, wherever they are split: a mean over the
batch is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx_ir as ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pfvm.compiler.mesh import mesh_text, parse_mesh
from pfvm.errors import OptionError, PfvmError

from .batch_hint import hinting
from .mesh import make_mesh, one_at_a_time
from .platforms import device_of, own_cpu
from .processes import common_entropy, lost_processes
from .random_keys import ENTROPY, fresh_entropy
from .sharding import Sharding, sharding_of
from .weights import put, unbound


class Shardings(NamedTuple):
    """Of a program's arguments and results: one for each, or one for all."""

    arguments: Any
    results: Any


class Spread(NamedTuple):
    """Shardings as text can hold them: the axes of a mesh, and for each argument and result the axes that each of its
    first dimensions is split over (None: wherever the partitioner has it)."""

    axes: dict[str, int]
    arguments: list[list[list[str]] | None]
    results: list[list[list[str]] | None]


def spread_of(shardings: Shardings) -> Spread | None:
    """None for those of one device."""
    given = shardings.arguments
    if isinstance(given, jax.sharding.Sharding):
        return None
    mesh = next(sharding.mesh for sharding in (*given, *shardings.results) if sharding is not None)
    return Spread(dict(mesh.shape), [_axes_of(s) for s in given], [_axes_of(s) for s in shardings.results])


def _axes_of(sharding: NamedSharding | None) -> list[list[str]] | None:
    if sharding is None:
        return None
    return [[] if dim is None else [dim] if isinstance(dim, str) else list(dim) for dim in sharding.spec]


class OneDevice:
    """Everything on one device."""

    text = ""  # what the name of the device is followed by
    summary: str | None = None  # what is split, in a line
    may_use_host = True  # for what XLA has no program for

    def __init__(self, device: jax.Device) -> None:
        self.first = device
        sharding = jax.sharding.SingleDeviceSharding(device)
        self._shardings = Shardings(sharding, sharding)

    def put(self, array: np.ndarray, value: ir.Value | None = None) -> jax.Array:
        """Host values on the device. `value`: what they are of in the model."""
        return put(array, self.first)

    def struct(self, struct: jax.ShapeDtypeStruct, value: ir.Value | None) -> jax.ShapeDtypeStruct:
        """What stands for an array of a program that is compiled and never run."""
        return struct

    def is_split(self, value: ir.Value) -> bool:
        """Is it not whole on every device?"""
        return False

    def placed(self, array: Any, value: ir.Value) -> Any:
        """An array, on the host or a device, where a program's argument `value` has to be."""
        return array

    def shardings(
        self,
        arguments: Sequence[ir.Value],
        weights: Sequence[Any],
        random: bool,
        results: Sequence[ir.Value],
        count: int,
    ) -> Shardings:
        """Of a program of these arguments, weights (arrays that have been put) and results.

        random: entropy is its last argument. count: of results; those behind `results` are findings of checks.
        """
        return self._shardings

    def check(self, value: ir.Value, shape: Sequence[int]) -> None:
        """Raises InputError where an argument of this shape cannot be spread."""

    def call(self, function: Any, shardings: Shardings) -> Callable[..., Any]:
        """A compiled program as it is called."""
        call: Callable[..., Any] = function
        return call

    def entropy(self) -> np.ndarray:
        """New in every call: uint32[2]."""
        return fresh_entropy()

    def tracing(self) -> AbstractContextManager[None]:
        """Around the trace of a program."""
        return nullcontext()

    def between(self, value: Any) -> Any:
        """A result of one segment as the next one takes it."""
        return unbound(value)

    def host(self, value: Any) -> Any:
        """A result as numpy, its own copy."""
        return np.array(value)


class OnMesh:
    """Spread over a mesh; methods as those of `OneDevice`."""

    def __init__(self, mesh: Mesh, sharding: Sharding) -> None:
        self.mesh = mesh
        self.sharding = sharding
        self.first = mesh.local_devices[0]
        self.text = f" on {mesh_text(sharding.axes)}"
        self.summary = sharding.summary
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._is_cpu = self.first.platform == "cpu"
        self._is_shared = not self._whole.is_fully_addressable
        self.may_use_host = not self._is_shared  # one process could not see what is on another one's devices

    def put(self, array: np.ndarray, value: ir.Value | None = None) -> jax.Array:
        return self._put(array, self._whole if value is None else self._of(value))

    def struct(self, struct: jax.ShapeDtypeStruct, value: ir.Value | None) -> jax.ShapeDtypeStruct:
        sharding = self._whole if value is None else self._of(value)
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)

    def is_split(self, value: ir.Value) -> bool:
        return value in self.sharding.specs

    def placed(self, array: Any, value: ir.Value) -> Any:
        sharding = self._of(value)
        if not isinstance(array, jax.Array):
            return self._put(np.asarray(array), sharding)
        if array.sharding.is_equivalent_to(sharding, array.ndim):
            return array
        return jax.device_put(array, sharding)

    def shardings(
        self,
        arguments: Sequence[ir.Value],
        weights: Sequence[Any],
        random: bool,
        results: Sequence[ir.Value],
        count: int,
    ) -> Shardings:
        given = [*(self._of(v) for v in arguments), *(w.sharding for w in weights)]
        updates = self.sharding.updates
        # What is not state goes where the partitioner has it, unless this process could not read it there.
        other = self._whole if self._is_shared else None
        found = [self._of(updates[v]) if v in updates else other for v in results]
        return Shardings((*given, *[self._whole] * random), found + [self._whole] * (count - len(found)))

    def check(self, value: ir.Value, shape: Sequence[int]) -> None:
        self.sharding.check(value, shape)

    def call(self, function: Any, shardings: Shardings) -> Callable[..., Any]:
        run = one_at_a_time(function) if self._is_cpu else function
        if not self._is_shared:
            return run

        def call(*arguments: Any) -> Any:  # jax itself would not spread host arrays over several processes
            given = [
                x if isinstance(x, jax.Array) else self._put(np.asarray(x), s)
                for x, s in zip(arguments, shardings.arguments)
            ]
            with lost_processes():
                return run(*given)

        return call

    def entropy(self) -> np.ndarray:
        return common_entropy(ENTROPY.shape[0]) if self._is_shared else fresh_entropy()

    def tracing(self) -> AbstractContextManager[None]:
        return hinting(self.mesh) if self.sharding.several else nullcontext()

    def between(self, value: Any) -> Any:
        return self.host(value) if isinstance(value, jax.Array) else value

    def host(self, value: Any) -> Any:
        if not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated:
            return np.array(value)
        return _assembled(value)

    def _of(self, value: ir.Value) -> NamedSharding:
        spec = self.sharding.specs.get(value)
        return self._whole if spec is None else NamedSharding(self.mesh, PartitionSpec(*(dim or None for dim in spec)))

    def _put(self, array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        if self._is_shared:
            own = np.asarray(array)
            return jax.make_array_from_callback(own.shape, sharding, lambda part: own[part])
        return jax.device_put(array, sharding)


Placement = OneDevice | OnMesh


def placement_of(
    model: ir.Model,
    platform: str,
    mesh: str | None = None,
    shard: str | Sequence[str] | None = None,
    compile_only: bool = False,
) -> Placement:
    """compile_only: on CPU devices that stand for those of the platform.

    Raises OptionError, NoDeviceError, and InputError for a batch that does not divide.
    """
    if mesh is None:
        if shard:
            raise OptionError(
                "shard: there is nothing to split over without a mesh; give mesh='data=4,model=2' as well"
            )
        return OneDevice(own_cpu() if compile_only else device_of(platform))
    axes = parse_mesh(mesh)
    sharding = sharding_of(model, axes, shard)
    return OnMesh(make_mesh("cpu" if compile_only else platform, axes), sharding)


def _assembled(value: jax.Array) -> np.ndarray:
    """An array that several processes share, from the parts that this one has."""
    result = np.empty(value.shape, value.dtype)
    covered = np.zeros(value.shape, bool)
    for shard in value.addressable_shards:
        result[shard.index] = shard.data
        covered[shard.index] = True
    if not covered.all():
        raise PfvmError(
            f"an array {list(value.shape)} is spread over several processes, and this one has only a part of it; "
            "split state over an axis whose devices are in one process (the last axis of the mesh), or leave it whole"
        )
    return result
