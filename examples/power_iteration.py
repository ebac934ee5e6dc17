"""Linear algebra that is no neural network: loops that run until they have converged, and a Fourier transform.

python examples/power_iteration.py --device xla:cpu

The largest eigenvalue by power iteration and a linear system by conjugate gradients are PyTorch functions with a
`while_loop`; a differential equation (u'' = f on a circle) solved in Fourier space is an ONNX graph. Each becomes one
program with its loop inside: a call says how many steps it took. All are compared with numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pfvm
import torch
from torch._higher_order_ops import while_loop

SIZE, TOLERANCE, MOST = 120, 1e-10, 2000
Arrays = dict[str, np.ndarray[Any, Any]]

# Second derivatives are products with -k² in Fourier space; the mean of u, which f does not determine, is 0.
POISSON = """<ir_version: 9, opset_import: ["" : 20]>
poisson (double[1, N, 1] f) => (double[1, N, 1] u) <int64 axis = {1}, double zero = {0.0}, double one = {1.0},
  int64 i0 = {0}, int64 i1 = {1}, int64 two = {2}, int64[1] first = {0}, int64[2] around = {0, 2}> {
  spectrum = DFT(f, , axis)
  shape = Shape<start = 1, end = 2>(f) n = Squeeze(shape, first) half = Div(n, two)
  i = Range(i0, n, i1) upper = Greater(i, half) wrapped = Sub(i, n) k = Where(upper, wrapped, i)
  real = Cast<to = 11>(k) square = Mul(real, real) is_mean = Equal(square, zero) safe = Where(is_mean, one, square)
  inverse = Reciprocal(safe) negative = Neg(inverse) factor = Where(is_mean, zero, negative)
  column = Unsqueeze(factor, around) scaled = Mul(spectrum, column)
  complex = DFT<inverse = 1>(scaled, , axis) parts = Constant<value = int64[2] {1, 1}>()
  last = Constant<value_int = 2>() u, rest = Split<axis = 2>(complex, parts)
}"""


def power_iteration(a: torch.Tensor) -> dict[str, torch.Tensor]:
    """The largest eigenvalue of a symmetric matrix [n, n], its vector, and the number of steps."""

    def step(i: Any, vector: torch.Tensor, moved: torch.Tensor) -> Any:
        new = a @ vector
        new = new / torch.linalg.vector_norm(new)
        return i + 1, new, (new - vector).abs().max()

    def goes_on(i: Any, vector: torch.Tensor, moved: torch.Tensor) -> Any:
        return (moved > TOLERANCE) & (i < MOST)

    start = torch.ones(len(a), dtype=a.dtype) / len(a) ** 0.5
    steps, vector, _ = while_loop(goes_on, step, (torch.tensor(0), start, torch.tensor(1.0, dtype=a.dtype)))
    return {"value": vector @ a @ vector, "vector": vector, "steps": steps}


def conjugate_gradients(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """x of a·x = b for a symmetric positive matrix [n, n] and b [n], and the number of steps."""

    def step(i: Any, x: torch.Tensor, rest: torch.Tensor, direction: torch.Tensor) -> Any:
        forward = a @ direction
        length = (rest @ rest) / (direction @ forward)
        new_rest = rest - length * forward
        turned = new_rest + (new_rest @ new_rest) / (rest @ rest) * direction
        return i + 1, x + length * direction, new_rest, turned

    def goes_on(i: Any, x: torch.Tensor, rest: torch.Tensor, direction: torch.Tensor) -> Any:
        return (torch.linalg.vector_norm(rest) > TOLERANCE * torch.linalg.vector_norm(b)) & (i < MOST)

    steps, x, _, _ = while_loop(goes_on, step, (torch.tensor(0), torch.zeros_like(b), b.clone(), b.clone()))
    return {"x": x, "steps": steps}


def matrix(seed: int) -> np.ndarray[Any, Any]:
    """Symmetric, positive, with a largest eigenvalue apart from the others."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0]
    return basis @ np.diag(np.r_[np.linspace(1, 8, SIZE - 1), 12.0]) @ basis.T


def solve(device: str) -> dict[str, tuple[Arrays, Arrays]]:
    """What the device and numpy find, by the program's name."""
    a, b = matrix(0), np.random.default_rng(1).standard_normal(SIZE)
    found: dict[str, tuple[Arrays, Arrays]] = {}

    def compiled(function: Callable[..., Any], *arguments: np.ndarray[Any, Any]) -> Arrays:
        given = tuple(torch.from_numpy(x) for x in arguments)
        run = pfvm.compile(function, given, device=device)
        return {name: value.numpy() for name, value in run(*given).items()}

    values, vectors = np.linalg.eigh(a)
    own = compiled(power_iteration, a)
    vector = vectors[:, -1] * np.sign(vectors[:, -1] @ own["vector"])  # an eigenvector may have either sign
    found["power iteration"] = own, {"value": values[-1], "vector": vector}
    found["conjugate gradients"] = compiled(conjugate_gradients, a, b), {"x": np.linalg.solve(a, b)}

    angle = np.arange(256) * (2 * np.pi / 256)
    right = np.cos(3 * angle) - 2 * np.sin(20 * angle) + np.exp(np.sin(angle))
    right -= right.mean()
    k = np.fft.fftfreq(256, 1 / 256)
    expected = np.fft.ifft(np.fft.fft(right) * -1 / np.where(k == 0, np.inf, k**2)).real
    run = pfvm.load(pfvm.optimize(onnx.parser.parse_model(POISSON)), device=device)
    u = run({"f": right.reshape(1, -1, 1)})["u"].reshape(-1)
    found["Poisson by FFT"] = {"u": u}, {"u": expected}
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, …")
    args = parser.parse_args()
    for name, (own, reference) in solve(args.device).items():
        worst = max(float(np.abs(own[key] - reference[key]).max()) for key in reference)
        steps = f"{int(own['steps'])} steps" if "steps" in own else "no loop"
        print(f"{name:20s} {args.device}: {steps:10s} largest difference from numpy {worst:.1e}")


if __name__ == "__main__":
    main()
