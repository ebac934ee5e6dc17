"""Types that several passes ask for."""

from __future__ import annotations

import onnx_ir as ir

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Those in which numbers may be added up in another order; in half precision each rounding shows."""
ALL_FLOATS = FLOATS | {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
