"""Every shape that is inferred is the shape that really comes out, for ONNX's own operator tests.

The tests carry inputs and outputs, so nothing needs to run. Inference sees the input types alone; once as declared,
once with every dim symbolic.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from pfvm.compiler.importer import read_model
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import PfvmError
from pfvm.runtime.ort import evaluate


@functools.cache
def _cases() -> dict[str, list]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    by_op: dict[str, list] = {}
    for case in cases:
        by_op.setdefault(case.model.graph.node[0].op_type if case.model.graph.node else "none", []).append(case)
    return by_op


def _array(value) -> np.ndarray | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, np.ndarray) else None


def _infer(model: ir.Model) -> ShapeInference:
    shapes = ShapeInference(model)
    shapes.infer_model()
    return shapes


def _check(case, model: ir.Model, bindings: dict[str, int], outputs: list) -> None:
    shapes = _infer(model)
    for value, expected in zip(model.graph.outputs, outputs):
        actual = _array(expected)
        if actual is None:
            continue
        if value.dtype is not None and value.dtype != ir.DataType.STRING:
            assert value.dtype.numpy() == actual.dtype, f"{case.name}: {value.name} inferred {value.dtype}"
        if value.shape is not None:
            assert len(value.shape) == actual.ndim, (
                f"{case.name}: {value.name} inferred {value.shape}, is {actual.shape}"
            )
            for dim, size in zip(value.shape.evaluate(bindings), actual.shape):
                assert not isinstance(dim, int) or dim == size, (
                    f"{case.name}: {value.name} inferred {value.shape}, is {actual.shape}"
                )
        known = shapes.contents(value) if value.producer() is not None else None
        for element, real in zip(known or (), actual.reshape(-1).tolist()):
            number = element if isinstance(element, int) else element.evaluate(bindings)
            assert not isinstance(number, int) or number == real, f"{case.name}: {value.name} contents {known}"


def _read(case) -> ir.Model:
    try:
        return read_model(case.model)
    except PfvmError as error:
        pytest.skip(f"{case.name}: {error}")


@pytest.mark.parametrize("op", sorted(_cases()))
def test_inferred_shapes_are_the_real_ones(op: str) -> None:
    for case in _cases()[op]:
        for _inputs, outputs in case.data_sets:
            _check(case, _read(case), {}, outputs)


def test_most_shapes_are_known() -> None:
    """Not knowing is sound, and useless: today 85 % of the outputs have a shape."""
    known = total = 0
    for cases in _cases().values():
        for case in cases:
            try:
                read = read_model(case.model)
            except PfvmError:
                continue
            _infer(read)
            total += len(read.graph.outputs)
            known += sum(value.shape is not None for value in read.graph.outputs)
    assert known > 0.8 * total, f"{known} of {total}"


@pytest.mark.parametrize("op", sorted(_cases()))
def test_symbolic_shapes_hold_the_real_ones(op: str) -> None:
    for case in _cases()[op]:
        for inputs, outputs in case.data_sets:
            model, bindings = _read(case), {}
            for i, (value, given) in enumerate(zip(model.graph.inputs, inputs)):
                array = _array(given)
                if array is None or value.shape is None:
                    continue
                names = [f"s{i}_{axis}" for axis in range(array.ndim)]
                bindings.update(zip(names, array.shape))
                value.shape = ir.Shape(names)
            _check(case, model, bindings, outputs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '<ir_version: 4, opset_import: ["" : 9]> g (float[n,9] x) => (float[a,b] y) '
            "{ y = Slice<axes=[1], starts=[1], ends=[-2]>(x) }",
            "[n,6]",
            id="Slice, with its bounds as attributes",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 13]> g (float[n,4,k] x, float[n,1,k] w) => (float[a,b,c] y) '
            '{ y = Einsum<equation="bik,bjk->ibj">(x, w) }',
            "[4,n,1]",
            id="Einsum of symbolic dims",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 13]> g (float[n,4] x, int64[1] i) => (float[a,b] y) '
            "{ a = Constant<value_ints=[-2]>() y = Slice(x, i, i, a) }",
            "[_d2,4]",
            id="Slice from and to what a run gives, of one axis",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 13]> g (float[n,4] x, int64[1] i) => (float[a,b] y) '
            "{ y = Slice(x, i, i) }",
            "[_d2,4]",
            id="Slice of the first axis",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 13]> g (float[n,4] x) => (float[a,b] y) '
            "<int64[1] zero = {0}, int64[1] last = {-1}, int64[1] end = {-9223372036854775808}> "
            "{ y = Slice(x, last, end, zero, last) }",
            "[n,4]",
            id="Slice of everything, backwards",
        ),
        pytest.param(
            '<ir_version: 3, opset_import: ["" : 4]> g (float[n,9] x) => (float[a,b] y) '
            "{ y = Dropout<is_test=1>(x) z = Neg(y) }",
            None,
            id="an operator for which ONNX has no rule either",
        ),
        pytest.param(
            '<ir_version: 6, opset_import: ["" : 11]> g (float[n,4] x, float[4] s, float[4] b) => (float[a,c] y) '
            "{ y = LayerNormalization<axis=-1>(x, s, b) }",
            "[n,4]",
            id="an operator of a later opset, which ONNX Runtime has always had",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]> '
            "g (float[n,4] x, float s, uint16 z) => (float[a,c] y) "
            "{ q = com.microsoft.QuantizeLinear(x, s, z) y = com.microsoft.DequantizeLinear(q, s, z) }",
            "[n,4]",
            id="quantization as ONNX Runtime writes it",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (int64[n,1] i) => (float[a,b] y) '
            "<float[3] x = {1, 2, 3}> { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
            "[1,n]",
            id="classes by number, as scikit-learn's classifiers choose them",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> '
            "g (float[n,9] x, int64[2,3] i) => (float[a,b] y) { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
            "[n,6]",
            id="columns by a matrix of numbers",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n,m] x) => (int64[a,c] y) '
            "<int64 zero = {0}, int64 one = {1}, int64[1] rows = {-1}, int64[1] where = {1}> { s = Shape(x) "
            "l = Gather(s, one) r = Range(zero, l, one) u = Unsqueeze(r, where) k = Gather(s, where) "
            "t = Concat<axis=0>(rows, k) y = Reshape(u, t) }",
            "[1,m]",
            id="positions, as GPT-2 counts them",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n,m,12] x) => (float[a,b,c,d] y) '
            "<int64[1] rest = {-1}, int64[1] four = {4}> { n = Shape<start=0, end=1>(x) m = Shape<start=1, end=2>(x) "
            "t = Concat<axis=0>(m, rest, four, n) y = Reshape(x, t) }",
            "[m,3,4,n]",
            id="a dim that is left when the others cancel",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n,m,12] x) => (float[a,b] y) '
            "<int64[1] rest = {-1}> { n = Shape<start=0, end=1>(x) t = Concat<axis=0>(n, rest) y = Reshape(x, t) }",
            "[n,12*m]",
            id="a dim that is a product",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 12]> g (float[?,m,2,8] x) => (float[a,b,c] y) '
            "<int64[3] t = {0, 0, -1}> { y = Reshape(x, t) }",
            "[_d0,m,16]",
            id="what is left beside dims that are copied, with and without a name",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,1,4] x) => (float[a,b,c,d] y) '
            "{ y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
            "[1,1,_d0,2]",
            id="a pool smaller than its window, of which ONNX has none and ONNX Runtime one",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n,m] x) => (float[a,b] y) '
            "<int64[1] one = {1}, int64[1] six = {6}> { e = Add(one, six) y = Slice(x, one, e) }",
            "[_d0,m]",
            id="Slice up to a number that is computed",
        ),
        pytest.param(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n,m] x) => (float[a,b] y) '
            "<int64[1] zero = {0}, int64[1] seven = {7}> { s = Shape<start=1, end=2>(x) e = Sub(s, seven) "
            "y = Slice(x, zero, e) }",
            "[_d0,m]",
            id="Slice up to a difference, which may count from the end",
        ),
        *(
            pytest.param(
                f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,4] x, int64[1] k) => (float[a,b,c] y) '
                f"<int64[1] one = {{1}}, int64[1] two = {{2}}> {{ y = Slice(x, one, two, {operands}) }}",
                shape,
                id=f"Slice with {what} that only a run knows",
            )
            for what, operands, shape in (("an axis", "k", "[_d0,_d1,_d2]"), ("a step", "two, k", "[2,3,_d0]"))
        ),
    ],
)
def test_shapes_of_forms_that_few_know(text: str, expected: str | None) -> None:
    model = read_model(onnx.parser.parse_model(text))
    _infer(model)
    shape = model.graph.outputs[0].shape
    assert (shape if shape is None else str(shape)) == expected


_QUANTIZED = "s = Constant<value = float {0.5}>() z = Constant<value = uint8 {3}>() "
_CONTRIB = {
    "QGemm": f"(uint8[2,4] x, uint8[4,3] w) => (y) {{ {_QUANTIZED} "
    "y = com.microsoft.QGemm(x, s, z, w, s, z, , s, z) }",
    "QGemm of floats": f"(uint8[2,4] x, uint8[4,3] w) => (y) {{ {_QUANTIZED} "
    "y = com.microsoft.QGemm(x, s, z, w, s, z) }",
    "QLinearAveragePool": f"(uint8[1,3,4,4] x) => (y) {{ {_QUANTIZED} "
    "y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2]>(x, s, z, s, z) }",
    "QLinearGlobalAveragePool": f"(uint8[1,3,4,4] x) => (y) {{ {_QUANTIZED} "
    "y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z) }",
    "FusedMatMul": "(float[3,2,4] x, float[2,4,5] w) => (y) { y = com.microsoft.FusedMatMul<transBatchA = 1>(x, w) }",
    "Attention": "(float[1,4,8] x, float[8,36] w, float[36] b) => (y, p) "
    "{ y, p = com.microsoft.Attention<num_heads = 2>(x, w, b) }",
    "MultiHeadAttention": "(float[1,4,8] q, float[1,3,8] k, float[1,3,12] v) => (y, pk, pv) "
    "{ y, pk, pv = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }",
    "DynamicQuantizeLSTM": "(float[5,2,3] x, uint8[2,3,16] w, uint8[2,4,16] r, float[2] s) => (y, h, c) "
    "{ z = Constant<value = uint8[2] {3, 3}>() y, h, c = com.microsoft.DynamicQuantizeLSTM"
    '<hidden_size = 4, direction = "bidirectional">(x, w, r, , , , , , s, z, s, z) }',
    "GroupQueryAttention": "(float[1,1,16] q, float[1,1,16] k, float[1,1,16] v, float[1,2,6,8] p, float[1,2,6,8] r) "
    "=> (y, k2, v2) { n = Constant<value = int32[1] {3}>() t = Constant<value = int32 {4}>() "
    "y, k2, v2 = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(q, k, v, p, r, n, t) }",
}


@pytest.mark.parametrize("text", _CONTRIB.values(), ids=_CONTRIB)
def test_what_onnx_runtime_makes_is_what_is_inferred_of_its_own_operators(text: str) -> None:
    signature, rest = text.split("=> (")
    names, body = rest.split(")", 1)
    typed = ", ".join(f"float {name.strip()}" for name in names.split(","))
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g '
    proto = onnx.parser.parse_model(f"{header}{signature}=> ({typed}){body}")
    for output in proto.graph.output:
        output.ClearField("type")
    model = read_model(proto)
    _infer(model)
    feeds = {v.name: np.ones([int(d) for d in v.shape], v.dtype.numpy()) for v in model.graph.inputs}
    for value, real in zip(model.graph.outputs, evaluate(read_model(proto), feeds).values()):
        assert value.dtype is None or value.dtype.numpy() == real.dtype, value
        if value.shape is not None:
            assert [d if isinstance(d, int) else n for d, n in zip(value.shape, real.shape)] == list(real.shape), value
