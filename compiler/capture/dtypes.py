"""torch dtypes ↔ ONNX element types, and torch tensors ↔ numpy without a copy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from pfvm.errors import CaptureError

_ONNX = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.bool: ir.DataType.BOOL,
    torch.complex64: ir.DataType.COMPLEX64,
    torch.complex128: ir.DataType.COMPLEX128,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
}
# torch has no numpy form of these; the bytes are the same.
_AS_BITS = {
    torch.bfloat16: (torch.uint16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
_FROM_BITS = {np.dtype(numpy): (bits, dtype) for dtype, (bits, numpy) in _AS_BITS.items()}


def onnx_dtype(dtype: torch.dtype) -> ir.DataType:
    """The ONNX element type. Raises CaptureError for quantized and other types that ONNX does not have."""
    if dtype not in _ONNX:
        raise CaptureError(f"{dtype} tensors have no ONNX form; convert them to another dtype first")
    return _ONNX[dtype]


def ready_array(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """The values of an ordinary tensor on the CPU, a batch in every call of a step say; None for any other.

    Asking first for all that numpy() may refuse would take longer than the rest.
    """
    if type(tensor) is not torch.Tensor or tensor.dtype in _AS_BITS or tensor.requires_grad:
        return None
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except (TypeError, RuntimeError):  # sparse, quantized, on another device, a conjugate that is not computed yet
        return None
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's values; shares memory with a contiguous CPU tensor."""
    array = ready_array(tensor)
    if array is not None:
        return array
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    tensor = tensor.cpu().contiguous()
    if tensor.dtype in _AS_BITS:
        bits, numpy_dtype = _AS_BITS[tensor.dtype]
        return tensor.view(bits).numpy().view(numpy_dtype)
    return tensor.numpy()


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The array's values as a tensor; shares memory where the array is writable and contiguous."""
    array = np.asarray(array)
    if not array.flags.c_contiguous or not array.flags.writeable:
        array = array.copy()
    if array.dtype in _FROM_BITS:
        bits, dtype = _FROM_BITS[array.dtype]
        return torch.from_numpy(array.view(to_numpy(torch.empty(0, dtype=bits)).dtype)).view(dtype)
    return torch.from_numpy(array)
