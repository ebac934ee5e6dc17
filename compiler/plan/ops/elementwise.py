"""Operators that compute each element of the output from the elements at its place: strictly local."""

from __future__ import annotations

from .table import Rule, elements

# Elementwise with f(0, …, 0) = 0: padding of zeros stays zeros.
_KEEPS_ZERO = """
Abs Add Asin Asinh Atan Atanh BitwiseAnd BitwiseOr BitwiseXor BitShift Ceil Celu Elu Erf Expm1 Floor Gelu HardSwish
LeakyRelu Max Mean Min Mish Mul Neg PRelu Relu Round Selu Shrink Sign Sin Sinh Softsign Sqrt Sub Sum Swish Tan Tanh
ThresholdedRelu And Or Xor Cast CastLike
"""
_CHANGES_ZERO = """
Acos Acosh BitwiseNot Clip Cos Cosh Div Equal Exp Greater GreaterOrEqual HardSigmoid IsInf IsNaN Less LessOrEqual Log
Mod Not Pow Reciprocal Sigmoid Softplus Where QuantizeLinear DequantizeLinear
"""

# Mod, Div: 0/0 is no zero. BatchNormalization in inference is a multiply-add; its statistics broadcast.
RULES = {("", name): Rule("elementwise", keeps_zero=True) for name in _KEEPS_ZERO.split()}
RULES |= {("", name): Rule("elementwise") for name in _CHANGES_ZERO.split()}
RULES["", "BatchNormalization"] = Rule("elementwise", flops=lambda node: 2 * elements(node))
RULES["pfvm", "ReluGrad"] = Rule("elementwise", keeps_zero=True)
