"""Devices and the strings that name them ("pfvm:cpu", "xla:tpu@v5e:1x1")."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pfvm.errors import MissingExtraError, NoDeviceError, OptionError, UnsupportedOpError, did_you_mean, short

from .backends import AHEAD, BACKENDS, Backend, Operator
from .hardware import nvidia_gpu_is_here, tpu_is_here
from .topology import parse_topology

if TYPE_CHECKING:
    import onnx_ir as ir

    from .executable import Executable

Status = Literal["ready", "compile-only", "missing"]


@dataclass(frozen=True)
class Device:
    """One device. `topology` is what follows "@": the chips to compile for when none is attached."""

    name: str
    backend: str  # "pfvm", "xla" or "mncore2"
    platform: str  # "cpu", "cuda", "tpu", "emu", "auto"
    note: str
    extra: str | None = None  # the pip extra that it needs
    modules: tuple[str, ...] = ()  # the modules that this extra brings; one of them is enough
    engine: str | None = None  # a module that all of them need
    library: tuple[str, str] | None = None  # a package and the pattern of a file in it that must be there
    command: str | None = None  # how to install it, where no extra does
    topology: str | None = None

    @property
    def status(self) -> Status:
        """ "ready"; "missing" when its extra is not installed; "compile-only" when that is, without the hardware."""
        if self.engine is not None and not _is_installed(self.engine):
            return "missing"
        if self.modules and not any(map(_is_installed, self.modules)):
            return "missing"
        if self.library is not None and not _has_file(*self.library):
            return "missing"
        if self.topology is not None or (self.platform == "tpu" and not tpu_is_here()):
            return "compile-only"
        return "ready"

    @property
    def presence(self) -> str:
        """What a user can expect of it here: "present", "compile-only", "emulated", "missing", or "no GPU"."""
        if self.status != "ready":
            return self.status
        if self.platform == "cuda" and not nvidia_gpu_is_here():
            return "no GPU"
        return "emulated" if self.backend == "mncore2" else "present"

    @property
    def advice(self) -> str:
        """What the device is, and what it needs where it is not there."""
        if self.status == "missing":
            return f"{self.note}; install it with: {self._install}"
        if self.presence == "no GPU":
            return f"{self.note}; its software is installed, and no GPU with its driver is here"
        if self.status == "compile-only" and self.topology is None:
            return f"{self.note}; no TPU is here"
        return self.note

    @property
    def _install(self) -> str:
        return self.command or f"pip install 'pfvm[{self.extra}]'"

    def require(self) -> None:
        """Raises MissingExtraError or NoDeviceError unless the device is ready, or one to compile for."""
        status = self.status
        if status == "missing" and self.extra is None:
            raise NoDeviceError(f"device {self.name} ({self.note}) is not here; install it with: {self._install}")
        if status == "missing":
            raise MissingExtraError(f"device {self.name}", self.extra or "")
        if status == "compile-only" and self.topology is None:
            ready = ", ".join(d.name for d in _TABLE if d.status == "ready")
            raise NoDeviceError(
                f"device {self.name}: no TPU is here; {self.name}@v5e:1x1, or another topology, compiles for one all "
                f"the same, and these run here: {ready}"
            )


def _is_installed(module: str) -> bool:
    """Is it there to be imported? A folder of that name, where pfvm happens to be started, is no module."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def _has_file(package: str, pattern: str) -> bool:
    """Does an installed package have such a file? It is not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations or [] if spec is not None else []
    return any(True for folder in folders for _ in pathlib.Path(folder).glob(pattern))


_TABLE = (
    Device(
        "pfvm:cpu", "pfvm", "cpu", "ONNX Runtime on the CPU", engine="onnxruntime", command="pip install onnxruntime"
    ),
    Device("xla:cpu", "xla", "cpu", "XLA on the CPU, through JAX", extra="xla", modules=("jaxlib",), engine="jax"),
    Device(
        "pfvm:cuda",
        "pfvm",
        "cuda",
        "ONNX Runtime on an NVIDIA GPU",
        library=("onnxruntime", "capi/*onnxruntime_providers_cuda*"),
        command="pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'",
    ),
    Device(
        "xla:cuda",
        "xla",
        "cuda",
        "XLA on an NVIDIA GPU",
        extra="cuda",
        modules=("jax_cuda13_plugin", "jax_cuda12_plugin"),
        engine="jax",
    ),
    Device(
        "xla:tpu",
        "xla",
        "tpu",
        "XLA on a TPU; xla:tpu@TOPOLOGY compiles for one that is not attached",
        extra="tpu",
        modules=("libtpu",),
        engine="jax",
    ),
    Device("mncore2:emu", "mncore2", "emu", "emulated MN-Core 2: the planned graph in numpy"),
    Device("mncore2:auto", "mncore2", "auto", "MN-Core 2, emulated: there is no program for a board"),
)
_BY_NAME = {device.name: device for device in _TABLE}


def devices() -> list[Device]:
    """Every known device, ready or not. Loads no backend."""
    return list(_TABLE)


def parse_device(text: str | Device) -> Device:
    """The device that a string names. Raises OptionError, with those that are known, for another device or topology."""
    if isinstance(text, Device):
        return text
    if not isinstance(text, str):
        near = did_you_mean(text, _BY_NAME)
        raise OptionError(f"a device is a string such as 'pfvm:cpu' (see pfvm.devices()), not {short(text)}{near}")
    name, at, topology = text.partition("@")
    device = _BY_NAME.get(name)
    if device is None:
        near, known = did_you_mean(text.replace("gpu", "cuda"), _BY_NAME), ", ".join([*_BY_NAME, "xla:tpu@TOPOLOGY"])
        raise OptionError(f"unknown device {text!r}{near}; known devices: {known}")
    if not at:
        return device
    if device.platform != "tpu" or not topology:
        raise OptionError(f"device {text!r}: only xla:tpu takes a topology, as in xla:tpu@v5e:1x1")
    if "," in topology:
        raise OptionError(f"device {text!r}: one topology; `pfvm compile` takes several, and compares them")
    found = parse_topology(topology)
    note = f"{found.chip.kind}, {found.devices} device{'s' if found.devices > 1 else ''}, compiled for with libtpu"
    return dataclasses.replace(device, name=f"{name}@{found.name}", note=note, topology=found.name)


def parse_devices(text: str) -> list[Device]:
    """As `parse_device`, of a list of topologies: "xla:tpu@v5e:1x1,v6e:1x1" are two devices."""
    name, at, topologies = text.partition("@")
    names = [f"{name}@{each.strip().removeprefix(f'{name}@')}" for each in topologies.split(",")] if at else [text]
    return list({device.name: device for device in map(parse_device, names)}.values())


def load_executable(model: ir.Model, device: str | Device = "pfvm:cpu", **options: Any) -> Executable:
    """Loads a model (not changed) on a device.

    options go to the backend: threads, spinning, custom_ops_library, integer_kernels for pfvm devices;
    max_compilations, allow_host, cut_shapes, bucket, fusion and precision for xla devices (see XlaExecutable);
    precision, effort, shapes and timeout for xla:tpu@TOPOLOGY (see AheadExecutable); exact, scheduler, float_dtype,
    sram_budget, search_steps, time_budget and seed for mncore2 devices (see EmulatorExecutable).
    Raises OptionError for an unknown device or option, MissingExtraError, NoDeviceError, and what the backend raises
    for the model.
    """
    device = parse_device(device)
    device.require()
    backend = _backend(device)
    try:
        return backend.load(model, device.name, device.platform, _checked(device, backend, options))
    except UnsupportedOpError as error:
        advice = _elsewhere(model, device)
        if not advice or all(name in str(error) for name in advice):
            raise
        raise UnsupportedOpError(
            f"{error}; {' and '.join(advice)} {'has' if len(advice) == 1 else 'have'} all operators of this model"
        ) from error


def device_files(executable: Executable, device: str | Device, call: Callable[[], object]) -> dict[str, bytes]:
    """Name and content of the files that tell what the device's compiler decided for an executable, none for ONNX
    Runtime. `call`: a call of it, made where the compiler decides at the first one.
    """
    return _backend(parse_device(device)).files(executable, call)


def _backend(device: Device) -> Backend:
    return AHEAD if device.topology is not None else BACKENDS[device.backend]


def _elsewhere(model: ir.Model, device: Device) -> list[str]:
    """The other ready devices, emulated ones apart, that have every operator of the model."""
    nodes = [*model.graph.all_nodes(), *(n for function in model.functions.values() for n in function.all_nodes())]
    needed = {(n.domain, n.op_type) for n in nodes if n.op_identifier() not in model.functions}
    others = [d for d in _TABLE if d.status == "ready" and d.name != device.name and d.backend != "mncore2"]
    return [d.name for d in others if needed <= device_ops(d).keys() | {("", "Constant")}]


def device_ops(device: Device) -> dict[Operator, tuple[int, ...]]:
    """(domain, operator) → the opset versions from which the device has a kernel or a lowering of its own.

    Domain "" is ai.onnx. GPUs and TPUs have those of the CPU: they are lowered for all, or ONNX Runtime falls back to
    the CPU. Raises MissingExtraError.
    """
    (_BY_NAME[f"{device.backend}:cpu"] if device.platform in ("cuda", "tpu") else device).require()
    return BACKENDS[device.backend].ops()


def host_ops(device: Device) -> dict[Operator, str]:
    """(domain, operator) → why it runs in a host segment: operators that the device itself has no program for."""
    if device.platform == "tpu":  # there a cut is an error
        return {}
    return BACKENDS[device.backend].host_ops()


def _checked(device: Device, backend: Backend, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are given. None means "not given", so that the command line can pass all its flags."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in backend.options:
            near = did_you_mean(name, backend.options)
            raise OptionError(
                f"device {device.name} has no option {name!r}{near}; its options: {', '.join(backend.options)}"
            )
    return given
