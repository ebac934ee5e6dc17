"""Models made to break the compiler, one for each kind of fault that once did."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import onnx
import pfvm
import pytest
from growth import assert_linear
from onnx import TensorProto, helper, numpy_helper
from pfvm.errors import InvalidModelError, OptionError, UnsupportedOpError
from support import HEADER, assert_same_numbers, inputs, model, ops, run_passes


def _with(text: str, **initializers: np.ndarray) -> onnx.ModelProto:
    proto = model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    return proto


# ---- wrong numbers


@pytest.mark.parametrize(
    "lines",
    [
        "y = Add(k, one)",
        "r = Expand(x, k) y = Shape(r)",
        "r = Reshape(x, k) y = Shape(r)",
        "r = ConstantOfShape(k) y = Shape(r)",
        "r = Tile(x, k) y = Shape(r)",
    ],
)
def test_an_overridable_integer_is_not_believed(lines: str) -> None:
    text = f"agraph (float[6] x, int64[1] k) => (int64[1] y) {{ one = Constant <value_ints = [1]> () {lines} }}"
    proto = _with(text, k=np.array([6]))
    compiled = pfvm.optimize(proto)
    x = np.zeros(6, np.float32)
    overrides = [6] if "Reshape" in lines or "Expand" in lines else [6, 3]
    feeds = [{"x": x}, *({"x": x, "k": np.array([k])} for k in overrides)]
    assert_same_numbers(proto, compiled, feeds)


@pytest.mark.parametrize(
    "lines",
    [
        "a = Cast <to = 1> (k) d = Div(a, two) c = Ceil(d) y = Cast <to = 7> (c)",
        "a = Cast <to = 1> (k) d = Div(a, two) c = Mul(d, two) y = Cast <to = 7> (c)",
        "a = Cast <to = 9> (k) y = Cast <to = 7> (a)",
        "a = Cast <to = 10> (k) y = Cast <to = 7> (a)",
        "a = Cast <to = 3> (k) y = Cast <to = 7> (a)",
    ],
)
def test_contents_do_not_pass_through_other_types(lines: str) -> None:
    text = f"agraph (float[7,2049] x) => (int64[2] y) {{ two = Constant <value_float = 2.0> () k = Shape(x) {lines} }}"
    assert_same_numbers(model(text), run_passes(text))


@pytest.mark.parametrize("a", [-(2**63), -7, 7])
@pytest.mark.parametrize("shape", [[1], [1, 1]])
def test_integer_division_truncates(a: int, shape: list[int]) -> None:
    proto = _with(
        f"agraph (float[1] x) => (int64{shape} y, float[1] z) {{ y = Div(a, b) z = Relu(x) }}",
        a=np.full(shape, a),
        b=np.full(shape, 2),
    )
    assert_same_numbers(proto, pfvm.optimize(proto))


@pytest.mark.parametrize(
    "bounds", [(-10, -(2**63), -1), (0, -(2**63), 1), (4, -6, -2), (-2, 99, 1), (9, 0, -3), (3, 3, 1)]
)
@pytest.mark.parametrize("constant", [True, False])
def test_slice_bounds_are_clamped_as_onnx_says(bounds: tuple[int, int, int], constant: bool) -> None:
    start, end, step = (f"Constant <value = int64[1] {{{b}}}> ()" for b in bounds)
    data = "d = Constant <value_ints = [0, 1, 2, 3, 4]> ()" if constant else "s = Shape(x) d = Sub(s, s)"
    text = f"""agraph (float[1,2,3,4,5] x) => (int64[n] y, int64[1] z) {{
        {data} a = Constant <value_ints = [0]> () b = {start} e = {end} t = {step}
        y = Slice(d, b, e, a, t) z = Shape(y) }}"""
    assert_same_numbers(model(text), run_passes(text))


def test_placeholder_names_are_no_symbols() -> None:
    text = "agraph (float[None,None] x) => (float[a,b] y) { t = Transpose(x) s = Shape(t) y = Reshape(x, s) }"
    assert_same_numbers(model(text), run_passes(text), [{"x": np.arange(6, dtype=np.float32).reshape(2, 3)}])


def test_a_local_function_with_the_name_of_an_operator_is_that_function() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[3] x) => (float[3] y) { a = Identity(x) y = Relu(a) }
        <domain: "", opset_import: ["" : 17]> Identity (a) => (b) { c = Exp(a) b = Neg(c) }"""
    compiled = run_passes(text)
    assert ops(compiled) == ["Identity", "Relu"]


def test_a_local_function_with_the_name_of_an_operator_stays_a_call() -> None:
    """The standard leaves to a runtime which of the two it takes."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[3] x) => (float[3] y) { y = Relu(x) }
        <domain: "", opset_import: ["" : 17]> Relu (a) => (b) { b = Neg(a) }"""
    assert_same_numbers(model(text), run_passes(text))


def test_a_body_initializer_under_an_outer_name() -> None:
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["p"])],
        "t",
        [],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([5, 6], np.float32), "w")],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["q"])], "e", [], [helper.make_tensor_value_info("q", TensorProto.FLOAT, [2])]
    )
    proto = _with("agraph (bool c, float[2] x) => (float[2] y, float[2] z) { z = Add(x, w) }", w=np.ones(2, np.float32))
    proto.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other))
    with pytest.raises(InvalidModelError, match="initializer 'w', which is also the name of another value"):
        pfvm.optimize(proto)
    then = next(a for a in proto.graph.node[1].attribute if a.name == "then_branch")
    then.g.initializer[0].CopyFrom(proto.graph.initializer[0])
    assert ops(pfvm.optimize(proto)) == ["Add", "If"]


def test_a_zero_batch_after_folding_a_reshape_target() -> None:
    text = """agraph (float[N,M,3] x) => (float[N,K] y) {
        s = Shape(x) z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> ()
        n = Gather(s, z) m = Gather(s, o) three = Constant <value_ints = [3]> () k = Mul(m, three)
        t = Concat <axis = 0> (n, k) y = Reshape(x, t) }"""
    empty = {"x": np.zeros((0, 2, 3), np.float32)}
    assert_same_numbers(model(text), run_passes(text), [empty, inputs(model(text), 0)])


# ---- crashes


@pytest.mark.parametrize("shape", ["", "[3]", "[N,3]"])
@pytest.mark.parametrize(
    "lines",
    [
        "y = Slice(x, k, k)",
        "y = Slice(x, zero, zero, two)",
        "a = Slice(x, k, k) y = Slice(a, k, k)",
        "a = Slice(x, many, many) y = Slice(a, many, many)",
        "a = Transpose <perm = [1, 0]> (x) b = Slice(a, many, many) y = Transpose <perm = [1, 0]> (b)",
        "y = Gather <axis = 5> (x, k)",
        "a, b = Split <axis = -7> (x) y = Neg(a)",
        "a = Gather(x, k) y = ReduceMean <axes = [5], keepdims = 0> (a)",
        "m = ReduceMax <axes = [0]> (x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, k) y = Div(e, s)",
        "a = Transpose <perm = [1, 0]> (x) b = Softmax <axis = 5> (a) y = Transpose <perm = [1, 0]> (b)",
        "a = Transpose <perm = [1, 0]> (x) b = Concat <axis = -7> (a, a) y = Transpose <perm = [1, 0]> (b)",
        "a = Transpose <perm = [1, 0]> (x) b = Slice(a, zero, zero, k) y = Transpose <perm = [1, 0]> (b)",
    ],
)
def test_an_axis_that_the_operand_has_not_is_left_to_the_runtime(lines: str, shape: str) -> None:
    numbers = "int64[1] k = {5}, int64[1] zero = {0}, int64[2] two = {0, 0}, int64[3] many = {0, 0, 0}"
    text = f"agraph (float{shape} x) => (y) <{numbers}> {{ {lines} }}"
    for run in (lambda: run_passes(text), lambda: pfvm.optimize(model(text), target="ort")):
        assert len(run().graph.node) >= 1


def test_a_large_constant_that_only_a_folded_node_reads() -> None:
    text = """agraph (float[1] x) => (float[1] y, float[100,100] w) {
        c = Constant <value_float = 3.0> () s = Constant <value_ints = [100, 100]> () a = Expand(c, s)
        w = Add(x, a) r = ReduceMean <keepdims = 0> (a) y = Add(x, r) }"""
    compiled = run_passes(text)
    assert ops(compiled) == ["Expand", "Add", "Add"]
    assert_same_numbers(model(text), compiled)


def test_many_rounds_are_no_fault() -> None:
    """Sizes computed in floats: each round knows one more."""
    stage = (
        "s{i} = Shape(x{i}) f{i} = Cast <to = 1> (s{i}) e{i} = Exp(f{i}) l{i} = Log(e{i}) r{i} = Round(l{i}) "
        "t{i} = Cast <to = 7> (r{i}) g{i} = Expand(x{i}, t{i}) x{j} = Relu(g{i}) "
    )
    lines = "".join(stage.format(i=i, j=i + 1) for i in range(24))
    compiled = run_passes(f"agraph (float[2,3] x0) => (float[2,3] x24) {{ {lines} }}")
    assert set(ops(compiled)) == {"Relu"}


def test_a_chain_of_many_functions() -> None:
    n = 1200
    functions = "".join(
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{i} (a) => (b) {{ c = Exp(a) b = f.F{i + 1}(c) }}\n'
        for i in range(n)
    )
    last = f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{n} (a) => (b) {{ c = Exp(a) b = Neg(c) }}\n'
    text = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>\nagraph (float[3] x) => (float[3] y) { y = f.F0(x) }\n'
    assert ops(run_passes(text + functions + last)) == ["F0"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("agraph (float[3] x) => (float[3] y) { y = Identity() }", InvalidModelError, "has 0 inputs; Identity takes 1"),
        ("agraph (float[3] x) => (float[3] y) { y = Reshape(x) }", InvalidModelError, "has 1 inputs; Reshape takes 2"),
        ("agraph (float[3] x) => (float[3] y) { y = Relu(x, x) }", InvalidModelError, "takes at most 1"),
        ("agraph (float[3] x) => (float[3] y) { y = Cast(x) }", InvalidModelError, "attribute 'to' is missing"),
        ("agraph (float[3] x) => (float[3] y) { y = Cast <to = 77> (x) }", InvalidModelError, "no element type 77"),
        ("agraph (float[3] x) => (float[3] y) { y = Cast <to = 1.5> (x) }", InvalidModelError, "type FLOAT, not INT"),
        (
            '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> agraph (float[3] x) => (float[3] y) { y = f.A(x) } '
            '<domain: "f", opset_import: ["" : 17, "f" : 1]> A (a) => (b) { b = f.B(a) } '
            '<domain: "f", opset_import: ["" : 17, "f" : 1]> B (a) => (b) { b = f.A(a) }',
            InvalidModelError,
            "calls itself",
        ),
    ],
)
def test_an_ill_formed_node_is_named(text: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        pfvm.optimize(model(text))


def test_a_tensor_with_too_few_bytes_or_no_type() -> None:
    proto = _with("agraph (float[3] x) => (float[3] y) { y = Add(x, w) }", w=np.ones(3, np.float32))
    proto.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(InvalidModelError, match="needs 12 bytes, it has 4"):
        pfvm.optimize(proto)
    proto.graph.initializer[0].data_type = 0
    with pytest.raises(InvalidModelError, match="element type is not set"):
        pfvm.optimize(proto)


def test_a_function_that_takes_a_graph_is_refused() -> None:
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[3] x) => (float[3] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 17]> F (a) => (b) { b = Neg(a) }"""
    )
    attribute = proto.functions[0].node[0].attribute.add(name="then_branch", ref_attr_name="g")
    attribute.type = onnx.AttributeProto.GRAPH
    with pytest.raises(UnsupportedOpError, match="is a graph that the caller gives"):
        pfvm.optimize(proto)


# ---- external data


def _external(folder: pathlib.Path, **entries: str) -> pathlib.Path:
    proto = _with("agraph (float[4] x) => (float[4] y) { n = Neg(w) y = Add(x, n) }", w=np.arange(4, dtype=np.float32))
    tensor = proto.graph.initializer[0]
    (folder / "m.onnx.data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "m.onnx.data", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"length": "8"}, "has length 8, 16 bytes are needed"),
        ({"offset": "-4"}, "has offset '-4', which is no size"),
        ({"offset": "8"}, "has 16 bytes, 24 are needed"),
        ({"location": "../m.onnx.data"}, "lies outside"),
        ({"location": "missing"}, "does not exist"),
        ({"location": ""}, "has no location"),
    ],
)
def test_external_data_is_checked(tmp_path: pathlib.Path, entries: dict[str, str], message: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InvalidModelError, match=message):
        pfvm.optimize(_external(tmp_path / "in", **entries), output=tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_compiling_over_the_input_and_its_weights(tmp_path: pathlib.Path) -> None:
    source = _external(tmp_path)
    expected = onnx.load(source)
    pfvm.optimize(source, output=source, external_data=True, artifacts=tmp_path / "art")
    for file in (source, tmp_path / "art" / "model.onnx", tmp_path / "art" / "pfvm.onnx"):
        assert_same_numbers(expected, onnx.load(file))


def test_an_output_whose_weights_would_replace_the_input_s(tmp_path: pathlib.Path) -> None:
    source = _external(tmp_path)
    moved = source.rename(tmp_path / "other.onnx")
    with pytest.raises(OptionError, match="holds the weights of"):
        pfvm.optimize(moved, output=tmp_path / "m.onnx", external_data=True)
    assert numpy_helper.to_array(onnx.load(moved).graph.initializer[0]).tolist() == [0, 1, 2, 3]


def test_external_data_of_a_constant_in_a_function_is_read_in(tmp_path: pathlib.Path) -> None:
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[2] x) => (float[2] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 17]> F (a) => (b) {
            k = Constant <value = float[2] {1, 2}> () b = Add(a, k) }"""
    )
    expected = onnx.ModelProto.FromString(proto.SerializeToString())
    tensor = proto.functions[0].node[0].attribute[0].t
    (tmp_path / "k.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    tensor.ClearField("float_data"), tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="k.bin")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "out").mkdir()
    pfvm.optimize(tmp_path / "m.onnx", output=tmp_path / "out" / "p.onnx")
    assert_same_numbers(expected, onnx.load(tmp_path / "out" / "p.onnx"))


# ---- metadata, stability, opsets


def test_metadata_of_constants_is_said_once_and_stays() -> None:
    text = "agraph (float[3] x) => (float[3] y) { k = Constant <value_float = 2.0> () a = Mul(x, k) y = Add(a, w) }"
    proto = _with(text, w=np.ones(3, np.float32))
    proto.graph.node[0].metadata_props.add(key="where", value="line 3")
    proto.graph.node[0].doc_string = "a factor"
    proto.graph.initializer[0].metadata_props.add(key="a", value="b")
    once = pfvm.optimize(proto)
    twice = pfvm.optimize(once)
    assert once.SerializeToString(deterministic=True) == twice.SerializeToString(deterministic=True)
    assert [len(t.metadata_props) for t in twice.graph.initializer if t.name == "w"] == [1]
    (info,) = [v for v in twice.graph.value_info if v.name == "k"]
    assert info.doc_string == "a factor" and info.metadata_props[0].value == "line 3"


def test_a_function_that_returns_a_constant() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[2] x) => (float[2] y) { k = f.K() y = Add(x, k) }
        <domain: "f", opset_import: ["" : 17]> K () => (b) { b = Constant <value = float[2] {1, 2}> () }"""
    compiled = run_passes(text)
    assert ops(compiled) == ["Add"]
    assert run_passes(compiled).SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)


def test_opset_conversion_keeps_what_functions_compute_and_the_metadata() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        agraph (float[3] x) => (float[3] y) { a = Exp(x) y = f.F(a) }
        <domain: "f", opset_import: ["" : 17]> F (a) => (b) { c = Neg(a) b = Abs(c) }"""
    proto = model(text)
    proto.graph.node[0].metadata_props.add(key="where", value="line 1")
    converted = pfvm.optimize(proto, opset=21)
    assert_same_numbers(proto, converted)
    assert converted.graph.node[0].metadata_props[0].value == "line 1"
    fused = run_passes("agraph (bool[N,4] m) => (int64 n) { c = Cast <to = 7> (m) n = ReduceSum <keepdims = 0> (c) }")
    assert ops(pfvm.optimize(fused, opset=18)) == ["ChainerCastReduceSum"]


# ---- time


def _initializers(n: int) -> onnx.ModelProto:
    """One chain, a different initializer of one shape at every step."""
    weights = {f"w{i}": np.full(3, i, np.float32) for i in range(n)}
    lines = " ".join(f"a{i + 1} = Add(a{i}, w{i})" for i in range(n))
    return _with(f"agraph (float[3] a0) => (float[3] a{n}) {{ {lines} }}", **weights)


def _constants(n: int) -> onnx.ModelProto:
    """Foldable multiplications, each read once."""
    weights = {f"w{i}": np.full(3, i, np.float32) for i in range(n)}
    lines = " ".join(f"m{i} = Mul(w{i}, w{i}) a{i + 1} = Add(a{i}, m{i})" for i in range(n))
    return _with(f"agraph (float[3] a0) => (float[3] a{n}) {{ {lines} }}", **weights)


def _outputs(n: int) -> onnx.ModelProto:
    """Many outputs, each behind an Identity."""
    names = ", ".join(f"float[3] y{i}" for i in range(n))
    lines = " ".join(f"a{i} = LeakyRelu <alpha = {i}.0> (x) y{i} = Identity(a{i})" for i in range(n))
    return model(f"{HEADER} agraph (float[3] x) => ({names}) {{ {lines} }}")


def _functions(n: int) -> onnx.ModelProto:
    """A chain of one-node functions."""
    functions = "".join(
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{i} (a) => (b) {{ b = f.F{i + 1}(a) }}\n' for i in range(n)
    )
    last = f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{n} (a) => (b) {{ b = Abs(a) }}\n'
    text = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]>\nagraph (float[3] x) => (float[3] y) { y = f.F0(x) }\n'
    return model(text + functions + last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "size"), [(_initializers, 1000), (_constants, 500), (_outputs, 500), (_functions, 60)]
)
def test_time_grows_with_the_graph(build: Callable[[int], onnx.ModelProto], size: int) -> None:
    def optimizing(nodes: int) -> Callable[[], onnx.ModelProto]:
        proto = build(nodes)
        return lambda: pfvm.optimize(proto)

    assert_linear(optimizing, size)
