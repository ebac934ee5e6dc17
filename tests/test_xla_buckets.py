"""Buckets on xla:cpu: padded inputs give the same rows, few programs, and a named node where rows would mix."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

from pfvm.errors import InputError, OptionError
from pfvm.runtime.api import load
from pfvm.runtime.ort import OrtExecutable
from xla_cases import assert_equal

pytestmark = pytest.mark.usefixtures("quick_compilation")


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]>\n{text}')


def check(text: str, opset: int = 20, counts: tuple[int, ...] = (1, 2, 3, 5, 8, 7)):
    """For every number of rows the results are ONNX Runtime's, from two programs."""
    proto = model(text, opset)
    exe, reference = load(proto, "xla:cpu", bucket={"N": [8, 2]}), OrtExecutable(ir.from_proto(proto))
    for count in counts:
        feeds = {}
        for value in proto.graph.input:
            shape = [count if d.dim_param == "N" else d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            rng = np.random.default_rng(count)
            feeds[value.name] = (rng.integers(0, 3, shape) if dtype.kind in "iu" else rng.normal(size=shape)).astype(
                dtype
            )
        expected, actual = reference(feeds), exe(feeds)
        for name, value in expected.items():
            assert_equal(actual[name], value)
    assert exe.compilations == len({2 if count <= 2 else 8 for count in counts})
    return exe


WEIGHTS = (
    "<float[4, 6] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[6] b = {1,2,3,4,5,6}, "
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus = {-1}, int64[1] end = {1000000000}, "
    "int64[2] last = {-1, 6}, int64[3] split = {0, 2, 2}, float one_ = {1}, int64 zero_ = {0}, int64 step = {1}>"
)


@pytest.mark.parametrize(
    "nodes",
    [
        "h = MatMul(x, w) a = Add(h, b) y = Relu(a)",
        "h = Gemm(x, w, b) y = Softmax(h)",
        "h = Gemm(x, w) t = Transpose<perm = [1, 0]>(h) s = ReduceMean(t, zero) u = Softmax<axis = 0>(t) m = Mul(u, s) "
        "y = Transpose(m)",
        "r = Reshape(x, split) m = ReduceMax<keepdims = 0>(r, minus) y = Concat<axis = 1>(m, m, m)",
        "u = Unsqueeze(x, one) v = Squeeze(u, one) y = MatMul(v, w)",
        "s = Shape(x) n = Gather(s, zero) t = Concat<axis = 0>(n, minus) r = Reshape(x, t) y = MatMul(r, w)",
        "h = MatMul(x, w) f = Reshape(h, minus) g = Neg(f) y = Reshape(g, last)",
        "s = Shape(x) z = Expand(one_, s) a = Add(x, z) y = MatMul(a, w)",
        "s = Shape(x) n = Gather(s, zero_) r = Range(zero_, n, step) u = Unsqueeze(r, one) f = Cast<to = 1>(u) "
        "h = MatMul(x, w) y = Mul(h, f)",
        "p, q = Split<axis = 1, num_outputs = 2>(x) c = Concat<axis = 1>(q, p) y = MatMul(c, w)",
        "p = Slice(x, zero, end, zero) y = MatMul(p, w)",
        "p = Slice(x, zero, one, one) q = Mul(x, p) y = MatMul(q, w)",
        "l = MatMul(x, w) y = LayerNormalization(l, b)",
        "f = Flatten(x) y = local.dense(f, w)",
    ],
)
def test_rows_that_stay_apart(nodes: str):
    function = (
        '<domain: "local", opset_import: ["" : 20]> dense (p, q) => (r) { m = MatMul(p, q) r = Tanh(m) }'
        if "local" in nodes
        else ""
    )
    check(f"g (float[N, 4] x) => (float[N, 6] y) {WEIGHTS} {{ {nodes} }} {function}")


@pytest.mark.parametrize(
    ("inputs", "nodes", "fits"),
    [
        ("", "y = Attention(x, x, x)", True),
        (", float[N, 1, 3, 3] m", "y = Attention<is_causal = 1>(x, x, x, m)", True),
        (", float[3, 3] m", "y = Attention(x, x, x, m)", True),
        (", float[N, 3, 2] c", "y = RotaryEmbedding(x, c, c)", True),
        (", int64[N, 3] p", "y = RotaryEmbedding(x, t, t, p)", True),
        ("", "z = Transpose<perm=[1, 0, 2, 3]>(x) a = Attention(z, z, z) y = Transpose<perm=[1, 0, 2, 3]>(a)", False),
        (", float[3, N] m", "s = Transpose<perm = [2, 1, 0, 3]>(x) a = Attention(s, s, s) y = Identity(a)", False),
    ],
)  # fmt: skip
def test_attention_by_batch(inputs: str, nodes: str, fits: bool):
    out = "N, 2, 3, 4" if "(s, s, s)" not in nodes else "3, 2, N, 4"
    text = f"g (float[N, 2, 3, 4] x{inputs}) => (float[{out}] y) <float[3, 2] t = {{1, 2, 3, 4, 5, 6}}> {{ {nodes} }}"
    if fits:
        check(text, 23, counts=(1, 3, 8))
    else:
        with pytest.raises(OptionError, match="Attention"):
            check(text, 23, counts=(3,))


def test_images_tokens_and_sequences():
    check(
        """g (float[N, 1, 6, 6] x) => (float[N, 10] y) <float[2, 1, 3, 3] k = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9},
        float[10, 8] d = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,
        1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> {
          c = Conv(x, k) r = Relu(c) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) f = Flatten(p)
          y = Gemm<transB = 1>(f, d)
        }""",
        counts=(1, 3, 8),
    )
    check(
        """g (float[N, 1, 2, 2] x) => (float[N, 1, 4, 4] y)
        <int64[2] size = {4, 4}, int64[1] zero = {0}, int64[1] two = {2}> {
          s = Shape(x) d = Slice(s, zero, two) z = Concat<axis = 0>(d, size) y = Resize(x, , , z)
        }""",
        counts=(1, 3, 8),
    )
    check(
        """g (int64[N, 5] t) => (float[N, 3] y, int64[N] best)
        <float[3, 3] e = {1,2,3,4,5,6,7,8,9}, int64[1] one = {1}> {
          v = Gather(e, t) y = ReduceSum<keepdims = 0>(v, one) best = ArgMax<axis = 1, keepdims = 0>(y)
        }"""
    )
    check(
        """g (float[3, N, 2] x, float[1, N, 2] h) => (float[3, 1, N, 2] y, float[1, N, 2] z) <
        float[1, 6, 2] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[1, 6, 2] r = {1,2,3,4,5,6,7,8,9,1,2,3}> {
          y, z = GRU<hidden_size = 2>(x, w, r, , , h)
        }""",
        counts=(1, 5),
    )


def test_results_that_have_no_rows_are_left_alone():
    exe = check(f"g (float[N, 4] x) => (float[N, 6] y, float[6] c) {WEIGHTS} {{ y = MatMul(x, w) c = Neg(b) }}")
    assert exe({"x": np.ones((3, 4), np.float32)})["c"].shape == (6,)


@pytest.mark.parametrize(
    ("nodes", "node"),
    [
        ("m = ReduceMean(x, zero) y = Sub(x, m)", "ReduceMean"),
        ("m = ReduceMax(x) y = Div(x, m)", "ReduceMax"),
        ("y = Softmax<axis = 0>(x)", "Softmax"),
        ("t = Transpose(x) h = MatMul(t, x) y = Relu(h)", "MatMul"),
        ("t = Transpose(x) h = MatMul(x, t) y = Relu(h)", "MatMul"),
        ("y = Concat<axis = 0>(x, x)", "Concat"),
        ("y = CumSum(x, k)", "CumSum"),
        ("s = Shape(x) n = Gather(s, zero) f = Cast<to = 1>(n) y = Div(x, f)", "Div"),
        ("y = Slice(x, zero, one, zero)", "Slice"),
        ("y = Reshape(x, fixed)", "Reshape"),
        ("d = DynamicQuantizeLinear(x) y = Cast<to = 1>(d)", "DynamicQuantizeLinear"),
        ("r = RandomNormalLike(x) y = Add(r, x)", "RandomNormalLike"),
        ("h = BatchNormalization<training_mode = 1>(x, one_, one_, one_, one_) y = Neg(h)", "BatchNormalization"),
        ("a = Add(x, four) y = Neg(a)", "Add"),
        ("u = Unique(x) y = Neg(u)", "Unique"),
        ("s = Shape(x) n = Gather(s, k) r = Range(n, k, k) f = Cast<to = 1>(r) m = ReduceSum(f) y = Mul(x, m)", "Mul"),
        (
            "y = If(c) <then_branch = t () => (float[N, 4] a) { a = Neg(x) }, else_branch = e () => (float[N, 4] a) "
            "{ a = Abs(x) }>",
            "If",
        ),
    ],
)
def test_rows_that_may_mix_name_the_node(nodes: str, node: str):
    text = f"""g (float[N, 4] x, bool c) => (float[A, B] y) <int64[1] zero = {{0}}, int64[1] one = {{1}},
    int64 k = {{0}}, int64[2] fixed = {{4, 4}}, float[4, 1] four = {{1, 2, 3, 4}}, float[4] one_ = {{1, 1, 1, 1}}>
    {{ {nodes} }}"""
    with pytest.raises(OptionError, match=rf"bucket 'N': {node} .*may mix rows .*cannot be padded along 'N'"):
        load(model(text), "xla:cpu", bucket={"N": [8]})


def test_options_and_inputs_that_do_not_fit():
    text = f"g (float[N, 4] x) => (float[N, 6] y) {WEIGHTS} {{ y = MatMul(x, w) }}"
    with pytest.raises(OptionError, match="no input has a dimension of this name"):
        load(model(text), "xla:cpu", bucket={"batch": [8]})
    with pytest.raises(OptionError, match=r"must be integers from 1 .* not 8"):
        load(model(text), "xla:cpu", bucket={"N": 8})
    with pytest.raises(OptionError, match="must be integers from 1"):
        load(model(text), "xla:cpu", bucket={"N": [0]})
    with pytest.raises(OptionError, match="output 's' holds a size"):
        load(model("g (float[N, 4] x) => (int64[2] s) { s = Shape(x) }"), "xla:cpu", bucket={"N": [8]})
    with pytest.raises(InputError, match=r"input 'x': dim 0 \('N'\) is 9, more than the largest bucket, 8"):
        load(model(text), "xla:cpu", bucket={"N": [2, 8]})({"x": np.ones((9, 4), np.float32)})


def test_no_rows_at_all():
    text = f"g (float[N, 4] x) => (float[N, 6] y) {WEIGHTS} {{ y = MatMul(x, w) }}"
    assert load(model(text), "xla:cpu", bucket={"N": [2]})({"x": np.ones((0, 4), np.float32)})["y"].shape == (0, 6)
