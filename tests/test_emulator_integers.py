"""Promise: integers on `mncore2:emu` are those of their ONNX type, to the last digit and wrapped around."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pfvm
import pytest
from pfvm.errors import PfvmError

Arrays = dict[str, np.ndarray]

KINDS = {"int64": 7, "int32": 6, "uint64": 13, "uint32": 12, "int8": 3, "uint8": 2}
BINARY = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitwiseXor", "BitwiseAnd", "BitwiseOr")
STATEMENTS = {  # how y comes from a, b and the constants c = 3 and whole = [4, 10]
    **{op: f"y = {op}(a, b)" for op in BINARY},
    **{op: f"t = {op}(a, b) y = Cast<to=KIND>(t)" for op in ("Less", "GreaterOrEqual", "Equal")},
    **{op: f"y = {op}(a)" for op in ("Neg", "Abs", "Sign", "Relu", "BitwiseNot")},
    **{op: f"t = {op}(a) y = Expand(t, whole)" for op in ("ReduceMax", "ReduceMin")},
    **{op: f"s = {op}<axis=1>(a) t = Cast<to=KIND>(s) y = Expand(t, whole)" for op in ("ArgMax", "ArgMin")},
    **{f"Cast {name}": f"t = Cast<to={code}>(a) y = Cast<to=KIND>(t)" for name, code in KINDS.items()},
    **{
        f"BitShift {way}": f'u = Cast<to=UNSIGNED>(a) v = Cast<to=UNSIGNED>(c) t = BitShift<direction="{way}">(u, v) '
        "y = Cast<to=KIND>(t)"
        for way in ("LEFT", "RIGHT")
    },
    "Mod fmod": "y = Mod<fmod=1>(a, b)",
    "CumSum": "one = Constant<value_int=1>() y = CumSum(a, one)",
    "MatMul": "t = Transpose<perm=[1, 0]>(b) u = MatMul(a, t) y = MatMul(u, b)",
    "MatMulInteger": "u = Cast<to=2>(a) v = Cast<to=3>(b) t = Transpose<perm=[1, 0]>(v) s = MatMulInteger(u, t) "
    "m = ReduceMax(s) w = Cast<to=KIND>(m) y = Expand(w, whole)",
    "Clip": "high = ReduceMax<keepdims=0>(a) y = Clip(a, c, high)",
    "Where": "t = Greater(a, b) y = Where(t, a, b)",
    "moved": "t = Transpose<perm=[1, 0]>(a) u = Concat<axis=1>(t, t) v = Transpose<perm=[1, 0]>(u) "
    "s, w = Split<axis=0, num_outputs=2>(v) y = Add(s, w)",
    "TopK": "k = Constant<value_ints=[10]>() y, i = TopK<axis=1>(a, k)",
    "Pow": "t = Mod<fmod=1>(a, c) y = Pow(t, c)",
}
# What ONNX Runtime has no kernel for, or computes in float64.
IN_NUMPY: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "ReduceSum": ("t = ReduceSum(a) y = Expand(t, whole)", lambda a, b: a.sum(dtype=a.dtype)),
    "ReduceProd": ("t = ReduceProd(a) y = Expand(t, whole)", lambda a, b: a.prod(dtype=a.dtype)),
    "ReduceSumSquare": ("t = ReduceSumSquare(a) y = Expand(t, whole)", lambda a, b: (a * a).sum(dtype=a.dtype)),
    "ReduceL1": ("t = ReduceL1(a) y = Expand(t, whole)", lambda a, b: np.abs(a).sum(dtype=a.dtype)),
    "Gemm": (
        "u = Gemm<transB=1, alpha=2.0>(a, b) y = Gemm<beta=-3.0>(u, b, a)",
        lambda a, b: (a @ b.T * a.dtype.type(2)) @ b - a.dtype.type(3) * a,
    ),
    "Pow": ("y = Pow(a, c)", lambda a, b: a * a * a),
}


def operands(kind: str) -> Arrays:
    """Random ones, and the limits with what stands beside them."""
    limits, random = np.iinfo(kind), np.random.default_rng(3)
    near = [limits.min, limits.min + 1, limits.min + 2, limits.max, limits.max - 1, limits.max // 2 + 1, 1, 2, 3, 7]

    def some() -> np.ndarray:
        drawn = random.integers(limits.min, limits.max, 30, kind, endpoint=True)
        return random.permutation(np.concatenate([np.array(near, kind), drawn])).reshape(4, 10)

    a, b = some(), some()
    b[b == 0] = 5
    if limits.min < 0:
        b[b == -1] = 3  # the lowest number by -1 stops ONNX Runtime
    return {"a": a, "b": b}


def model(kind: str, statements: str) -> onnx.ModelProto:
    unsigned = KINDS[f"u{kind.removeprefix('u')}"]
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({kind}[4,10] a, {kind}[4,10] b) => ({kind}[4,10] y) '
        f"<{kind} c = {{3}}, int64[2] whole = {{4, 10}}> "
        f"{{ {statements.replace('KIND', str(KINDS[kind])).replace('UNSIGNED', str(unsigned))} }}"
    )


def check(proto: onnx.ModelProto, feeds: Arrays, expected: np.ndarray) -> None:
    for exact in (False, True):
        run = pfvm.load(proto, device="mncore2:emu", exact=exact)
        for _ in range(2):  # the first call adds up as the cells do
            got = run(feeds)["y"]
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", STATEMENTS)
def test_an_integer_operator_is_that_of_onnx_runtime(name: str) -> None:
    compared = 0
    for kind in KINDS:
        proto, feeds = model(kind, STATEMENTS[name]), operands(kind)
        try:
            expected = pfvm.load(proto, device="pfvm:cpu")(feeds)["y"]
        except PfvmError:  # no kernel for the type
            continue
        check(proto, feeds, expected)
        compared += 1
    assert compared > 1


@pytest.mark.parametrize("name", IN_NUMPY)
@pytest.mark.parametrize("kind", ["int64", "int32", "uint64", "uint32"])
def test_an_integer_operator_wraps_around(name: str, kind: str) -> None:
    statements, function = IN_NUMPY[name]
    feeds = operands(kind)
    with np.errstate(over="ignore"):
        expected = np.broadcast_to(function(feeds["a"], feeds["b"]), (4, 10))
    check(model(kind, statements), feeds, expected)


def test_a_mean_of_integers_is_cut_towards_zero() -> None:
    x = np.array([[-7, 0], [2**62, 3 - 2**62]])
    text = '<ir_version: 10, opset_import: ["" : 21]> g (int64[2,2] x) => (int64[1,1] y) { y = ReduceMean(x) }'
    run = pfvm.load(onnx.parser.parse_model(text), device="mncore2:emu")
    assert run({"x": x})["y"].tolist() == [[-1]]


def test_a_negative_exponent_leaves_one_and_minus_one() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (int64[5] x, int64[5] n) => (int64[5] y) { y = Pow(x, n) }'
    run = pfvm.load(onnx.parser.parse_model(text), device="mncore2:emu")
    feeds = {"x": np.array([1, -1, -1, 2, -3]), "n": np.array([-3, -2, -3, -1, -5])}
    assert run(feeds)["y"].tolist() == [1, 1, -1, 0, 0]


def test_a_dropout_has_the_mask_of_other_devices() -> None:
    torch = pytest.importorskip("torch")

    def step(inputs: dict) -> dict:
        return {"y": torch.nn.functional.dropout(inputs["x"], 0.5, True)}

    found = []
    for device, options in (("pfvm:cpu", {}), ("mncore2:emu", {"exact": True})):
        run = pfvm.compile(step, {"x": torch.ones(7, 30)}, device=device, device_options=options)
        torch.manual_seed(1)
        found.append([(run({"x": torch.ones(7, 30)})["y"] != 0).tolist() for _ in range(3)])
    assert found[0] == found[1]
