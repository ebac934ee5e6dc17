"""Promise: `pfvm diff` compares graphs by structure: names and the order of nodes do not matter, all else does."""

from __future__ import annotations

import json
import pathlib
import random
import re
import time

import numpy as np
import onnx
import pfvm as pfvm_package
import pytest
from cli_support import Pfvm, one_line
from onnx import numpy_helper
from pfvm.tools.bench.optimizers.chain import chain
from pfvm.tools.diff import as_dict, compare, lines
from random_graphs import random_model
from support import model

BASE = """agraph (float[n,3] x) => (float[n,3] y) <float[3] w = {1,2,3}, float one = {1}>
{ a = Mul(x, w) b = Relu(a) c = Exp(b) y = Add(c, one) }"""


def diff(old: str, new: str) -> list[str]:
    return lines(compare(model(old), model(new)))


def renamed(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Every inner name another one, initializers and independent neighbours in another order."""
    rng = random.Random(seed)
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    kept = {v.name for v in (*proto.graph.input, *proto.graph.output)}
    _rename(result.graph, {name: name for name in kept}, rng)
    initializers = list(result.graph.initializer)
    rng.shuffle(initializers)
    del result.graph.initializer[:]
    result.graph.initializer.extend(initializers)
    nodes = list(result.graph.node)
    for i in range(len(nodes) - 1):  # swap neighbours that do not read each other
        if rng.random() < 0.5 and not set(nodes[i].output) & _read(nodes[i + 1]):
            nodes[i], nodes[i + 1] = nodes[i + 1], nodes[i]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    for function in result.functions:
        _rename(function, {}, rng)
    return result


def _read(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _read(inner)
        names |= {value.name for value in attribute.g.output}
    return names


def _rename(graph: onnx.GraphProto | onnx.FunctionProto, names: dict[str, str], rng: random.Random) -> None:
    def new(name: str) -> str:
        if name not in names:
            names[name] = f"r{rng.getrandbits(40):x}"
        return names[name] if name else ""

    if isinstance(graph, onnx.GraphProto):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = new(value.name)
    else:
        graph.input[:] = [new(name) for name in graph.input]
        graph.output[:] = [new(name) for name in graph.output]
    for node in graph.node:
        node.name = new(node.name)
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names, rng)


@pytest.mark.parametrize("seed", range(40))
def test_names_and_order_are_no_difference_and_an_edit_is(seed: int) -> None:
    proto = random_model(seed, steps=20)
    other = renamed(proto, seed)
    found = compare(proto, other)
    assert found.equal, lines(found)
    assert not compare(proto, other, with_names=True).equal
    edited = _edited(other, random.Random(seed))
    assert not compare(proto, edited).equal


def _edited(proto: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """One operator of the main graph replaced by another of the same inputs, or one input by another value."""
    nodes = [node for node in proto.graph.node if len(node.input) and node.op_type not in ("If", "Loop", "Scan")]
    node = rng.choice(nodes)
    if len(node.input) > 1 and node.input[0] != node.input[1] and rng.random() < 0.5:
        node.input[0], node.input[1] = node.input[1], node.input[0]
    else:
        node.domain, node.op_type = "another", "Operator"
    return proto


def test_equal_models_are_equal() -> None:
    found = diff(BASE, BASE)
    assert found == ["equal; nodes: 4 same; constants: 2 same"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("b = Relu(a)", "b = Neg(a)", ["- Relu (a) → (b)", "+ Neg (a) → (b)"]),
        ("c = Exp(b)", "d = Neg(b) c = Exp(d)", ["+ Neg (b) → (d)", "input 0: b of Relu → d of Neg"]),
        ("c = Exp(b) y = Add(c, one)", "y = Add(b, one)", ["- Exp (b) → (c)", "input 0: c of Exp → b of Relu"]),
        ("{1,2,3}", "{1,2,4}", ["~ w: float[3]: 1 of 3 elements differ, by 1 at most"]),
        ("one = {1}", "one = {2}", ["~ one: float[]: 1.0 → 2.0"]),
        ("float one = {1}", "float[1] one = {1}", ["~ one: float[] → float[1]"]),
        ("y = Add(c, one)", "y = Add(one, c)", ["input 0: c of Exp → one = 1.0", "input 1: one = 1.0 → c of Exp"]),
        ("float[n,3] x", "float[m,3] x", ["input 'x' is float[n,3] in the first model, float[m,3] in the second"]),
        ("b = Relu(a)", "b = LeakyRelu <alpha=0.5> (a)", ["Relu: 1 → 0", "LeakyRelu: 0 → 1"]),
    ],
)
def test_what_changed_is_named(old: str, new: str, expected: list[str]) -> None:
    found = diff(BASE, BASE.replace(old, new))
    assert found[0].startswith("not equal")
    for line in expected:
        assert any(line in each for each in found), found
    (nodes,) = [part for part in found[0].split("; ") if part.startswith("nodes: ")]
    assert not re.search(r"[2-9] (removed|added)", nodes), "only what changed"


def test_a_change_in_the_middle_leaves_both_sides_alone() -> None:
    text = "agraph (float[3] x) => (float[3] y) { " + "a = Exp(x) b = Relu(a) c = Neg(b) d = Tanh(c) y = Exp(d) }"
    found = compare(model(text), model(text.replace("c = Neg(b)", "c = Abs(b)")))
    kinds = [(node.kind, node.op) for node in found.differences.nodes]
    assert kinds == [("removed", "Neg"), ("changed", "Tanh"), ("added", "Abs")] and found.differences.nodes_same == 3


def test_attributes() -> None:
    text = "agraph (float[2,3] x, float[3,2] w) => (float[2,2] y) { y = Gemm <ATTR> (x, w) }"
    assert diff(text.replace("<ATTR>", ""), text.replace("ATTR", "alpha = 1.0"))[0].startswith("equal"), "the default"
    found = diff(text.replace("<ATTR>", ""), text.replace("ATTR", "alpha = 2.0"))
    assert "    alpha: nothing → 2.0" in [line[2:] for line in found]


def test_bodies_and_functions() -> None:
    looped = """agraph (float[3] x) => (float[3] y) <int64 t = {3}, bool go = {1}>
    { y = Loop <body = g (int64 i, bool c, float[3] h) => (bool d, float[3] k)
      { d = Identity(c) u = Exp(h) k = Neg(u) }> (t, go, x) }"""
    found = diff(looped, looped.replace("u = Exp(h)", "u = Tanh(h)"))
    assert "  - Exp (h) → (u)  in body of Loop 'y'" in found and "  + Tanh (h) → (u)  in body of Loop 'y'" in found
    called = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    agraph (float[10] x) => (float[10] y) { y = f.F(x) }
    <domain: "f", opset_import: ["" : 17]> F (u) => (v) { t = Exp(u) v = Neg(t) }"""
    found = diff(called, called.replace("t = Exp(u) v = Neg(t)", "v = Exp(u)"))
    assert "  - Neg (t) → (v)  in function f::F" in found
    found = diff(called, called.replace("F (u)", "G (u)").replace("f.F", "f.G"))
    assert any(line.startswith("  function f::F: 2 nodes → nothing") for line in found)


def test_constants_renamed_copied_and_moved() -> None:
    two = "agraph (float[2] x) => (float[2] y) <float[2] v = {1,2}, float[2] w = {1,2}> { a = Add(x, v) y = Mul(a, w) }"
    one = two.replace(", float[2] w = {1,2}", "").replace("Mul(a, w)", "Mul(a, v)")
    found = diff(two, one)
    assert found[-1] == "  - w: float[2], the bytes of 'v' in the other model"
    swapped = two.replace("w = {1,2}", "w = {3,4}")
    other = swapped.replace("v = {1,2}", "w = {1,2}", 1).replace("w = {3,4}", "v = {3,4}")
    other = other.replace("Add(x, v)", "Add(x, w)").replace("Mul(a, w)", "Mul(a, v)")
    assert diff(swapped, other)[0].startswith("equal"), "two constants that swapped their names"
    both = swapped.replace("v = {1,2}", "p = {5,6}").replace("Add(x, v)", "Add(x, p)")
    assert any("v → p: float[2]: 2 of 2 elements differ" in line for line in diff(swapped, both))


def test_versions_and_metadata() -> None:
    old, new = model(BASE), model(BASE.replace("c = Exp(b)", "c = Exp(b)"))
    new.opset_import[0].version = 18
    new.metadata_props.add(key="author", value="me")
    new.producer_name = "someone"
    found = lines(compare(old, new))
    assert found[1:] == ["model:", "  producer: nothing → someone", "  opset of ai.onnx: 17 → 18",
                         "  metadata author: nothing → me"]  # fmt: skip


def test_what_a_pass_made_is_said(tmp_path: pathlib.Path) -> None:
    source = model(
        "agraph (float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y) { [m] p = MatMul(x, w) [s] y = Add(p, b) }"
    )
    found = compare(source, pfvm_package.optimize(source))
    (added,) = [node for node in found.differences.nodes if node.kind == "added"]
    assert added.op == "Gemm" and added.sources == ("m", "s") and added.rule.startswith("fuse-matmul-bias/")


def test_the_command(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model(BASE), a)
    onnx.save(model(BASE.replace("Relu", "Neg")), b)
    assert pfvm("diff", a, a).code == 0
    different = pfvm("diff", a, b)
    assert different.code == 1 and different.out.startswith("not equal; nodes: 2 same")
    found = json.loads(pfvm("diff", a, b, "--json").out)
    assert not found["equal"] and [n["kind"] for n in found["nodes"]] == ["removed", "changed", "added"]
    assert found["nodes"][1]["changes"] == [{"what": "input 0", "old": "b of Relu", "new": "b of Neg"}]
    assert "more lines (--limit 0 shows all)" in pfvm("diff", a, b, "--limit", 1).out
    onnx.save(renamed(model(BASE), 1), b)
    assert pfvm("diff", a, b).code == 0 and pfvm("diff", a, b, "--names").code == 1
    assert "no such file" in one_line(pfvm("diff", a, tmp_path / "c.onnx")).lower()


def test_weights_in_files_are_compared_by_their_bytes(tmp_path: pathlib.Path) -> None:
    proto = model("agraph (float[2,64] x) => (float[2,64] y) { a = MatMul(x, v) y = MatMul(a, w) }")
    for name, scale in (("v", 1), ("w", 2)):
        array = np.full((64, 64), scale, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        kept = onnx.ModelProto.FromString(proto.SerializeToString())
        onnx.save(kept, tmp_path / folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    one, two = tmp_path / "one" / "m.onnx", tmp_path / "two" / "m.onnx"
    assert compare(one, one).equal and compare(one, two).equal and compare(one, proto).equal
    data = bytearray((tmp_path / "two" / "w.bin").read_bytes())
    data[-1] ^= 1
    (tmp_path / "two" / "w.bin").write_bytes(bytes(data))
    found = compare(one, two).differences
    assert [change.new for change in found.constants] == ["w"] and not found.nodes


def test_many_equal_nodes_with_different_readers_are_told_apart() -> None:
    lines_of = "".join(f"a{i} = Exp(x) b{i} = Mul(a{i}, w{i}) " for i in range(20))
    weights = ", ".join(f"float w{i} = {{{i + 2}}}" for i in range(20))
    terms = ", ".join(f"b{i}" for i in range(20))
    text = f"agraph (float[3] x) => (float[3] y) <{weights}> {{ {lines_of} y = Sum({terms}) }}"
    proto = model(text)
    other = renamed(proto, 3)
    other.graph.node[:-1].reverse()
    assert compare(proto, other).equal


def test_sixteen_thousand_nodes_take_seconds() -> None:
    old, new = chain(2000), chain(2000)
    for node in new.graph.node[::500]:
        node.domain = "changed"
    weight = numpy_helper.to_array(new.graph.initializer[0])
    new.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight + np.float32(1), new.graph.initializer[0].name))
    start = time.process_time()
    found = compare(old, new)
    assert time.process_time() - start < 20, "5 s on an idle machine"
    assert not found.equal and found.differences.nodes_same > 0.95 * len(old.graph.node)
    assert len(json.dumps(as_dict(found))) < 10**6
