"""What the compiled program of a training step leaves out: copies of state, products that read a factor by column."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import onnx_ir as ir  # noqa: E402
import pfvm  # noqa: E402
from torch import nn  # noqa: E402


def test_weights_of_one_shape_keep_their_memory() -> None:
    model = nn.Sequential(*(nn.Linear(48, 48) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = pfvm.compile(step, torch.ones(8, 48), device="xla:cpu")
    compiled(torch.ones(8, 48))
    (program,) = compiled.executable.hlo()
    # XLA may keep a weight for the gradient of what stands before it; moments are replaced in place.
    assert len(re.findall(r"f32\[48,48\]\S* copy\(", program)) <= 4
    aliases = re.findall(r"\{(\d+)\}: \((\d+), ", program)
    assert len(aliases) == 4 * 8 and all(result == argument for result, argument in aliases)


@pytest.mark.parametrize(("rows", "width"), [(256, 256), (64, 1024)])
def test_the_transposed_factor_of_a_product_is_copied_where_that_pays(rows: int, width: int) -> None:
    graph = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[128, {rows}] a, float[128, {width}] b) => (float[{rows}, {width}] y)
        {{ y = Gemm <transA = 1> (a, b) }}"""
    )
    executable = pfvm.load(graph, device="xla:cpu")
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, n), np.float32) for n in (rows, width))
    np.testing.assert_allclose(executable({"a": a, "b": b})["y"], a.T @ b, rtol=1e-4, atol=1e-4)
    (program,) = executable.hlo()
    assert ("lhs_contracting_dims={1}" in program) == (width < 4 * rows)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked to keep memory")
def test_a_step_computes_in_the_memory_of_the_last() -> None:
    program = """
import resource, statistics, torch, pfvm
from torch import nn
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
x = torch.ones(4096, 64)  # activations of 64 MiB: 16,000 pages
compiled = pfvm.compile(step, x, device="xla:cpu")
faults = []
for _ in range(24):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    compiled(x)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(faults[8:]))  # the heap finds its form in the first calls
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4000
