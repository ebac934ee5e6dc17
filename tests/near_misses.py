"""Graphs with something that a pass must not do, or has to do in another way than it seems."""

from __future__ import annotations

NEAR: dict[str, list[str]] = {
    "merge-reshapes": [
        """agraph (float[2,n] x) => (float[n,2] y) <int64[2] s = {-1, 2}, int64[2] t = {0, 2}> {
        a = Reshape(x, s) b = Reshape(a, t) y = Exp(b) }"""
    ],
    "move-transposes": [
        """agraph (float[2,3,4] x) => (float[4,2,3] y) {
        a = Transpose<perm=[1,2,0]>(x) b = Neg(a) c = Transpose<perm=[1,2,0]>(b) y = Exp(c) }""",
        """agraph (float[2,3] x, float[3] z) => (float[2,3] y) {
        a = Transpose<perm=[1,0]>(x) r = Softmax<axis=0>(a) c = Transpose<perm=[1,0]>(r) y = Add(c, z) }""",
    ],
    "simplify-slices": [
        """agraph (float[9] x) => (float[2] y)
        <int64[1] s = {-3}, int64[1] e = {-1}, int64[1] t = {0}, int64[1] f = {2}> {
        b = Slice(x, s, e) c = Slice(b, t, f) y = Exp(c) }""",
        """agraph (float[9] x) => (float y) <int64[1] s = {8}, int64[1] e = {0}, int64[1] a = {0}, int64[1] p = {-2}> {
        b = Slice(x, s, e, a, p) c = Slice(b, a, p) y = Exp(c) }""",
    ],
    "simplify-algebra": [
        "agraph (float[3] x) => (float[3] y) <float p = {2}> { a = Sub(p, x) b = Sub(p, a) y = Exp(b) }",
        "agraph (float[3] x) => (float[3] y) { a = Cast<to=6>(x) b = Cast<to=1>(a) y = Exp(b) }",
        "agraph (float[3] x, float[2,3] p) => (float[2,3] y) { a = Mul(x, p) b = Div(a, p) y = Exp(b) }",
    ],
    "simplify-bounds": [
        """agraph (float[3] x, float low) => (float[3] y) <float high = {6}, float k = {9}> {
        a = Max(x, k) b = Min(high, a) c = Max(b, low) y = Neg(c) }"""
    ],
    "drop-broadcasts": [
        """agraph (float[2,3] x, float[1,3] z) => (float[4,2,3] y) <int64[3] s = {4, 2, 3}> {
        b = Expand(z, s) y = Add(x, b) }"""
    ],
    "eliminate-identity": [
        "agraph (float[3] x, float[2,1] z) => (float[2,3] y) <float[2,1] o = {0,0}> { a = Add(x, o) y = Mul(a, z) }",
        "agraph (float[2,3] x) => (float[2,3] y) { a = Cast<to=10>(x) b = Cast<to=1>(a) y = Exp(b) }",
        "agraph (float[2,2] x) => (float[2,2] y) { a = Transpose<perm=[1,0]>(x) y = Exp(a) }",
    ],
    "fuse-transpose-gemm": [
        """agraph (float[3,2] x, float[3,4] w) => (float[2,4] y) {
        t = Transpose<perm=[1,0]>(x) p = Gemm<alpha=2.0>(t, w) y = Exp(p) }""",
        """agraph (float[2,2,2] x, float[2,2] w) => (float[2,2,2] y) {
        t = Transpose<perm=[1,0,2]>(x) p = MatMul(t, w) y = Exp(p) }""",
    ],
    "fuse-softmax": [
        """agraph (float[3,3] x) => (float[3,3] y) <int64[1] k = {0}> {
        m = ReduceMax<axes=[1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, k) q = Div(e, s) y = Neg(q) }""",
        """agraph (float[3,3] x) => (float[3,3] y) <int64[1] k = {1}> {
        e = Exp(x) s = ReduceSum(e, k) q = Div(s, e) y = Neg(q) }""",
    ],
    "fuse-layer-norm": [
        """agraph (float[3,3] x) => (float[3,3] y) <float k = {0.01}> {
        m = ReduceMean<axes=[0]>(x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean<axes=[1]>(p)
        e = Add(v, k) s = Sqrt(e) q = Div(d, s) y = Neg(q) }"""
    ],
    "fuse-gelu": [
        """<ir_version: 9, opset_import: ["" : 20]> agraph (float[3] x) => (float[3] y)
        <float r = {1.3}, float i = {1}, float h = {0.5}> {
        d = Div(x, r) e = Erf(d) t = Add(e, i) m = Mul(x, t) g = Mul(m, h) y = Neg(g) }"""
    ],
    "fuse-hard-swish": [
        """agraph (float[3] x, float[3] z) => (float[3] y) {
        h = HardSigmoid<alpha=0.2>(x) m = Mul(z, h) y = Neg(m) }"""
    ],
    "fuse-swish": [
        """<ir_version: 11, opset_import: ["" : 24]> agraph (float[3] x, float[3] z) => (float[3] y) {
        t = Sigmoid(z) s = Mul(x, t) y = Neg(s) }""",
        """<ir_version: 11, opset_import: ["" : 24]> agraph (float[3] x) => (float[3] y) <float[3] k = {1, 2, 3}> {
        t = Mul(x, k) s = Sigmoid(t) m = Mul(x, s) y = Neg(m) }""",
    ],
    "fuse-rotary-embedding": [
        """<ir_version: 10, opset_import: ["" : 23]> agraph (float[1,2,3,4] x) => (float[1,2,3,4] y)
        <float[3,4] c = {1, 2, 1, 2, 3, 4, 3, 4, 5, 6, 5, 6}, float[3,4] s = {2, 1, 2, 9, 4, 3, 4, 3, 6, 5, 6, 5},
         int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {3}> {
        a = Mul(x, c) h = Slice(x, two, four, last) l = Slice(x, zero, two, last) n = Neg(h) t = Concat<axis=3>(n, l)
        b = Mul(t, s) r = Add(a, b) y = Abs(r) }""",
        """<ir_version: 10, opset_import: ["" : 23]> agraph (float[1,2,3,4] x) => (float[1,2,3,4] y)
        <float[3,2] c = {1, 2, 3, 4, 5, 6}, float[3,2] s = {2, 1, 4, 3, 6, 5}, int64[2] cut = {2, 2}> {
        l, h = Split<axis=3>(x, cut) ac = Mul(l, c) bs = Mul(h, s) bc = Mul(h, c) as = Mul(l, s) r = Sub(ac, bs)
        i = Sub(bc, as) t = Concat<axis=3>(r, i) y = Abs(t) }""",
    ],
    "fuse-attention": [
        """<ir_version: 10, opset_import: ["" : 23]> agraph (float[1,2,3,4] q, bool[1,1,1,3] b) => (float[1,2,3,4] y)
        <float s = {0.5}, float low = {-3.4028234663852886e38}> {
        c = Cast<to=1>(b) a = Mul(c, low) k = Transpose<perm=[0,1,3,2]>(q) m = MatMul(q, k) n = Mul(m, s) u = Add(n, a)
        p = Softmax(u) o = MatMul(p, q) y = Neg(o) }""",
        """<ir_version: 10, opset_import: ["" : 23]> agraph (float[1,2,4,4] q) => (float[1,2,4,4] y) <float s = {0.5}> {
        k = Transpose<perm=[0,1,3,2]>(q) m = MatMul(q, k) n = Mul(m, s) p = Softmax<axis=2>(n) o = MatMul(p, q)
        y = Neg(o) }""",
        """<ir_version: 10, opset_import: ["" : 23]> agraph (float[1,2,2,4] q) => (float[1,2,2,4] y)
        <bool[2,2] c = {1, 0, 0, 0}, float low = {-3.4028234663852886e38}> {
        k = Transpose<perm=[0,1,3,2]>(q) m = MatMul(q, k) n = Where(c, m, low) p = Softmax(n) o = MatMul(p, q)
        y = Neg(o) }""",
    ],
    "fuse-pad": [
        """agraph (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}, float v = {7}> {
        a = Pad(x, p, v) b = AveragePool<kernel_shape=[3,3], strides=[2,2]>(a) y = Neg(b) }""",
        """agraph (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> {
        a = Pad(x, p) b = MaxPool<kernel_shape=[3,3], strides=[2,2]>(a) y = Neg(b) }""",
    ],
    "fuse-conv": [
        """agraph (float[1,2,3,3] x) => (float[1,2,3,3] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[1,1,1,3] b = {1, 2, 3}> { c = Conv(x, w) y = Mul(c, b) }""",
        """agraph (float[1,2,4,4] x) => (float[1,4,4,4] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[4,1,1] b = {1, 2, 3, 4}> {
        c = Conv<group=1>(x, w) d = Concat<axis=1>(c, c) y = Add(d, b) }""",
    ],
    "fuse-matmul-bias": [
        "agraph (float[2,3] x, float[3,4] w, float[2,1] b) => (float[2,4] y) { m = MatMul(x, w) y = Add(m, b) }",
        "agraph (float[2,3] x, float[3,1] w, float[4] b) => (float[2,4] y) { m = MatMul(x, w) y = Add(m, b) }",
        "agraph (float[5,2,3] x, float[3,4] w, float[4] b) => (float[5,2,4] y) { m = MatMul(x, w) y = Add(m, b) }",
    ],
    "fuse-gemm-sum": [
        """agraph (float[2,3] x, float[3,4] w, float[2,5] u, float[5,4] v, float[4] c) => (float[2,4] y) {
        m = Gemm<alpha=2.0>(x, w, c) n = Gemm<beta=3.0>(u, v, c) y = Add(m, n) }"""
    ],
    "fuse-cast-reduce-sum": [
        """agraph (float[2,3] x) => (int64[2,1] y) <int64[1] k = {1}> {
        a = Mul(x, x) c = Cast<to=7>(a) s = ReduceSum(c, k) y = Neg(s) }"""
    ],
    "hoist-loop-invariants": [
        """agraph (float[3] x, float[3] w) => (float[3] y) <int64 n = {4}, bool t = {1}> {
        y = Loop (n, t, x) <body = g (int64 i, bool c, float[3] a) => (bool d, float[3] p) {
            d = Identity(c) f = Cast<to=1>(i) e = Add(w, f) p = Mul(a, e) }> }"""
    ],
    "unroll-loops": [
        """agraph (float[3] x, float[3] w, bool t) => (float[3] y) <int64 n = {3}> {
        y = Loop (n, t, x) <body = g (int64 i, bool c, float[3] a) => (bool d, float[3] p) {
            f = Cast<to=1>(i) p = Add(a, f) s = ReduceSum<keepdims=0>(p) z = Sub(s, s) d = Less(f, s) }> }"""
    ],
    "simplify-selection": [
        "agraph (bool[3] c, float[3] x, float[3] z) => (float[3] y) { n = Not(c) a = Where(n, x, z) y = Exp(a) }",
        "agraph (float[3] x, float[3] z) => (float[3] y) <bool[3] c = {1, 0, 1}> { b = Where(c, x, z) y = Exp(b) }",
    ],
    "fold-constants": [
        """agraph (float[2,n] x) => (float[n] y) <int64[1] z = {0}, int64[1] o = {1}> {
        s = Shape(x) n = Gather(s, o) m = Gather(s, z) p = Mul(n, m) r = Reshape(x, p)
        t = Cast<to=1>(n) q = Mul(r, t) u = Concat<axis=0>(m, n) f = Reshape(q, u)
        y = ReduceSum<keepdims=0>(f, z) }"""
    ],
    "select-early": [
        """agraph (float[1,5,3] x, float[1,3,5] w) => (float[1,5] y) <int64 k = {2}> {
        m = MatMul(x, w) a = Softmax<axis=1>(m) g = Gather<axis=1>(a, k) y = Neg(g) }"""
    ],
    "replace-einsum": [
        """agraph (float[2,2] x, float[2,2] w) => (float[2,2] y) {
        e = Einsum<equation="ij,jk->ki">(x, w) y = Neg(e) }"""
    ],
}
