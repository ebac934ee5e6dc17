"""pfvm as a library: every pass alone, on an onnx_ir model, in place."""

from __future__ import annotations

import copy
import json

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from pass_settings import settings
from pfvm.errors import InputError, InvalidModelError, OptionError
from pfvm.passes import forward, rule
from pfvm.passes.provenance import FROM, RULE
from pfvm.passes.rewriter import Rewriter
from support import assert_same_numbers, model, ops
from test_every_pass import EXAMPLES


def source_of(name: str) -> onnx.ModelProto:
    example = EXAMPLES[name]
    return model(example) if isinstance(example, str) else example


def names(proto: onnx.ModelProto) -> set[str]:
    """Of nodes, and of the first outputs of those that have none, bodies and functions included."""
    root = ir.from_proto(proto)
    nodes = [node for graph in [root.graph, *(f.graph for f in root.functions.values())] for node in graph.all_nodes()]
    return {node.name or str(node.outputs[0].name) for node in nodes}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pass_alone(name: str) -> None:
    """It finds what it is for, keeps the numbers, and says of every node that it makes what that stands for."""
    proto = source_of(name)
    given = ir.from_proto(copy.deepcopy(proto))
    records = pfvm.run_passes(given, name)
    assert {record.name for record in records} == {name}
    assert records[0].matches and not records[-1].matches
    result = ir.to_proto(given)
    onnx.checker.check_model(result, full_check=True)
    assert_same_numbers(proto, result)
    assert [v.SerializeToString() for v in result.graph.input] == [v.SerializeToString() for v in proto.graph.input]
    old = names(proto)
    outer = [node for node in given.graph.all_nodes() if RULE in node.metadata_props]
    for node in outer:
        assert node.metadata_props[RULE].startswith(f"{name}/")
        of = json.loads(node.metadata_props[FROM])
        assert of and set(of) <= old
    assert all(node in outer for node in given.graph.all_nodes() if (node.name or node.outputs[0].name) not in old)


def test_shapes_alone() -> None:
    given = ir.from_proto(model("agraph (float[N,3] x) => (float[N,3] y) { a = Exp(x) y = Neg(a) }"))
    assert pfvm.run_passes(given, "infer-shapes")[0].name == "infer-shapes"
    assert [str(dim) for dim in given.graph[0].outputs[0].shape or ()] == ["N", "3"]


def test_several_in_the_order_given_with_options_and_nothing_else() -> None:
    text = """agraph (float[3] x) => (float[3] y) <float[3] k = {1, 2, 3}> {
        a = Identity(x) e = Exp(k) m = Mul(a, e) t = Exp(x) y = Neg(m) }"""
    given = ir.from_proto(model(text))
    records = pfvm.run_passes(given, "fold-constants{slack=1KiB}", "eliminate_identity")
    assert [record.name for record in records[:2]] == ["fold-constants", "eliminate-identity"]
    assert [node.op_type for node in given.graph] == ["Mul", "Exp", "Neg"], "the dead Exp is another pass's"


def test_the_model_is_an_ordinary_one_afterwards() -> None:
    """It can be changed, run again and saved by onnx_ir: nothing of pfvm's own is left on it."""
    proto = source_of("fuse-matmul-bias")
    given = ir.from_proto(proto)
    pfvm.run_passes(given, "fuse-matmul-bias")
    given.graph.outputs[0].name = "renamed"
    pfvm.run_passes(given, "eliminate-dead-code")
    assert ir.to_proto(given).graph.output[0].name == "renamed"
    assert not given.meta


def test_a_result_of_optimize_goes_on(tmp_path: object) -> None:
    given = pfvm.optimize(ir.from_proto(source_of("fuse-matmul-bias")), opt_level=0)
    pfvm.run_passes(given, "fuse-matmul-bias")
    assert [node.op_type for node in given.graph] == ["Gemm", "Exp"]


def test_files_of_old_versions_list_initializers_as_inputs() -> None:
    proto = model(
        """<ir_version: 3, opset_import: ["" : 8]> agraph (float[3] x, float[3] k) => (float[3] y)
        <float[3] k = {1, 2, 3}> { a = Identity(x) y = Mul(a, k) }"""
    )
    given = ir.from_proto(proto)
    pfvm.run_passes(given, "eliminate-identity")
    result = ir.to_proto(given)
    assert [value.name for value in result.graph.input] == ["x", "k"]
    onnx.checker.check_model(result, full_check=True)
    assert_same_numbers(proto, result)


@rule("Neg")
def twice(node: ir.Node, rw: Rewriter) -> bool:
    """Neg(Neg(x)) → x."""
    inner = rw.producer(node.inputs[0], "Neg")
    return inner is not None and forward(node, rw, inner.inputs[0], "twice")


def test_rules_of_ones_own() -> None:
    given = ir.from_proto(model("agraph (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) y = Exp(b) }"))
    records = pfvm.run_passes(given, rules=twice)
    assert [node.op_type for node in given.graph] == ["Exp"]
    assert next(record.matches for record in records if record.name == "test_library.py") == {"twice": 1}


def test_weights_may_be_in_another_file(tmp_path: object) -> None:
    weights = np.ones((8, 4), np.float32)
    proto = model(
        "agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) { h = MatMul(x, w) y = Add(h, c) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del proto.graph.input[1]
    onnx.save(proto, f"{tmp_path}/m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
    given = ir.load(f"{tmp_path}/m.onnx")
    pfvm.run_passes(given, "fuse-matmul-bias")
    assert isinstance(given.graph.initializers["w"].const_value, ir.ExternalTensor)
    ir.save(given, f"{tmp_path}/n.onnx")
    assert ops(onnx.load(f"{tmp_path}/n.onnx")) == ["Gemm"]


def test_errors() -> None:
    given = ir.from_proto(source_of("fuse-conv"))
    with pytest.raises(OptionError, match="there is no pass 'fuse-convs'; did you mean 'fuse-conv'"):
        pfvm.run_passes(given, "fuse-convs")
    with pytest.raises(InputError, match=r"an onnx_ir\.Model, not 'm\.onnx'; pfvm\.optimize takes files"):
        pfvm.run_passes("m.onnx", "fuse-conv")  # type: ignore[arg-type]
    broken = ir.from_proto(model("agraph (float[3] x) => (float[3] y) { y = Neg(x) }"))
    broken.graph.outputs[0] = ir.Value(name="nowhere")
    with pytest.raises(InvalidModelError):
        pfvm.run_passes(broken, "fuse-conv")


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"eliminate-dead-code"}))
def test_a_match_that_fails_gives_its_reason(name: str) -> None:
    """The matched values also outputs, read twice, or captured: where a pass then finds less, it says why."""
    proto = source_of(name)
    found = sum(pfvm.run_passes(ir.from_proto(proto), name)[0].matches.values())
    for setting, variant in settings(proto):
        records = pfvm.run_passes(ir.from_proto(variant), name)
        if setting.startswith("in a ") or sum(records[0].matches.values()) >= found:
            continue  # in a function, constants are parameters: another pattern
        assert any(record.rejected for record in records), f"{setting}: no reason"
