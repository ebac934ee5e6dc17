"""Any ONNX file becomes one normal form, or a named error."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import TensorProto, helper, numpy_helper
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.errors import InputError, InvalidModelError, UnsupportedOpError
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.ort import evaluate
from support import assert_same_numbers, model, ops, run_passes


def test_every_source_gives_the_same_model(tmp_path) -> None:
    proto = model("agraph (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    onnx.save(proto, tmp_path / "m.onnx")
    sources = [proto, proto.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx"), ir.from_proto(proto)]
    assert len({to_proto(read_model(s)).SerializeToString(deterministic=True) for s in sources}) == 1


def test_constants_become_initializers_and_stay_constants_in_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        agraph (float[3] x) => (float[3] y) {
            a = Constant <value_float = 1.0> () b = Constant <value_ints = [1, 2]> ()
            s = Constant <value_string = "q"> ()
            c = Cast <to = 1> (b) d = ReduceSum <keepdims = 0> (c) e = Add(x, a) f = Add(e, d) y = my.F(f) }
        <domain: "my", opset_import: ["" : 17]> F (a) => (b) { k = Constant <value_float = 1.0> () b = Add(a, k) }"""
    read = read_model(model(text))
    assert {name: v.const_value.numpy().tolist() for name, v in read.graph.initializers.items() if name != "s"} == {
        "a": 1.0,
        "b": [1, 2],
    }
    (function,) = read.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Add"]
    assert_same_numbers(model(text), to_proto(read))


def test_an_ir_3_file_keeps_its_form() -> None:
    """There, initializers are inputs too, and stay so; new ones become both."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy")
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [3])
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.full(3, 2, np.float32), "k")),
        helper.make_node("Mul", ["w", "k"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [w, x], [y], [weight])
    proto = helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 8)])
    from support import run_passes

    compiled = run_passes(proto)
    onnx.checker.check_model(compiled)
    assert ops(compiled) == ["Add"] and compiled.ir_version == 3
    (initializer,) = compiled.graph.initializer
    assert [v.name for v in compiled.graph.input] == ["x", initializer.name]


def test_declared_shapes_of_intermediate_values_are_not_believed() -> None:
    proto = model("agraph (float[N,3] x) => (float[N,3] y) { a = Relu(x) y = Identity(a) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 7]))
    read = read_model(proto)
    assert next(iter(read.graph)).outputs[0].shape is None
    assert "7" not in str(run_passes(proto, "infer-shapes").graph.value_info)


def test_symbols_stand_inside_only_where_the_file_has_them_inside() -> None:
    """ONNX Runtime is slower where a sum before a layer normalization has them, so no file gets them unasked."""
    proto = model("agraph (float[N,3] x) => (float[N,3] y) { a = Relu(x) b = Exp(a) y = Sin(b) }")
    assert set(inner_shapes(run_passes(proto, "infer-shapes")).values()) == {("", 3)}
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["M", 3]))
    assert inner_shapes(run_passes(proto, "infer-shapes")) == {"a": ("N", 3), "b": ("", 3)}


def inner_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int | str, ...]]:
    dims = {v.name: v.type.tensor_type.shape.dim for v in proto.graph.value_info}
    return {name: tuple(d.dim_value or d.dim_param for d in each) for name, each in dims.items()}


def test_a_shape_without_a_type_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    """onnx_ir would warn of each, in words that say nothing to the reader of a file."""
    proto = model(
        '<ir_version: 6, opset_import: ["" : 11, "ai.onnx.ml" : 1]> g (int64[n] x) => (string[n] y) '
        '{ a = ai.onnx.ml.LabelEncoder<classes_strings = ["a", "b"]>(x) y = ai.onnx.ml.LabelEncoder(a) }'
    )
    assert len(pfvm.optimize(proto).graph.node) == 2
    assert not caplog.records


def test_negative_and_odd_dims_are_unknown_inside_and_kept_outside() -> None:
    proto = model("agraph (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "?"
    read = read_model(proto)
    assert read.graph.inputs[0].shape[0].value is None
    exported = to_proto(read)
    assert exported.graph.input[0].type.tensor_type.shape.dim[0].dim_value == -1
    assert exported.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "?"


def test_a_body_that_hands_on_an_outer_value() -> None:
    text = """agraph (bool c, float[3] x) => (float[3] y) {
        a = Exp(x) k = Constant <value = float[3] {1, 2, 3}> ()
        y = If (c) <then_branch = t () => (float[3] a) { }, else_branch = e () => (float[3] k) { }> }"""
    read = read_model(model(text))
    bodies = [attr.as_graph() for node in read.graph for attr in node.attributes.values() if node.op_type == "If"]
    assert [[node.op_type for node in body] for body in bodies] == [["Identity"], ["Identity"]]


def test_a_name_that_a_body_defines_again_is_kept_apart() -> None:
    """ONNX forbids it, ONNX Runtime refuses it, files have it: the inner `a` hides the outer one in the body only."""
    text = """agraph (bool c, float[3] x) => (float[3] y) {
        a = Exp(x) b = Exp(x)
        y = If (c) <then_branch = t () => (float[3] p) { a = Tanh(x) q = Tanh(b) p = Add(a, q) },
                    else_branch = e () => (float[3] r) { r = Abs(a) }> }"""
    from support import run_passes

    compiled = run_passes(text)
    assert_same_numbers(model(text.replace("a = Tanh(x)", "z = Tanh(x)").replace("Add(a, q)", "Add(z, q)")), compiled)
    branches = compiled.graph.node[-1].attribute
    assert [list(node.input) for node in branches[0].g.node] == [["x"], ["a"], ["a_inner", "q"]]


def test_nodes_out_of_order_are_sorted_and_a_cycle_is_an_error() -> None:
    proto = model("agraph (float[3] x) => (float[3] y) { a = Exp(x) y = Neg(a) }")
    first, second = proto.graph.node
    swapped = onnx.ModelProto.FromString(proto.SerializeToString())
    del swapped.graph.node[:]
    swapped.graph.node.extend([second, first])
    assert [node.op_type for node in read_model(swapped).graph] == ["Exp", "Neg"]
    proto.graph.node[0].input[0] = "y"
    with pytest.raises(InvalidModelError, match="has a cycle"):
        read_model(proto)


def test_a_sparse_initializer_becomes_dense() -> None:
    proto = model("agraph (float[2,3] x) => (float[2,3] y) { y = Add(x, s) }")
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    (initializer,) = to_proto(read_model(proto)).graph.initializer
    assert numpy_helper.to_array(initializer).tolist() == [[0, 5, 0], [0, 0, 7]]


def _of_maps() -> onnx.ModelProto:
    """A classifier as skl2onnx writes it, and a feature column that comes as a map."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]> '
        "g (float[n,2] x, float columns) => (float label, float probabilities, float[1,2] row) { "
        'label, p = ai.onnx.ml.LinearClassifier<classlabels_strings = ["a", "b"], coefficients = [1.0, 2.0, 3.0, 4.0], '
        'intercepts = [0.0, 0.5], post_transform = "SOFTMAX">(x) i = Identity(p) '
        'probabilities = ai.onnx.ml.ZipMap<classlabels_strings = ["a", "b"]>(i) '
        'row = ai.onnx.ml.DictVectorizer<string_vocabulary = ["u", "v"]>(columns) }'
    )
    of_text, of_floats = onnx.TypeProto(), helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    of_text.map_type.key_type = TensorProto.STRING
    of_text.map_type.value_type.CopyFrom(of_floats)
    proto.graph.input[1].type.CopyFrom(of_text)
    proto.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.STRING, ["n"]))
    proto.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(of_text))
    proto.graph.value_info.add(name="unread", type=of_text)
    return proto


def test_maps_go_through() -> None:
    proto = _of_maps()
    compiled = pfvm.optimize(proto)
    assert "Identity" not in [node.op_type for node in compiled.graph.node]
    assert list(compiled.graph.input) == list(proto.graph.input)
    assert list(compiled.graph.output) == list(proto.graph.output)
    run = pfvm.load(compiled, device="pfvm:cpu")
    assert [spec.kind for spec in (*run.inputs, *run.outputs)] == ["tensor", "map", "tensor", "sequence map", "tensor"]
    feeds = {"x": np.array([[1, -1], [2, 0]], np.float32), "columns": {"v": 2.0}}
    expected = pfvm.load(proto, device="pfvm:cpu")(feeds)
    result = run(feeds)
    assert [each.keys() for each in result["probabilities"]] == [{"a", "b"}] * 2
    for name, value in expected.items():
        assert difference(name, value, result[name], Tolerance()) is None


def test_an_input_that_is_an_output_is_fed_as_the_input_declares() -> None:
    proto = model("agraph (float[3,a] x) => (float[b,c] x, float[b,c] y) { y = Relu(x) }")
    run = pfvm.load(proto, device="pfvm:cpu")
    assert [spec.shape for spec in run.inputs] == [(3, "a")]
    with pytest.raises(InputError, match="'x'"):
        run({"x": np.zeros((2, 2), np.float32)})


def test_a_sparse_constant_becomes_dense_in_a_function_too() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
      agraph (float[2,3] x) => (float[2,3] y) { s = Constant() z = Add(x, s) y = my.F(z) }
      <domain: "my", opset_import: ["" : 18]> F (a) => (b) { s = Constant() b = Mul(a, s) }"""
    proto = model(text)
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "s")
    indices = numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64), "s_indices")
    sparse = helper.make_attribute("sparse_value", helper.make_sparse_tensor(values, indices, [2, 3]))
    for nodes in (proto.graph.node, proto.functions[0].node):
        nodes[0].attribute.append(sparse)
    x = np.ones((2, 3), np.float32)
    expected = [[0, 30, 0], [0, 0, 56]]
    assert evaluate(read_model(proto), {"x": x})["y"].tolist() == expected
    assert evaluate(read_model(run_passes(proto)), {"x": x})["y"].tolist() == expected


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("agraph (float[3] x) => (float[3] y) { y = Relux(x) }", UnsupportedOpError, "no operator 'Relux' at opset 17"),
        (
            '<ir_version: 8, opset_import: ["" : 12]> agraph (float[3] x) => (float[3] y) { y = Gelu(x) }',
            UnsupportedOpError,
            "no operator 'Gelu' at opset 12",
        ),
        (
            '<ir_version: 8, opset_import: ["" : 99]> agraph (float[3] x) => (float[3] y) { y = Relu(x) }',
            UnsupportedOpError,
            "imports opset 99 of ai.onnx; this onnx knows 1 to",
        ),
        ("agraph (float[3] x) => (float[3] y) { y = Add(x, z) }", InvalidModelError, "reads tensor 'z'"),
        ("agraph (float[3] x) => (float[3] y) { a = Relu(x) }", InvalidModelError, "output 'y' .* computed by no node"),
    ],
)
def test_an_invalid_graph_is_named(text: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        read_model(model(text))


def test_training_info_is_refused() -> None:
    proto = model("agraph (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.training_info.add()
    with pytest.raises(InvalidModelError, match="training_info"):
        read_model(proto)


def test_the_source_is_not_changed() -> None:
    proto = model("agraph (float[3] x) => (float[3] y) { k = Constant <value_float = 1.0> () y = Add(x, k) }")
    before = proto.SerializeToString(deterministic=True)
    source = ir.from_proto(proto)
    as_ir = ir.to_proto(source).SerializeToString(deterministic=True)
    read_model(proto), read_model(source)
    assert proto.SerializeToString(deterministic=True) == before
    assert ir.to_proto(source).SerializeToString(deterministic=True) == as_ir
