"""ONNX graph → XLA executable, through JAX. The only part of pfvm that imports jax."""

from __future__ import annotations

from .executable import XlaExecutable
from .registry import supported_ops

__all__ = ["XlaExecutable", "supported_ops"]
