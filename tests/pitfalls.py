"""What breaks optimizers: fifteen lessons of about a hundred public bug reports, three graphs each.

Every graph invites the rewrite that the lesson warns of. `expected` are the operators of the main graph after the
whole pipeline: where they are those of the source, the rewrite would have been wrong; where they are fewer, it is
right here, and a reading that is too careful would miss it.
"""

from __future__ import annotations

from typing import NamedTuple


class Pitfall(NamedTuple):
    """A graph, and the operators that are left of it."""

    title: str
    text: str
    expected: str


PITFALLS: dict[str, tuple[Pitfall, ...]] = {
    "R1: graph outputs and captures are uses": (
        Pitfall(
            "the transpose is an output too",
            """g (float[2,3] x, float[2,4] w) => (float[3,2] t, float[3,4] y) {
                t = Transpose<perm=[1,0]>(x)
                y = Gemm(t, w)
            }""",
            "Transpose Gemm",
        ),
        Pitfall(
            "a body captures the product without its bias",
            """g (float[2,3] x, float[3,4] w, float[4] b, bool c) => (float[2,4] y, float[2,4] z) {
                m = MatMul(x, w)
                y = Add(m, b)
                z = If (c) <
                    then_branch = yes () => (float[2,4] p) { p = Neg(m) },
                    else_branch = no () => (float[2,4] q) { q = Exp(m) }
                >
            }""",
            "MatMul Add If",
        ),
        Pitfall(
            "the normalized convolution's own result is an output",
            """g (float[1,2,4,4] x) => (float[1,2,2,2] c, float[1,2,2,2] y)
            <float[2,2,3,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9},
             float[2] s = {2,3}, float[2] b = {1,0}, float[2] m = {0,1}, float[2] v = {1,2}> {
                c = Conv(x, w)
                y = BatchNormalization(c, s, b, m, v)
            }""",
            "Conv BatchNormalization",
        ),
    ),
    "R2: negative axes, steps and ends are normalized before they are compared": (
        Pitfall(
            "two softmaxes of the same axis, written twice",
            """g (float[2,3] x) => (float[2,3] y) {
                a = Softmax<axis=-1>(x)
                b = Softmax<axis=1>(x)
                y = Add(a, b)
            }""",
            "Softmax Add",
        ),
        Pitfall(
            "a slice to the end, counted from either side, takes everything",
            """g (float[2,3] x) => (float[2,3] y)
            <int64[1] s = {-3}, int64[1] e = {9223372036854775807}, int64[1] a = {-1}> {
                c = Slice(x, s, e, a)
                y = Neg(c)
            }""",
            "Neg",
        ),
        Pitfall(
            "a slice backwards takes everything and turns it round",
            """g (float[2,3] x) => (float[2,3] y)
            <int64[1] s = {-1}, int64[1] e = {-9223372036854775807}, int64[1] a = {1}, int64[1] step = {-1}> {
                c = Slice(x, s, e, a, step)
                y = Neg(c)
            }""",
            "Slice Neg",
        ),
    ),
    "R3: optional inputs have the defaults of their opset": (
        Pitfall(
            "a softmax without an axis normalizes the last one from opset 13",
            """<ir_version: 8, opset_import: ["" : 13]>
            g (float[2,3,4] x) => (float[2,3,4] y) {
                a = Softmax(x)
                b = Softmax<axis=2>(x)
                y = Sub(a, b)
            }""",
            "Softmax Sub",
        ),
        Pitfall(
            "and everything behind axis 1 before",
            """<ir_version: 6, opset_import: ["" : 11]>
            g (float[2,3,4] x) => (float[2,3,4] y) {
                a = Softmax(x)
                b = Softmax<axis=2>(x)
                y = Sub(a, b)
            }""",
            "Softmax Softmax Sub",
        ),
        Pitfall(
            "a clip without bounds does nothing, one with a lower bound does",
            """g (float[3] x) => (float[3] y) <float low = {0}> {
                a = Clip(x)
                y = Clip(a, low)
            }""",
            "Clip",
        ),
    ),
    "R4: new initializers ask for a free name": (
        Pitfall(
            "two convolutions of one weight, normalized differently",
            """g (float[1,1,3,3] x) => (float[1,1,3,3] y, float[1,1,3,3] z)
            <float[1,1,1,1] w = {2}, float[1] s = {2}, float[1] t = {3}, float[1] b = {1}, float[1] m = {0},
             float[1] v = {1}> {
                c = Conv(x, w)
                y = BatchNormalization(c, s, b, m, v)
                d = Conv(y, w)
                z = BatchNormalization(d, t, b, m, v)
            }""",
            "Conv Conv",
        ),
        Pitfall(
            "a value already has the name that folding would choose",
            """g (float[2] x) => (float[2] y, float[2] s_1) <float[2] s = {1,2}> {
                t = Add(s, s)
                s_1 = Mul(x, t)
                y = Sub(x, s)
            }""",
            "Mul Sub",
        ),
        Pitfall(
            "a body and the graph around it fold values of one name",
            """g (float[2] x, bool c) => (float[2] y) <float[2] one = {1,1}> {
                k = Add(one, one)
                z = If (c) <
                    then_branch = yes () => (float[2] p) { l = Neg(one) p = Mul(x, l) },
                    else_branch = no () => (float[2] q) { r = Add(one, one) q = Div(x, r) }
                >
                y = Add(z, k)
            }""",
            "If Add",
        ),
    ),
    "R5: attributes that a pattern does not name are at their default, or copied": (
        Pitfall(
            "a scaled product takes a bias that is not scaled",
            """g (float[2,3] x, float[3,4] w, float[4] c) => (float[2,4] y) {
                z = Gemm<alpha=0.5>(x, w)
                y = Add(z, c)
            }""",
            "Gemm",
        ),
        Pitfall(
            "a mean that drops its axis is not the mean that keeps it",
            """g (float[3,3] x) => (float[3] y, float[3,1] z) {
                y = ReduceMean<axes=[1], keepdims=0>(x)
                z = ReduceMean<axes=[1], keepdims=1>(x)
            }""",
            "ReduceMean ReduceMean",
        ),
        Pitfall(
            "a zero in a reshape means zero where allowzero is set",
            """g (float[0,3] x) => (float[3,0] y) <int64[2] a = {0,3}, int64[2] s = {3,0}> {
                z = Reshape<allowzero=1>(x, a)
                y = Reshape<allowzero=1>(z, s)
            }""",
            "Reshape",
        ),
    ),
    "R6: a shape is proved equal before a broadcast goes": (
        Pitfall(
            "one is added to ones, and widens them",
            """g (float[n] x) => (float[2,n] y) <float[2,1] zero = {0,0}> {
                y = Add(x, zero)
            }""",
            "Add",
        ),
        Pitfall(
            "another symbolic size need not be this one",
            """g (float[1] x, int64[m] k) => (float[m] y) {
                s = Shape(k)
                e = Expand(x, s)
                y = Neg(e)
            }""",
            "Shape Expand Neg",
        ),
        Pitfall(
            "an expansion to the own shape does nothing",
            """g (float[n,4] x) => (float[n,4] y) {
                s = Shape(x)
                e = Expand(x, s)
                y = Neg(e)
            }""",
            "Neg",
        ),
    ),
    "R7: folded by the engine that will run it, from bytes that are there": (
        Pitfall(
            "an overridable default is no constant",
            """g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1,2}, float[2] k = {3,4}> {
                p = Mul(w, k)
                y = Add(x, p)
            }""",
            "Mul Add",
        ),
        Pitfall(
            "integers divide towards zero",
            """g (int64[3] x) => (int64[3] y) <int64[3] a = {-7,7,-7}, int64[3] b = {2,2,-2}> {
                q = Div(a, b)
                y = Add(x, q)
            }""",
            "Add",
        ),
        Pitfall(
            "sums of half precision are what the engine makes of them",
            """g (float[2] x) => (float[2] y) <float[2] p = {2048,1}, float[2] q = {1,0.0001}> {
                a = Cast<to=10>(p)
                b = Cast<to=10>(q)
                s = Add(a, b)
                f = Cast<to=1>(s)
                y = Mul(x, f)
            }""",
            "Mul",
        ),
    ),
    "R8: folding may not blow the model up": (
        Pitfall(
            "two megabytes of one number",
            """g (float[n,4] x) => (float[m,1024] y) <int64[2] s = {512,1024}> {
                c = ConstantOfShape<value = float[1] {2}>(s)
                y = Concat<axis=0>(c, c)
            }""",
            "ConstantOfShape Concat",
        ),
        Pitfall(
            "a tile of a small constant",
            """g (float[512,1024] x) => (float[512,1024] y) <float[1,4] a = {1,2,3,4}, int64[2] r = {512,256}> {
                t = Tile(a, r)
                y = Pow(x, t)
            }""",
            "Tile Pow",
        ),
        Pitfall(
            "what shrinks is folded, however big",
            """g (float[2] x) => (float[2] y) <int64[2] s = {512,1024}> {
                c = ConstantOfShape<value = float[1] {2}>(s)
                m = ReduceMax<keepdims=0>(c)
                y = Mul(x, m)
            }""",
            "Mul",
        ),
    ),
    "R9: the dtype of a sum, and the rounding in between, are meaning": (
        Pitfall(
            "a cast to half and back rounds",
            """g (float[3] x) => (float[3] y) {
                h = Cast<to=10>(x)
                f = Cast<to=1>(h)
                y = Neg(f)
            }""",
            "Cast Cast Neg",
        ),
        Pitfall(
            "a cast to double and back does not",
            """g (float[3] x) => (float[3] y) {
                d = Cast<to=11>(x)
                f = Cast<to=1>(d)
                y = Neg(f)
            }""",
            "Neg",
        ),
        Pitfall(
            "the sum of half-precision products is rounded before the bias",
            """g (float16[2,3] x, float16[3,4] w, float16[4] b) => (float16[2,4] y) {
                m = MatMul(x, w)
                y = Add(m, b)
            }""",
            "MatMul Add",
        ),
    ),
    "R10: purity comes from the schema": (
        Pitfall(
            "two draws are two draws",
            """g () => (bool same) {
                a = RandomNormal<shape=[4]>()
                b = RandomNormal<shape=[4]>()
                e = Equal(a, b)
                i = Cast<to=6>(e)
                s = ReduceSum<keepdims=0>(i)
                z = Constant<value = int32 {4}>()
                same = Equal(s, z)
            }""",
            "RandomNormal RandomNormal Equal ChainerCastReduceSum Equal",
        ),
        Pitfall(
            "dropout in training is no identity",
            """g (float[64] x) => (float[64] y) <float r = {0.0}, bool t = {1}> {
                d, m = Dropout(x, r, t)
                y = Neg(d)
            }""",
            "Dropout Neg",
        ),
        Pitfall(
            "a draw in a loop is not the loop's invariant",
            """g (int64 n) => (bool same) <bool go = {1}> {
                all = Loop(n, go) <
                    body = b (int64 i, bool c) => (bool d, float[2] r) {
                        d = Identity(c)
                        r = RandomUniform<shape=[2]>()
                    }
                >
                zero = Constant<value = float {-1}>()
                less = Less(all, zero)
                i = Cast<to=6>(less)
                s = ReduceSum<keepdims=0>(i)
                z = Constant<value = int32 {0}>()
                same = Equal(s, z)
            }""",
            "Loop Less ChainerCastReduceSum Equal",
        ),
    ),
    "R11: the signature is frozen": (
        Pitfall(
            "an input that nobody reads stays, and so does an output that repeats it",
            """g (float[n] x, float[m] unused) => (float[n] y, float[n] z) {
                y = Identity(x)
                z = Identity(x)
            }""",
            "Identity Identity",
        ),
        Pitfall(
            "two outputs of one value keep their names",
            """g (float[n] x) => (float[n] a, float[n] b) {
                a = Neg(x)
                b = Neg(x)
            }""",
            "Neg Identity",
        ),
        Pitfall(
            "a constant output is computed by nobody, and is there",
            """g (float[n] x) => (float[2] c, float[n] y) <float[2] k = {1,2}> {
                c = Add(k, k)
                y = Neg(x)
            }""",
            "Neg",
        ),
    ),
    "R12: only forms that the model's opset has": (
        Pitfall(
            "axes of a sum are an attribute before opset 13",
            """<ir_version: 6, opset_import: ["" : 11]>
            g (float[2,3] x) => (double[1,3] y) {
                c = Cast<to=11>(x)
                y = ReduceSum<axes=[0]>(c)
            }""",
            "ChainerCastReduceSumAxes",
        ),
        Pitfall(
            "there is no layer normalization before opset 17",
            """<ir_version: 8, opset_import: ["" : 16]>
            g (float[2,8] x) => (float[2,8] y) <float two = {2}, float eps = {0.00001}> {
                m = ReduceMean<axes=[-1]>(x)
                c = Sub(x, m)
                q = Pow(c, two)
                v = ReduceMean<axes=[-1]>(q)
                e = Add(v, eps)
                r = Sqrt(e)
                y = Div(c, r)
            }""",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div",
        ),
        Pitfall(
            "bounds of a slice are attributes before opset 10",
            """<ir_version: 4, opset_import: ["" : 9]>
            g (float[9] x) => (float[2] y) {
                a = Slice<starts=[1], ends=[8]>(x)
                y = Slice<starts=[2], ends=[4]>(a)
            }""",
            "Slice",
        ),
    ),
    "R13: a small constant is not zero, and nearly one is not one": (
        Pitfall(
            "the smallest addend",
            """g (float[3] x) => (float[3] y) <float e = {1e-30}> {
                y = Add(x, e)
            }""",
            "Add",
        ),
        Pitfall(
            "one and a millionth",
            """g (float[3] x) => (float[3] y) <float e = {1.000001}> {
                y = Mul(x, e)
            }""",
            "Mul",
        ),
        Pitfall(
            "not quite the half of a gelu",
            """g (float[3] x) => (float[3] y) <float r = {1.4142}, float one = {1}, float half = {0.5}> {
                d = Div(x, r)
                e = Erf(d)
                a = Add(e, one)
                m = Mul(x, a)
                y = Mul(m, half)
            }""",
            "Div Erf Add Mul Mul",
        ),
    ),
    "R14: a rewrite through Log, Sqrt or division holds where its range is proved": (
        Pitfall(
            "the root of a square is the absolute value",
            """g (float[3] x) => (float[3] y) {
                q = Mul(x, x)
                y = Sqrt(q)
            }""",
            "Mul Sqrt",
        ),
        Pitfall(
            "the logarithm of a power may overflow first",
            """g (float[3] x) => (float[3] y) {
                e = Exp(x)
                y = Log(e)
            }""",
            "Exp Log",
        ),
        Pitfall(
            "nothing divided by itself is not one",
            """g (float[3] x) => (float[3] y) {
                y = Div(x, x)
            }""",
            "Div",
        ),
    ),
    "R15: optional inputs and outputs are part of a node": (
        Pitfall(
            "one maximum has indices, the other has not",
            """g (float[1,1,4,4] x) => (float[1,1,2,2] y, float[1,1,2,2] z, int64[1,1,2,2] i) {
                y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
                z, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
            }""",
            "MaxPool MaxPool",
        ),
        Pitfall(
            "an upper bound without a lower one",
            """g (float[3] x) => (float[3] y) <float k = {0}> {
                a = Clip(x, , k)
                b = Clip(x, k)
                y = Sub(a, b)
            }""",
            "Clip Clip Sub",
        ),
        Pitfall(
            "the mask of a dropout is read",
            """g (float[4] x) => (float[4] y, bool[4] m) {
                y, m = Dropout(x)
            }""",
            "Dropout",
        ),
    ),
}
