"""Arrays ↔ OrtValues for the element types that numpy itself does not have (bfloat16, float8, int4, float4 …)."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    import onnxruntime

_D = ir.DataType
# The session's own numpy interface rejects these; they travel as raw bytes with an explicit element type.
RAW_TYPES = frozenset(
    {
        *(_D.BFLOAT16, _D.FLOAT8E4M3FN, _D.FLOAT8E4M3FNUZ, _D.FLOAT8E5M2, _D.FLOAT8E5M2FNUZ, _D.FLOAT8E8M0),
        *(_D.INT4, _D.UINT4, _D.INT2, _D.UINT2, _D.FLOAT4E2M1),
    }
)

FLOAT4 = _D.FLOAT4E2M1


def as_codes(array: np.ndarray) -> np.ndarray:
    """float4 values as their codes in uint4, of the same shape."""
    return array.view(np.uint8).astype(_D.UINT4.numpy())


def from_codes(array: np.ndarray) -> np.ndarray:
    """The float4 values of codes in uint4."""
    return array.astype(np.uint8).view(FLOAT4.numpy())


def is_extension(array: np.ndarray) -> bool:
    """True for the types of ml_dtypes. Their `kind` does not tell: float8_e5m2 says "f"."""
    return array.dtype.isbuiltin == 2


def to_ort(array: np.ndarray) -> onnxruntime.OrtValue:
    """An OrtValue over the array's memory where the layout allows it, else over a packed copy."""
    import onnxruntime

    array = np.asarray(array, order="C")  # not ascontiguousarray: that turns a scalar into a vector
    if not is_extension(array):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth < 8:
        # ORT takes the element count from the buffer's shape, so the packed bytes sit at the head of a longer buffer.
        packed = np.frombuffer(ir.Tensor(array, dtype=dtype).tobytes(), np.uint8)
        longer = np.zeros(array.size, np.uint8)
        longer[: packed.size] = packed
        buffer = longer.reshape(array.shape)
    else:
        buffer = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(buffer, int(dtype))


def reshaped(value: onnxruntime.OrtValue, shape: tuple[int, ...]) -> onnxruntime.OrtValue:
    """The same memory, of a float32 tensor on the CPU, in another shape."""
    return to_ort(np.asarray(_Memory(value, shape)))


class _Memory:
    """What numpy needs to see an OrtValue's memory; the array keeps the OrtValue alive."""

    def __init__(self, owner: onnxruntime.OrtValue, shape: tuple[int, ...]) -> None:
        self._owner = owner
        self.__array_interface__ = {"shape": shape, "typestr": "<f4", "data": (owner.data_ptr(), False), "version": 3}


def from_ort(value: onnxruntime.OrtValue) -> Any:
    """The OrtValue as an array of its own type; None for an absent optional; a list for a sequence."""
    if not value.has_value():
        return None
    if not value.is_tensor():
        return value.numpy() if not value.is_tensor_sequence() else value._ortvalue.to_list()
    dtype = ir.DataType(value.element_type())
    if dtype not in RAW_TYPES:
        # An array that lies under the value keeps the memory alive; a view of the value would not.
        return value.numpy() if value._numpy_obj is None else value._numpy_obj
    shape = tuple(value.shape())
    size = (math.prod(shape) * dtype.bitwidth + 7) // 8
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    if dtype.bitwidth >= 8:
        return np.frombuffer(bytearray(raw), dtype.numpy()).reshape(shape)
    return _unpack(np.frombuffer(raw, np.uint8), dtype, shape)


def _unpack(raw: np.ndarray, dtype: ir.DataType, shape: tuple[int, ...]) -> np.ndarray:
    """Low bits first, as ONNX packs them; one element per byte in the result, as ml_dtypes holds them."""
    bits = dtype.bitwidth
    fields = np.stack([(raw >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], axis=-1)
    codes = fields.reshape(-1)[: math.prod(shape)]
    if dtype in (ir.DataType.INT4, ir.DataType.INT2):
        signed = codes.astype(np.int8)
        codes = np.where(signed >= 2 ** (bits - 1), signed - 2**bits, signed)
        return codes.astype(dtype.numpy()).reshape(shape)
    if dtype == ir.DataType.FLOAT4E2M1:
        return codes.astype(np.uint8).view(dtype.numpy()).reshape(shape)
    return codes.astype(dtype.numpy()).reshape(shape)
