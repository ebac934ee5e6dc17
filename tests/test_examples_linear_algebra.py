"""Promise: loops until convergence and Fourier transforms are one program each, and find what numpy finds."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402

EXAMPLE = pathlib.Path(__file__).parent.parent / "examples" / "power_iteration.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("power_iteration", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_numpy_finds_the_same(example: ModuleType, device: str) -> None:
    found = example.solve(device)
    assert list(found) == ["power iteration", "conjugate gradients", "Poisson by FFT"]
    for own, reference in found.values():
        for name, value in reference.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-8, atol=1e-9)
    assert 20 < int(found["power iteration"][0]["steps"]) < 200
    assert 10 < int(found["conjugate gradients"][0]["steps"]) < 100


def test_a_solver_is_one_executable_with_one_loop(example: ModuleType, tmp_path: pathlib.Path) -> None:
    """Its condition is decided on the device; and the portable program has it for TPUs too."""
    a, b = (torch.from_numpy(x) for x in (example.matrix(0), np.ones(example.SIZE)))
    options = {"device": "xla:cpu", "export": "stablehlo", "output": tmp_path / "solver"}
    run = pfvm.compile(example.conjugate_gradients, (a, b), device="xla:cpu", options=options)
    result = run(a, b)
    (segment,), (text,) = run.executable.segments, run.executable.hlo()
    assert (segment.kind, run.executable.compilations) == ("device", 1)
    assert text.count(" while(") == 1
    assert "stablehlo.while" in (tmp_path / "solver" / "program.mlir").read_text()
    portable = pfvm.load(tmp_path / "solver", device="xla:cpu")({"a": a.numpy(), "b": b.numpy()})
    np.testing.assert_allclose(portable["x"], result["x"], rtol=1e-9)
    assert int(portable["steps"]) == int(result["steps"])


def test_other_data_takes_another_number_of_steps(example: ModuleType) -> None:
    a, b = torch.from_numpy(example.matrix(0)), torch.ones(example.SIZE, dtype=torch.float64)
    run = pfvm.compile(example.conjugate_gradients, (a, b), device="xla:cpu")
    easy = torch.eye(example.SIZE, dtype=torch.float64)
    assert int(run(easy, b)["steps"]) == 1
    assert int(run(a, b)["steps"]) > 10
    assert run.executable.compilations == 1


@pytest.mark.tpu
def test_the_fourier_transform_is_compiled_for_a_tpu(example: ModuleType, tmp_path: pathlib.Path) -> None:
    """Of a fixed size; float64 is computed as float32."""
    pytest.importorskip("libtpu")
    device = "xla:tpu@v5e:1x1"
    pfvm.optimize(onnx.parser.parse_model(example.POISSON), device=device, effort="fast", shape="f=1,256,1",
                  artifacts=tmp_path)  # fmt: skip
    assert (tmp_path / "executable.bin").stat().st_size
