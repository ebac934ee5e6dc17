"""Fourier transforms and what audio front ends build around them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def dft(ctx: Context, node: ir.Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    """The last axis holds real and imaginary part (or the real part only). `axis` is an input from opset 20 on."""
    if ctx.opset >= 20:
        along = -2 if axis is None else ctx.ints(axis)[0]
    else:
        along = ctx.attr("axis", 1)
    along = along + x.ndim if along < 0 else along
    count = None if length is None else ctx.ints(length)[0]
    onesided, inverse = ctx.attr("onesided", 0), ctx.attr("inverse", 0)
    if onesided and inverse:
        return _pairs(jnp.fft.irfft(_complex(x), n=count, axis=along), x.dtype, real=True)
    spectrum = (
        jnp.fft.ifft(_complex(x), n=count, axis=along) if inverse else jnp.fft.fft(_complex(x), n=count, axis=along)
    )
    if onesided:
        spectrum = jnp.take(spectrum, np.arange(spectrum.shape[along] // 2 + 1), axis=along)
    return _pairs(spectrum, x.dtype)


def _complex(x: Any) -> Any:
    """In double precision: a single-precision FFT leaves noise of 1e-6 of the largest term in every bin."""
    wide = x.astype(jnp.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0] + 0j


def _pairs(z: Any, dtype: Any, real: bool = False) -> Any:
    return z[..., None].astype(dtype) if real else jnp.stack([z.real, z.imag], axis=-1).astype(dtype)


def stft(ctx: Context, node: ir.Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """x: batch, samples[, 1 or 2]. Result: batch, frames, bins, 2."""
    hop = ctx.ints(step)[0]
    size = ctx.ints(length)[0] if length is not None else window.shape[0]
    signal = _complex(x) if x.ndim == 3 else x.astype(jnp.float64)
    frames = (signal.shape[1] - size) // hop + 1
    index = np.arange(frames)[:, None] * hop + np.arange(size)[None, :]
    cut = signal[:, index]
    spectrum = jnp.fft.fft(cut if window is None else cut * window, axis=-1)
    if ctx.attr("onesided", 1):
        spectrum = spectrum[..., : size // 2 + 1]
    return _pairs(spectrum, x.dtype)


def mel_weight_matrix(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    """Triangular filters, evenly spaced on the mel scale 2595 · log10(1 + f / 700); (bins, filters)."""
    count, size, rate, low, high = (float(ctx.concrete(v).reshape(())) for v in operands)
    edges = np.arange(int(count) + 2, dtype=np.float64)
    low_mel, high_mel = (2595 * np.log10(1 + f / 700) for f in (low, high))
    edges = 700 * (10 ** ((edges * (high_mel - low_mel) / (count + 2) + low_mel) / 2595) - 1)
    edges = (edges * (size + 1)) // rate
    bins = int(size) // 2 + 1
    weights = np.zeros((bins, int(count)))
    for i in range(int(count)):
        lower, centre, upper = (int(e) for e in edges[i : i + 3])
        if centre == lower:
            weights[centre, i] = 1
        else:
            weights[lower : centre + 1, i] = (np.arange(lower, centre + 1) - lower) / (centre - lower)
        if upper > centre:
            weights[centre:upper, i] = (upper - np.arange(centre, upper)) / (upper - centre)
    return weights.astype(ir.DataType(ctx.attr("output_datatype")).numpy())


register("DFT", since=17)(dft)
register("STFT", since=17)(stft)
register("MelWeightMatrix", since=17, place="host")(mel_weight_matrix)
