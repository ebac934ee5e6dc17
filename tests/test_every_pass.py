"""Every pass in every setting: alone, in a Loop body, in a function, its values also outputs, read twice, captured.

Each pass has a graph here in which it finds something to do, and a new pass without one fails the first test.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pass_settings import assert_settings
from pfvm.compiler.driver import compile_model
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from pfvm.passes.pipeline import REGISTRY
from pfvm.runtime.ort import evaluate
from support import model
from test_pass_gradients import PLAIN, RELU_TEXT, gradient
from test_pass_optimizer_update import MOMENTUM, step
from test_pass_tpu_pair_columns import net
from test_pass_tpu_split_pools import step as pooled_step

NORMALIZED = """agraph (float[1,2,4,4] x) => (float[1,2,4,4] y)
    <float[2,2,1,1] w = {1, 2, 3, 4}, float[2] s = {2, 3}, float[2] b = {1, 0}, float[2] m = {0, 1},
     float[2] v = {1, 2}>
    { c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }"""
LOOP = """agraph (float[3] x, float[3] w) => (float[3] y) <int64 n = {{{n}}}, bool t = {{1}}> {{
    y = Loop (n, t, {carried}) <body = g (int64 i, bool c, {formals}) => (bool d, {results}) {{
        d = Identity(c) {lines} }}> }}"""
PAIR = "float[3] a, float[3] b"
WIDE = onnx.parser.parse_graph(
    "agraph (float[16,1024] x, float[2] b) => (float[16,2] y) { m = MatMul(x, w) a = Add(m, b) y = Tanh(a) }"
)
"""A product over 4 KiB; its weights are sines, 0 to 2047."""
WIDE.initializer.append(onnx.numpy_helper.from_array(np.sin(np.arange(2048, dtype=np.float32)).reshape(-1, 2), "w"))

EXAMPLES: dict[str, str | onnx.ModelProto] = {
    "inline-functions": """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[3] x) => (float[3] y) { a = local.twice(x) y = local.twice(a) }
        <opset_import: ["" : 17], domain: "local"> twice (p) => (q) { q = Add(p, p) }""",
    "fold-constants": "agraph (float[3] x) => (float[3] y) <float[3] k = {1, 2, 3}> { e = Exp(k) y = Mul(x, e) }",
    "simplify-if": """agraph (bool c, float[3] x) => (float[3] y) {
        z = If (c) <then_branch = t () => (float[3] p) { p = Exp(x) },
                    else_branch = e () => (float[3] q) { q = Exp(x) }>
        y = Neg(z) }""",
    "simplify-carried": LOOP.format(
        n=9, carried="x, w", formals=PAIR, results="float[3] p, float[3] q", lines="p = Mul(a, b) q = Identity(b)"
    ).replace("y = Loop", "y, z = Loop"),
    "hoist-loop-invariants": LOOP.format(
        n=9, carried="x", formals="float[3] a", results="float[3] p", lines="e = Exp(w) p = Mul(a, e)"
    ),
    "unroll-loops": LOOP.format(n=2, carried="x", formals="float[3] a", results="float[3] p", lines="p = Mul(a, w)"),
    "eliminate-identity": "agraph (float[3] x) => (float[3] y) { a = Neg(x) b = Cast<to=1>(a) y = Exp(b) }",
    "merge-reshapes": """agraph (float[2,6] x) => (float[4,3] y) <int64[2] s = {3, 4}, int64[2] t = {4, 3}> {
        a = Neg(x) b = Reshape(a, s) c = Reshape(b, t) y = Exp(c) }""",
    "move-transposes": """agraph (float[2,3] x) => (float[2,3] y) {
        a = Transpose<perm=[1,0]>(x) b = Neg(a) c = Transpose<perm=[1,0]>(b) y = Exp(c) }""",
    "simplify-slices": """agraph (float[9] x) => (float[2] y)
        <int64[1] s = {1}, int64[1] e = {8}, int64[1] t = {2}, int64[1] f = {4}> {
        a = Neg(x) b = Slice(a, s, e) c = Slice(b, t, f) y = Exp(c) }""",
    "replace-einsum": """agraph (float[2,3] x, float[4,3] w) => (float[2,4] y) {
        e = Einsum<equation="ij,kj->ik">(x, w) y = Neg(e) }""",
    "simplify-bounds": """agraph (float[3] x) => (float[3] y) <float low = {0}, float high = {6}> {
        a = Max(x, low) b = Min(high, a) y = Neg(b) }""",
    "select-early": """agraph (float[1,5,3] x, float[3,4] w) => (float[1,4] y) <int64 k = {2}> {
        m = MatMul(x, w) a = Relu(m) g = Gather<axis=1>(a, k) y = Neg(g) }""",
    "simplify-algebra": """agraph (float[3] x) => (float[3] y) <float p = {2}, float q = {4}> {
        a = Neg(x) b = Mul(a, p) c = Mul(b, q) y = Exp(c) }""",
    "simplify-selection": """agraph (float[3] x, float[3] z) => (float[3] y) <bool[3] c = {1, 1, 1}> {
        a = Neg(x) b = Where(c, a, z) y = Exp(b) }""",
    "drop-broadcasts": """agraph (float[2,3] x, float[3] z) => (float[2,3] y) <int64[2] s = {2, 3}> {
        a = Neg(z) b = Expand(a, s) y = Add(x, b) }""",
    "eliminate-common-subexpressions": """agraph (float[3] x) => (float[3] y) {
        a = Exp(x) b = Exp(x) c = Neg(a) y = Add(c, b) }""",
    "fuse-transpose-gemm": """agraph (float[2,3] x, float[4,3] w) => (float[2,4] y) {
        t = Transpose<perm=[1,0]>(w) p = Gemm(x, t) y = Exp(p) }""",
    "fuse-softmax": """agraph (float[2,3] x) => (float[2,3] y) <int64[1] k = {1}> {
        m = ReduceMax<axes=[1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, k) q = Div(e, s) y = Neg(q) }""",
    "fuse-layer-norm": """<ir_version: 8, opset_import: ["" : 17]> agraph (float[2,3] x) => (float[2,3] y) {
        m = ReduceMean<axes=[1]>(x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean<axes=[-1]>(p)
        k = Constant<value = float {0.01}>() e = Add(v, k) s = Sqrt(e) q = Div(d, s) y = Neg(q) }""",
    "fuse-rms-norm": """<ir_version: 10, opset_import: ["" : 23]> agraph (float[2,3] x) => (float[2,3] y)
        <int64[1] a = {1}, float k = {0.01}> {
        p = Mul(x, x) v = ReduceMean(p, a) e = Add(v, k) s = Sqrt(e) q = Div(x, s) y = Neg(q) }""",
    "fuse-gelu": """<ir_version: 9, opset_import: ["" : 20]> agraph (float[3] x) => (float[3] y)
        <float r = {1.41421356}, float i = {1}, float h = {0.5}> {
        d = Div(x, r) e = Erf(d) t = Add(e, i) m = Mul(x, t) g = Mul(m, h) y = Neg(g) }""",
    "fuse-hard-swish": """agraph (float[3] x) => (float[3] y) {
        h = HardSigmoid<alpha=0.16666667>(x) m = Mul(x, h) y = Neg(m) }""",
    "fuse-swish": """<ir_version: 11, opset_import: ["" : 24]> agraph (float[3] x) => (float[3] y) <float k = {2}> {
        t = Mul(x, k) s = Sigmoid(t) m = Mul(x, s) y = Neg(m) }""",
    "fuse-rotary-embedding": """<ir_version: 10, opset_import: ["" : 23]>
        agraph (float[2,2,3,4] x) => (float[2,2,3,4] y)
        <float[3,4] c = {1, 2, 1, 2, 3, 4, 3, 4, 5, 6, 5, 6}, float[3,4] s = {2, 1, 2, 1, 4, 3, 4, 3, 6, 5, 6, 5},
         int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {3}> {
        a = Mul(x, c) h = Slice(x, two, four, last) l = Slice(x, zero, two, last) n = Neg(h) t = Concat<axis=3>(n, l)
        b = Mul(t, s) r = Add(a, b) y = Abs(r) }""",
    "fuse-attention": """<ir_version: 10, opset_import: ["" : 23]>
        agraph (float[1,2,3,4] q, float[1,2,5,4] l, float[1,2,5,4] v, bool[1,1,1,5] b) => (float[1,2,3,4] y)
        <float s = {0.5}, float low = {-1000}> {
        c = Cast<to=1>(b) a = Mul(c, low) k = Transpose<perm=[0,1,3,2]>(l) m = MatMul(q, k) n = Mul(m, s) u = Add(n, a)
        p = Softmax(u) o = MatMul(p, v) y = Neg(o) }""",
    "fuse-pad": """agraph (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> {
        a = Pad(x, p) b = AveragePool<kernel_shape=[3,3], strides=[2,2]>(a) y = Neg(b) }""",
    "keep-batch-dims": """agraph (float[2,3,4,5] a, float[2,3,5,4] b) => (float[2,3,4,4] y)
        <int64[3] s = {6, 4, 5}, int64[3] t = {6, 5, 4}, int64[4] u = {2, 3, 4, 4}> {
        c = Reshape(a, s) d = Reshape(b, t) m = MatMul(c, d) r = Reshape(m, u) y = Neg(r) }""",
    "ort-gelu": """agraph (float[3] x) => (float[3] y) <float r = {1.41421356}, float i = {1}, float h = {0.5}> {
        d = Div(x, r) e = Erf(d) t = Add(e, i) m = Mul(x, t) g = Mul(m, h) y = Neg(g) }""",
    "ort-norms": """agraph (float[1,2,3] x, float[1,2,3] w, float[3] s) => (float[1,2,3] y) {
        a = Add(x, w) n = LayerNormalization(a, s) y = Neg(n) }""",
    "ort-rotary": """agraph (float[1,2,3,4] x) => (float[1,2,3,4] y)
        <float[3,4] c = {1, 2, 1, 2, 3, 4, 3, 4, 5, 6, 5, 6}, float[3,4] s = {2, 1, 2, 1, 4, 3, 4, 3, 6, 5, 6, 5},
         int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {3}> {
        a = Mul(x, c) h = Slice(x, two, four, last) l = Slice(x, zero, two, last) n = Neg(h) t = Concat<axis=3>(n, l)
        b = Mul(t, s) r = Add(a, b) y = Abs(r) }""",
    "ort-attention": """agraph (float[1,3,4] q, float[1,5,4] k, float[1,5,4] v) => (float[1,3,4] y)
        <float h = {0.5}, int64[4] apart = {0, 0, 2, 2}, int64[3] joined = {0, 0, 4}> {
        qa = Reshape(q, apart) ka = Reshape(k, apart) va = Reshape(v, apart) qh = Transpose<perm=[0,2,1,3]>(qa)
        kh = Transpose<perm=[0,2,3,1]>(ka) vh = Transpose<perm=[0,2,1,3]>(va) m = MatMul(qh, kh) n = Mul(m, h)
        p = Softmax(n) o = MatMul(p, vh) t = Transpose<perm=[0,2,1,3]>(o) r = Reshape(t, joined) y = Neg(r) }""",
    "ort-linear": """agraph (float[1,2,3] x, float[2] b) => (float[1,2,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {
        m = MatMul(x, w) a = Add(b, m) y = Exp(a) }""",
    "ort-pad-products": onnx.helper.make_model(WIDE, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
    "fuse-conv": NORMALIZED,
    "fuse-scale": """agraph (float[2,3] x) => (float[2,2] y)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[3] k = {1, 2, 3}> {
        a = Neg(x) s = Mul(a, k) p = MatMul(s, w) y = Exp(p) }""",
    "fuse-matmul-bias": """agraph (float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y) {
        m = MatMul(x, w) a = Add(m, b) y = Exp(a) }""",
    "fuse-gemm-sum": """agraph (float[2,3] x, float[3,4] w, float[2,5] u, float[5,4] v) => (float[2,4] y) {
        m = Gemm(x, w) n = Gemm(u, v) a = Add(m, n) y = Exp(a) }""",
    "fuse-cross-entropy-gradient": gradient(),
    "fuse-cast-reduce-sum": """agraph (float[2,3] x) => (double[2,1] y) <int64[1] k = {1}> {
        a = Neg(x) c = Cast<to=11>(a) s = ReduceSum(c, k) y = Neg(s) }""",
    "fuse-relu-gradient": RELU_TEXT.format(t="float", lines=PLAIN),
    "fuse-optimizer-update": step(MOMENTUM),
    "tpu-pair-columns": net((3, 2, 3, 3), (4, 3, 3, 3), (4, 6)),
    "tpu-split-pools": pooled_step((2, 2, 4, 6), ((3, 2, 3, 3), (4, 3, 3, 3))),
    "eliminate-dead-code": "agraph (float[3] x) => (float[3] y) { a = Exp(x) b = Sin(a) y = Neg(x) }",
}
"""A graph for each pass, in which it matches."""


def test_every_pass_that_rewrites_has_a_graph() -> None:
    assert set(EXAMPLES) == set(REGISTRY) - {"infer-shapes"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_pass_is_right_in_every_setting(name: str) -> None:
    example = EXAMPLES[name]
    source = model(example) if isinstance(example, str) else example
    onnx.checker.check_model(source, full_check=True)
    options = parse(opt_level=0, passes=("infer-shapes", name))
    records = compile_model(read_model(source), options, evaluate=evaluate).passes
    assert any(record.matches for record in records if record.name == name), "the pass finds nothing to do"
    assert_settings(source, name, "eliminate-dead-code")
