"""The engines behind the devices: what each takes as options, how it loads a model, and which operators it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import onnx_ir as ir

    from .executable import Executable

Operator = tuple[str, str]  # (domain, name); domain "" is ai.onnx


class Backend(NamedTuple):
    """One engine. Its modules are imported when one of these functions is called.

    load: (model, device name, platform, options) → executable; platform is "cpu", "cuda" or "tpu". ops: the operators
    that it has, with the opset versions from which it does. host_ops: those that it leaves to ONNX Runtime, and why.
    files: (executable, one call of it) → name and content of the files that tell what the device's compiler decided:
    the plan or schedule as l3ir.txt, report.json, …; it calls where nothing is decided before.
    """

    options: tuple[str, ...]
    load: Callable[[ir.Model, str, str, dict[str, Any]], Executable]
    ops: Callable[[], dict[Operator, tuple[int, ...]]]
    host_ops: Callable[[], dict[Operator, str]]
    files: Callable[[Executable, Callable[[], object]], dict[str, bytes]]


def _load_ort(model: ir.Model, name: str, platform: str, options: dict[str, Any]) -> Executable:
    from .image_decoding import load_ort

    return load_ort(model, device=name, **options)


def _ort_ops() -> dict[Operator, tuple[int, ...]]:
    from .image_decoding import OPS
    from .ort import supported_ops

    return dict(sorted({**supported_ops(), **OPS}.items()))


def _no_files(executable: Executable, call: Callable[[], object]) -> dict[str, bytes]:
    return {}


def _load_xla(model: ir.Model, name: str, platform: str, options: dict[str, Any]) -> Executable:
    from .xla.executable import XlaExecutable

    return XlaExecutable(model, platform=platform, **options)


def _xla_ops() -> dict[Operator, tuple[int, ...]]:
    from .xla.registry import supported_ops

    return supported_ops()


def _xla_host_ops() -> dict[Operator, str]:
    from .xla.host_nodes import host_ops

    own = _xla_ops()
    return {op: why for op, why in host_ops().items() if op not in own}


def _xla_files(executable: Executable, call: Callable[[], object]) -> dict[str, bytes]:
    from .xla.artifacts import files_of
    from .xla.executable import XlaExecutable
    from .xla.origins import named

    assert isinstance(executable, XlaExecutable)
    with named():
        call()  # XLA compiles then
    return files_of(executable)


def _load_ahead(model: ir.Model, name: str, platform: str, options: dict[str, Any]) -> Executable:
    from .xla.ahead import AheadExecutable

    return AheadExecutable(model, name.partition("@")[2], **options)


def _ahead_files(executable: Executable, call: Callable[[], object]) -> dict[str, bytes]:
    from .xla.ahead import AheadExecutable
    from .xla.origins import named
    from .xla.tpu_choice import choose
    from .xla.tpu_report import files_of

    assert isinstance(executable, AheadExecutable)
    with named():
        choice = choose(executable)
        return files_of(choice.executable, choice.report())  # no call: there is nothing to run it on


def _load_emulator(model: ir.Model, name: str, platform: str, options: dict[str, Any]) -> Executable:
    from .emulator.executable import EmulatorExecutable

    return EmulatorExecutable(model, device=name, **options)


def _emulator_ops() -> dict[Operator, tuple[int, ...]]:
    from .emulator.operators import supported_ops

    return supported_ops()


def _emulator_files(executable: Executable, call: Callable[[], object]) -> dict[str, bytes]:
    from pfvm.compiler.plan.artifacts import files_of

    from .emulator.executable import EmulatorExecutable

    assert isinstance(executable, EmulatorExecutable)
    if not executable.plans:  # of open shapes
        call()
    return files_of(executable.plans[0])


# Of devices with a topology, which are compiled for and not here.
AHEAD = Backend(
    options=("precision", "bf16", "effort", "shapes", "timeout", "mesh", "shard"),
    load=_load_ahead,
    ops=_xla_ops,
    host_ops=dict,
    files=_ahead_files,
)
# By `Device.backend`, of all others.
BACKENDS = {
    "pfvm": Backend(
        options=("threads", "custom_ops_library", "optimize", "integer_kernels", "spinning"),
        load=_load_ort,
        ops=_ort_ops,
        host_ops=dict,
        files=_no_files,
    ),
    "xla": Backend(
        options=(
            "max_compilations",
            "allow_host",
            "cut_shapes",
            "bucket",
            "fusion",
            "mesh",
            "shard",
            "precision",
            "bf16",
        ),
        load=_load_xla,
        ops=_xla_ops,
        host_ops=_xla_host_ops,
        files=_xla_files,
    ),
    "mncore2": Backend(
        options=("exact", "scheduler", "float_dtype", "sram_budget", "search_steps", "time_budget", "seed"),
        load=_load_emulator,
        ops=_emulator_ops,
        host_ops=dict,
        files=_emulator_files,
    ),
}
