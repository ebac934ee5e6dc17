"""From model to files: signature, artifacts, verification, external data, opsets."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import helper, numpy_helper
from pfvm.compiler.signature import MANIFEST_KEY, StateEntry, read_manifest, write_manifest
from pfvm.errors import InvalidModelError, MismatchError, OptionError
from support import assert_same_numbers, model, ops

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "someone", model_version: 3, doc_string: "doc">
agraph (float[batch,3] x, float[batch,3] unused) => (float[batch,3] y) { a = Identity(x) b = Exp(a) y = Relu(b) }"""


def test_an_output_that_is_an_input_keeps_its_own_declaration() -> None:
    proto = model("g (float[n,m] x) => (float[n,m] y) { y = Neg(x) }")
    proto.graph.output.append(helper.make_tensor_value_info("x", 1, ["rows", 3]))
    compiled = pfvm.optimize(proto)
    assert list(compiled.graph.input) == list(proto.graph.input)
    assert list(compiled.graph.output) == list(proto.graph.output)


def test_the_signature_survives() -> None:
    proto = model(TEXT)
    proto.graph.input[0].doc_string = "the input"
    proto.graph.doc_string = "the graph"
    proto.graph.node[1].metadata_props.add(key="where", value="here")
    proto.graph.node[1].doc_string = "an exponential"
    proto.metadata_props.add(key="author", value="me")
    weight = numpy_helper.from_array(np.ones(3, np.float32), "unused_default")
    proto.graph.initializer.append(weight)
    proto.graph.input.append(helper.make_tensor_value_info("unused_default", 1, [3]))
    compiled = pfvm.optimize(proto)
    assert list(compiled.graph.input) == list(proto.graph.input)
    assert list(compiled.graph.output) == list(proto.graph.output)
    for field in ("ir_version", "producer_name", "model_version", "doc_string", "opset_import", "metadata_props"):
        assert getattr(compiled, field) == getattr(proto, field), field
    assert compiled.graph.doc_string == "the graph" and list(compiled.graph.initializer) == [weight]
    (exponential,) = [node for node in compiled.graph.node if node.op_type == "Exp"]
    assert exponential.metadata_props[0].value == "here" and exponential.doc_string == "an exponential"


def test_the_same_kind_comes_back(tmp_path: pathlib.Path) -> None:
    proto = model(TEXT)
    assert isinstance(pfvm.optimize(proto), onnx.ModelProto)
    assert isinstance(pfvm.optimize(ir.from_proto(proto)), ir.Model)
    onnx.save(proto, tmp_path / "m.onnx")
    assert pfvm.optimize(tmp_path / "m.onnx", output=tmp_path / "p.onnx") == tmp_path / "p.onnx"
    assert ops(onnx.load(tmp_path / "p.onnx")) == ["Exp", "Relu"]


def test_artifacts(tmp_path: pathlib.Path) -> None:
    pfvm.optimize(model(TEXT), artifacts=tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert sorted(f.name for f in folder.iterdir()) == ["model.onnx", "passes.json", "pfvm.onnx"]
    assert ops(onnx.load(folder / "model.onnx")) == ["Identity", "Exp", "Relu"]
    record = json.loads((folder / "passes.json").read_text())
    assert record["nodes"] == [3, 2]
    identity = next(p for p in record["passes"] if p["name"] == "eliminate-identity")
    assert record["runs"] > len(record["passes"]), "runs that changed nothing are only counted"
    assert all(p["matches"] or p["round"] == record["passes"][-1]["round"] for p in record["passes"])
    assert identity["matches"] == {"identity": 1} and identity["nodes_after"] == 2 and identity["seconds"] >= 0


def test_levels() -> None:
    text = "agraph (float[3] x) => (float[3] y) { a = Identity(x) t = Exp(a) u = Exp(a) y = Add(t, u) }"
    assert [len(pfvm.optimize(model(text), opt_level=n).graph.node) for n in (0, 1, 2, 3)] == [4, 3, 2, 2]
    assert ops(pfvm.optimize(model(text), disable=["eliminate-identity"])) == ["Identity", "Exp", "Add"]
    assert ops(pfvm.optimize(model(text), opt_level=0, passes=["eliminate-identity"])) == ["Exp", "Exp", "Add"]


def test_verify_passes_a_right_model_and_names_the_pass_that_breaks_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pfvm.optimize(model(TEXT), verify=True)
    from pfvm.passes import eliminate_identity

    def wrong(node: ir.Node, rw: object) -> bool:
        rw.replace(node, node.inputs[0])  # type: ignore[attr-defined]
        return True

    monkeypatch.setitem(eliminate_identity.RULES, "Exp", [wrong])
    with pytest.raises(MismatchError, match="eliminate-identity"):
        pfvm.optimize(model(TEXT), verify=True)


def test_verify_reaches_the_bounds_of_what_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfvm.passes import eliminate_identity

    def half_a_bound(node: ir.Node, rw: object) -> bool:
        rw.replace(node, rw.op("Relu", node.inputs[0], at=node).outputs[0])  # type: ignore[attr-defined]
        return True

    monkeypatch.setitem(eliminate_identity.RULES, "Clip", [half_a_bound])
    clipped = model(
        "agraph (float[3] x) => (float[3] y) <float a = {0}, float b = {6}> { c = Clip(x, a, b) y = Neg(c) }"
    )
    with pytest.raises(MismatchError, match="eliminate-identity"):
        pfvm.optimize(clipped, verify=True, opt_level=0, passes=["eliminate-identity"])


def test_verify_takes_a_loop_whose_condition_has_one_element() -> None:
    looped = model("""agraph (float[1] x) => (float[1] y) <int64[1] n = {3}, bool[1] go = {1}, float[1] k = {1}> {
        y = Loop (n, go, x) <body = g (int64[1] i, bool[1] c, float[1] a) => (bool[1] d, float[1] b) {
            d = If (c) <then_branch = t () => (bool[1] p) { p = Cast<to=9>(x) },
                        else_branch = e () => (bool[1] q) { s = Not(c) q = And(s, c) }>
            f = Exp(k) b = Add(a, f) }> }""")  # fmt: skip
    pfvm.optimize(looped, verify=True)


def test_external_data_in_and_out(tmp_path: pathlib.Path) -> None:
    proto = model("agraph (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    inside = onnx.ModelProto.FromString(proto.SerializeToString())
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "other").mkdir()
    pfvm.optimize(tmp_path / "m.onnx", output=tmp_path / "other" / "in.onnx")
    assert_same_numbers(inside, onnx.load(tmp_path / "other" / "in.onnx"))
    pfvm.optimize(tmp_path / "m.onnx", output=tmp_path / "other" / "out.onnx", external_data=True)
    assert (tmp_path / "other" / "out.onnx.data").stat().st_size >= 64 * 64 * 4
    assert (tmp_path / "other" / "out.onnx").stat().st_size < 2048
    assert_same_numbers(inside, onnx.load(tmp_path / "other" / "out.onnx"))
    assert len(list((tmp_path / "other").iterdir())) == 3


def test_opset_conversion() -> None:
    old = model('<ir_version: 8, opset_import: ["" : 11]> agraph (float[2,3] x) => (float[2] y) '
                "{ y = ReduceSum <axes = [1], keepdims = 0> (x) }")  # fmt: skip
    new = pfvm.optimize(old, opset=17)
    assert new.opset_import[0].version == 17 and len(new.graph.node[0].input) == 2
    assert_same_numbers(old, new)
    newest = model('<ir_version: 10, opset_import: ["" : 21]> agraph (float[3] x) => (float[3] y) { y = Gelu(x) }')
    with pytest.raises(OptionError, match="cannot be converted from 21"):
        pfvm.optimize(newest, opset=7)
    relu = model('<ir_version: 8, opset_import: ["" : 18]> agraph (float[3] x) => (float[3] y) { y = Relu(x) }')
    with pytest.raises(OptionError, match=r"from 18: onnx's converter has no step from version 14 of operator Relu$"):
        pfvm.optimize(relu, opset=13)


def test_compiling_is_deterministic_and_idempotent() -> None:
    once = pfvm.optimize(model(TEXT)).SerializeToString(deterministic=True)
    assert pfvm.optimize(model(TEXT)).SerializeToString(deterministic=True) == once
    again = pfvm.optimize(onnx.ModelProto.FromString(once))
    assert again.SerializeToString(deterministic=True) == once


def _stateful() -> ir.Model:
    proto = model("agraph (float[3] x, float[3] w) => (float[3] y, float[3] w_next) { y = Add(x, w) w_next = Exp(w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    return ir.from_proto(proto)


def test_the_state_manifest_round_trips_and_survives() -> None:
    stateful, entries = _stateful(), [StateEntry("w", "param", "model.w", "w_next")]
    write_manifest(stateful, entries)
    assert read_manifest(stateful) == entries
    assert read_manifest(pfvm.optimize(stateful)) == entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no state manifest"),
        ('{"version": 2, "state": []}', "has version 2"),
        ('{"version": 1, "state": [{"name": "nothing", "kind": "param"}]}', "'nothing', which is no input"),
        ('{"version": 1, "state": [{"name": "w", "kind": "param", "output": "z"}]}', "'z', which is no output"),
        ('{"version": 1, "state": [{"name": "w", "kind": "thing"}]}', "has kind 'thing'"),
        ('{"version": 1, "state": [{"nom": "w"}]}', "is no state manifest"),
        ('{"version": 1, "state": [{"name": ["w"], "kind": "param"}]}', "is no state manifest"),
        ('{"version": 1, "state": [{"name": "w", "kind": "param", "output": {"y": 1}}]}', "is no state manifest"),
    ],
)
def test_a_bad_manifest_is_named(text: str, message: str) -> None:
    stateful = _stateful()
    stateful.metadata_props[MANIFEST_KEY] = text
    with pytest.raises(InvalidModelError, match=message):
        read_manifest(stateful)
