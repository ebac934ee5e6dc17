"""Promise: every documented device is known; what is missing says so, and what to do."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import onnx
import onnx_ir as ir
import pfvm
import pytest
from pfvm.errors import MissingExtraError, NoDeviceError, OptionError, UnsupportedOpError
from pfvm.runtime.device import devices, load_executable, parse_device, parse_devices
from support import has_gpu

TEXT = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Relu (x) }'


def relu() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(TEXT))


def test_the_documented_devices_are_known() -> None:
    names = {"pfvm:cpu", "pfvm:cuda", "xla:cpu", "xla:cuda", "xla:tpu", "mncore2:emu", "mncore2:auto"}
    assert {d.name for d in devices()} == names
    assert pfvm.devices() == devices()
    topology = parse_device("xla:tpu@v5e:1x1")
    assert (topology.platform, topology.topology) == ("tpu", "v5e:1x1")


@pytest.mark.parametrize("text", ["cpu", "pfvm", "xla:gpu", "", "PFVM:CPU"])
def test_an_unknown_device_lists_the_known_ones(text: str) -> None:
    with pytest.raises(OptionError, match=r"unknown device .*known devices: pfvm:cpu, xla:cpu, .*xla:tpu@TOPOLOGY"):
        parse_device(text)


@pytest.mark.parametrize("text", ["pfvm:cpu@v5e:1x1", "xla:tpu@"])
def test_only_a_tpu_has_a_topology(text: str) -> None:
    with pytest.raises(OptionError, match="only xla:tpu takes a topology"):
        parse_device(text)


def test_a_tpu_that_is_not_here_can_be_compiled_for() -> None:
    device = parse_device("xla:tpu")
    if device.status != "compile-only":
        pytest.skip(f"xla:tpu is {device.status} here")
    with pytest.raises(
        NoDeviceError, match=r"device xla:tpu: no TPU is here; xla:tpu@v5e:1x1.*these run here: pfvm:cpu"
    ):
        load_executable(relu(), "xla:tpu")
    assert parse_device("xla:tpu@v5e:1x1").presence == "compile-only"


def test_without_libtpu_a_tpu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "libtpu" else found(name, *rest)
    )
    for name in ("xla:tpu", "xla:tpu@v5e:1x1"):
        assert parse_device(name).status == "missing"
        with pytest.raises(
            MissingExtraError, match=rf"device {name} needs the 'tpu' extra: pip install 'pfvm\[tpu\]'$"
        ):
            load_executable(relu(), name)


def test_each_device_needs_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jax, libtpu alone compiles nothing; a folder that is called jax is not jax."""
    found = importlib.util.find_spec
    for gone, devices_without in (("jax", ["xla:cpu", "xla:tpu"]), ("onnxruntime", ["pfvm:cpu"])):
        folder = importlib.machinery.ModuleSpec(gone, None, is_package=True)
        for spec in (None, folder):
            monkeypatch.setattr(
                importlib.util, "find_spec", lambda name, *rest, g=gone, s=spec: s if name == g else found(name, *rest)
            )
            for name in devices_without:
                device = parse_device(name)
                assert device.presence == "missing"
                assert "; install it with: pip install " in device.advice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5:1x1", r"no chip 'v5'; did you mean 'v5e:1x1'\?; chips: v2, v3, v4, v5e, v5p, v6e, tpu7x"),
        ("v5e:1", r"v5e has 2 dimensions, v5e:XxY; did you mean"),
        ("v4:2x2", r"v4 has 3 dimensions, v4:XxYxZ; did you mean 'v4:2x2x1'"),
        ("v6e:0x1", r"v6e has 2 dimensions"),
        ("v5e:1x1,v6e:1x1", r"one topology; `pfvm compile` takes several"),
    ],
)
def test_a_topology_is_checked(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_device(f"xla:tpu@{text}")


def test_a_list_of_topologies_is_a_list_of_devices() -> None:
    names = [device.name for device in parse_devices("xla:tpu@v5e:1x1, v6e:2x2,v5e:1x1")]
    assert names == ["xla:tpu@v5e:1x1", "xla:tpu@v6e:2x2"]


def test_every_device_says_what_to_expect_of_it() -> None:
    assert {d.name: d.presence for d in devices()}["mncore2:emu"] == "emulated"
    assert {d.presence for d in devices()} <= {"present", "compile-only", "emulated", "missing", "no GPU"}


@pytest.mark.parametrize("name", ["pfvm:cuda", "xla:cuda"])
def test_a_gpu_that_is_not_here_says_what_it_needs(name: str) -> None:
    device = parse_device(name)
    if device.status == "ready":
        pytest.skip("the libraries for a GPU are installed")
    assert device.status == "missing" and "install it with: pip" in device.advice
    with pytest.raises((NoDeviceError, MissingExtraError), match=f"device {name} .*pip install"):
        load_executable(relu(), name)


def test_a_gpu_whose_libraries_find_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    if has_gpu("pfvm:cuda") or has_gpu("xla:cuda"):
        pytest.skip("there is a GPU")
    monkeypatch.setattr(type(parse_device("pfvm:cuda")), "status", "ready")
    with pytest.raises(
        NoDeviceError, match=r"device pfvm:cuda is not here: .*CPUExecutionProvider; it needs an NVIDIA"
    ):
        load_executable(relu(), "pfvm:cuda")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    with (
        pytest.warns(UserWarning, match="not in available provider names"),  # its own; it would go on on the CPU
        pytest.raises(NoDeviceError, match=r"device pfvm:cuda is not here: .*CPUExecutionProvider; it needs"),
    ):
        load_executable(relu(), "pfvm:cuda")
    with pytest.raises(NoDeviceError, match=r"device xla:cuda is not here \(.*\); it needs an NVIDIA GPU"):
        load_executable(relu(), "xla:cuda")


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "jax" else find(name, *rest))
    device = parse_device("xla:cpu")
    assert device.status == "missing"
    assert "pip install 'pfvm[xla]'" in device.advice
    with pytest.raises(MissingExtraError, match=r"device xla:cpu needs the 'xla' extra: pip install 'pfvm\[xla\]'"):
        load_executable(relu(), device)


@pytest.mark.parametrize("name", ["compile", "export"])
def test_without_torch_a_call_names_the_pip_command(name: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import pfvm
function = pfvm.{name}
try:
    function(lambda x: x, 3)
except pfvm.PfvmError as error:
    print(type(error).__name__, error)
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    assert said == f"MissingExtraError pfvm.{name} needs the 'torch' extra: pip install 'pfvm[torch]'"


def test_an_operator_that_is_missing_names_type_and_another_device() -> None:
    pytest.importorskip("jax")
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (double[1,4,5,5] x) => (double[1,4,5,5] y) { a = Neg (x)  y = LRN <size=3> (a) }"""
    with pytest.raises(UnsupportedOpError, match=r"with double; .*; xla:cpu has all operators of this model$"):
        load_executable(ir.from_proto(onnx.parser.parse_model(text)), "pfvm:cpu")


def test_an_executable_shows_its_signature() -> None:
    assert repr(load_executable(relu(), "pfvm:cpu")) == "<pfvm:cpu: x float[2] → y float[2]>"
    pytest.importorskip("jax")
    assert repr(load_executable(relu(), "xla:cpu")) == "<xla:cpu: x float[2] → y float[2]>"


def test_the_nearest_device_is_suggested() -> None:
    for wrong in ("cpu", "PFVM:CPU", "pfvm:cpuu"):
        with pytest.raises(OptionError, match=rf"unknown device '{wrong}'; did you mean 'pfvm:cpu'\?; known"):
            parse_device(wrong)
    for wrong, right in (("gpu", "pfvm:cuda"), ("xla:gpu", "xla:cuda")):
        with pytest.raises(OptionError, match=rf"unknown device '{wrong}'; did you mean '{right}'\?"):
            parse_device(wrong)
    with pytest.raises(OptionError, match=r"a device is a string such as 'pfvm:cpu' .*, not None"):
        parse_device(None)  # type: ignore[arg-type]


def test_options_are_checked_per_device() -> None:
    assert load_executable(relu(), "pfvm:cpu", threads=1, custom_ops_library=None).outputs[0].name == "y"
    with pytest.raises(OptionError, match=r"device pfvm:cpu has no option 'thread'; did you mean 'threads'\?; its"):
        load_executable(relu(), "pfvm:cpu", thread=1)
    with pytest.raises(OptionError, match="threads must be at least 1, not 'two'"):
        load_executable(relu(), "pfvm:cpu", threads="two")
    with pytest.raises(OptionError, match="custom_ops_library is a file's path, not 3"):
        load_executable(relu(), "pfvm:cpu", custom_ops_library=3)


def test_listing_devices_loads_no_backend() -> None:
    code = (
        "import pfvm, sys; [d.status for d in pfvm.devices()];"
        "print([m for m in ('torch', 'jax', 'onnxruntime') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
