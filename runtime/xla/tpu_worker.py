"""Compiles one program for a TPU topology: `python tpu_worker.py FOLDER`, started by `tpu_compiler` and nothing else.

A process of its own, since libtpu reads its settings once, before jax is imported, and ends the process where something
is wrong. It imports nothing of pfvm. FOLDER has request.json and program.bin (a serialized jax.export.Exported). It
gets hlo.txt, executable.bin (what jax.experimental.serialize_executable.deserialize_and_load takes, pickled) and last
reply.json, with the error where there was one.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import sys
import time
from typing import Any


def main(folder: pathlib.Path) -> None:
    """Compile what the folder asks for, and leave the reply there."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        reply = compile_program(folder, request)
    except Exception as error:  # all that jax, XLA and libtpu raise goes to the parent
        reply = {"error": type(error).__name__, "message": str(error)}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def compile_program(folder: pathlib.Path, request: dict[str, Any]) -> dict[str, Any]:
    """Writes hlo.txt and executable.bin; returns what the compiler says of the program."""
    import jax
    import jax.export
    from jax.experimental import serialize_executable

    devices = _devices(request["topology"], request["one_chip_hosts"])
    exported = jax.export.deserialize(bytearray((folder / "program.bin").read_bytes()))

    def program(*arguments: Any) -> Any:
        return exported.call(*arguments)

    given, results = _shardings(devices, request["spread"])
    jitted = jax.jit(
        program,
        in_shardings=given,
        out_shardings=results,
        donate_argnums=tuple(request["donated"]),
        compiler_options=request["compiler_options"],
    )
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    start = time.perf_counter()
    compiled = jitted.trace(*structs).lower(lowering_platforms=("tpu",)).compile()
    seconds = time.perf_counter() - start
    (folder / "hlo.txt").write_text(compiled.as_text() or "", encoding="utf-8")
    (folder / "executable.bin").write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
    memory = compiled.memory_analysis()
    return {
        "seconds": seconds,
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "memory": {key: getattr(memory, key) for key in dir(memory) if key.endswith("_in_bytes")},
        "cost": {key: value for key, value in (compiled.cost_analysis() or {}).items() if "{" not in key},
    }


def _shardings(devices: Any, spread: dict[str, Any] | None) -> tuple[Any, Any]:
    """Of arguments and results: the first device's, or those of a mesh of the first devices."""
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    if spread is None:
        sharding = SingleDeviceSharding(devices[0])
        return sharding, sharding
    axes = spread["axes"]
    shape = tuple(axes.values())
    mesh = Mesh(
        np.array(devices[: int(np.prod(shape))], object).reshape(shape),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
    )
    found = [
        [
            None if dims is None else NamedSharding(mesh, PartitionSpec(*(tuple(dim) or None for dim in dims)))
            for dims in part
        ]
        for part in (spread["arguments"], spread["results"])
    ]
    return tuple(found[0]), found[1]


def _devices(topology: str, one_chip_hosts: list[int]) -> Any:
    """The devices of a topology; where it is smaller than a usual host, on hosts of one chip."""
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(topology, "tpu").devices
    except Exception as error:
        if "chips_per_host_bounds" not in str(error):
            raise
    return topologies.get_topology_desc(topology, "tpu", chips_per_host_bounds=tuple(one_chip_hosts)).devices


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
