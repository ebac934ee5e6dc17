"""fuse-rotary-embedding: halves and neighbours, whole heads and parts of them, tables of every form; near misses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pass_settings import assert_rewritten, assert_settings
from support import assert_same_numbers, assert_stays, model, ops, run_passes

PASS = "fuse-rotary-embedding"
NEW = "RotaryEmbedding"


def numbers(shape: tuple[int, ...], halves: bool = True, pairs: bool = False) -> str:
    """A table of any numbers: the kernel does not ask whether they are cosines."""
    half = np.sin(np.arange(np.prod(shape) // 2)).reshape(*shape[:-1], -1)
    if pairs:
        half = np.repeat(half, 2, axis=-1)
    elif halves:
        half = np.concatenate([half, half], -1)
    return ", ".join(f"{x:.4f}" for x in half.reshape(-1))


HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float[{x}] x, float[B,3,2] f) => (float[{y}] y)
<float[3,4] c = {{{halves}}}, float[3,4] s = {{{halves}}}, float[3,4] pc = {{{pairs}}}, float[3,4] ps = {{{pairs}}},
 float[3,2] hc = {{1, 2, 3, 4, 5, 6}}, float[3,2] hs = {{6, 5, 4, 3, 2, 1}}, float[3,4] mixed = {{{mixed}}},
 int64[1] k0 = {{0}}, int64[1] k1 = {{1}}, int64[1] k2 = {{2}}, int64[1] k3 = {{3}}, int64[1] k4 = {{4}},
 int64[1] k6 = {{6}}, int64[1] heads = {{1}}, int64[1] end = {{{big}}}, int64[2] cut = {{2, 2}}, int64 z = {{0}},
 int64 o = {{1}}, int64[4] joined = {{0, 2, 3, 4}}, int64[5] apart = {{0, 2, 3, 2, 2}}, int64[1] last = {{-1}},
 int64[4] by = {{0, 3, 2, 4}}, float minus = {{-1}}> {{ {lines} }}"""


def graph(lines: str, x: str = "B,2,3,4", y: str | None = None, opset: int = 23) -> str:
    mixed = ", ".join(str(i) for i in range(12))
    form = {"halves": numbers((3, 4)), "pairs": numbers((3, 4), pairs=True), "mixed": mixed, "big": 2**63 - 1}
    return HEAD.format(opset=opset, x=x, y=y or x, lines=lines, **form)


def turned(cos: str = "c", sin: str = "s", x: str = "x", y: str = "y") -> str:
    return f"""aw = Mul({x}, {cos}) hw = Slice({x}, k2, end, k3) lw = Slice({x}, k0, k2, k3) nw = Neg(hw)
      tw = Concat<axis=-1>(nw, lw) bw = Mul({sin}, tw) {y} = Add(aw, bw)"""


SPLIT = "lw, hw = Split<axis=3>(x, cut)"
EVEN = "lw = Slice(x, k0, end, k3, k2) hw = Slice(x, k1, end, k3, k2)"
GATHERED = "pw = Reshape(x, apart) lw = Gather<axis=-1>(pw, z) hw = Gather<axis=-1>(pw, o)"
PRODUCTS = "ac = Mul(lw, {0}) bs = Mul(hw, {1}) bc = Mul({0}, hw) as = Mul(lw, {1}) r = Sub(ac, bs) i = Add(as, bc)"
NEIGHBOURS = "ru = Unsqueeze(r, last) iu = Unsqueeze(i, last) q = Concat<axis=-1>(ru, iu) y = Reshape(q, joined)"
IN_TURN = """aw = Mul(x, pc) lw = Slice(x, k0, end, k3, k2) hw = Slice(x, k1, end, k3, k2) nw = Neg(hw)
  nu = Unsqueeze(nw, k4) lu = Unsqueeze(lw, k4) q = Concat<axis=4>(nu, lu) tw = Reshape(q, joined) bw = Mul(tw, ps)
  y = Add(aw, bw)"""
EXPANDED = ["Shape", "Concat", "Expand", "Expand", NEW]


@pytest.mark.parametrize(
    "lines",
    [
        turned(),
        turned().replace("Slice(x, k0, k2, k3) nw", "Slice(x, k0, k2, last) nw").replace("Neg(hw)", "Mul(minus, hw)"),
        turned().replace("Add(aw, bw)", "Add(bw, aw)").replace("Mul(x, c)", "Mul(c, x)"),
        turned().replace("hw = Slice(x, k2, end, k3) lw = Slice(x, k0, k2, k3)", SPLIT),
        f"{SPLIT} {PRODUCTS.format('hc', 'hs')} y = Concat<axis=-1>(r, i)",
        f"{EVEN} {PRODUCTS.format('hc', 'hs')} {NEIGHBOURS}",
        f"{GATHERED} {PRODUCTS.format('hc', 'hs')} {NEIGHBOURS}",
        IN_TURN,
    ],
)
def test_forms(lines: str) -> None:
    compiled = assert_rewritten(graph(lines), EXPANDED, PASS)
    in_turn = "joined" in lines
    assert [a.name for a in compiled.graph.node[-1].attribute] == (["interleaved"] if in_turn else [])


@pytest.mark.parametrize(
    "lines",
    [
        turned().replace("k0, k2", "k0, k1").replace("k2, end", "k1, end"),
        turned().replace("Neg(", "Abs("),
        turned().replace("Mul(minus, hw)", "Mul(hw, hw)").replace("(nw, lw)", "(lw, nw)"),
        turned().replace("Add(aw, bw)", "Sub(aw, bw)"),
        turned("mixed"),
        turned("c", "ps"),
        turned("pc", "ps"),
        IN_TURN.replace("pc", "c").replace("ps", "s"),
        IN_TURN.replace("Slice(x, k1, end", "Slice(x, k0, end"),
        f"{SPLIT} {PRODUCTS.format('hc', 'hs')} y = Concat<axis=-1>(i, r)",
        f"{SPLIT} {PRODUCTS.format('hc', 'hs')} y = Concat<axis=-1>(r, i)".replace("Sub(ac, bs)", "Sub(bs, ac)"),
        f"{SPLIT} {PRODUCTS.format('hc', 'hs')} y = Concat<axis=-1>(r, i)".replace("Mul(lw, hs)", "Mul(lw, hc)"),
        f"{SPLIT} {PRODUCTS.format('hc', 'hs')} {NEIGHBOURS}",
        f"{SPLIT} r = Sub(lw, hw) i = Add(lw, hw) y = Concat<axis=-1>(r, i)",
        f"{SPLIT} m = Mul(lw, hc) r = Sub(m, hw) i = Add(m, hw) y = Concat<axis=-1>(r, i)",
    ],
)
def test_other_turns_stay(lines: str) -> None:
    compiled = run_passes(graph(lines), PASS)
    assert NEW not in ops(compiled)
    assert_same_numbers(model(graph(lines)), compiled)


def test_what_is_turned_may_be_computed_from_nothing() -> None:
    text = graph(f"r = RandomNormal<shape=[1,2,3,4]>() {turned(x='r')}", y="1,2,3,4")
    assert ops(run_passes(text, PASS, "eliminate-dead-code")) == ["RandomNormal", NEW]


def test_the_operator_must_exist_and_take_the_type() -> None:
    assert_stays(graph(turned(), opset=22), PASS)
    tables = "cu = Cast<to=11>(c) su = Cast<to=11>(s)"
    double = graph(f"{tables} {turned('cu', 'su')}").replace("float[B,2,3,4]", "double[B,2,3,4]")
    assert NEW not in ops(run_passes(double, PASS))


def test_one_batch_needs_no_expand() -> None:
    assert_rewritten(graph(turned(), x="1,2,3,4"), [NEW], PASS)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("e = Concat<axis=-1>(f, f) cw = Cos(e) sw = Sin(e) cu = Unsqueeze(cw, heads) su = Unsqueeze(sw, heads)", 6),
        ("e = Concat<axis=2>(f, f) eu = Unsqueeze(e, heads) cu = Cos(eu) sw = Sin(eu) su = Mul(sw, minus)", 7),
        ("e = Concat<axis=2>(f, f) cw = Cos(e) sw = Sin(e) cu = Unsqueeze(cw, heads) su = Unsqueeze(sw, heads)", 6),
    ],
)
def test_computed_tables_are_computed_once_for_each_pair(lines: str, expected: int) -> None:
    text = graph(f"{lines} {turned('cu', 'su')}")
    compiled = run_passes(text, PASS, "merge-reshapes", "eliminate-common-subexpressions", "eliminate-dead-code")
    assert NEW in ops(compiled) and "Expand" not in ops(compiled) and "Concat" not in ops(compiled)
    assert len(ops(compiled)) <= expected
    assert_same_numbers(model(text), compiled)
    assert_settings(model(text), PASS, "eliminate-dead-code")


def test_rows_of_a_table_by_position() -> None:
    """As models that take position numbers write it."""
    text = graph(f"cg = Gather(c, p) sg = Gather(s, p) cu = Unsqueeze(cg, heads) su = Unsqueeze(sg, heads) "
                 f"{turned('cu', 'su')}").replace("float[B,3,2] f", "int64[B,3] p")  # fmt: skip
    compiled = assert_rewritten(text, ["Gather", "Unsqueeze", "Squeeze", "Gather", "Unsqueeze", "Squeeze", NEW], PASS)
    assert {tuple(t.dims) for t in compiled.graph.initializer} >= {(3, 2)}


PART = "xr = Slice(x, k0, k4, k3) xp = Slice(x, k4, end, k3)"


def test_the_first_numbers_alone() -> None:
    text = graph(f"{PART} {turned(x='xr', y='r')} y = Concat<axis=-1>(r, xp)", x="B,2,3,6")
    compiled = assert_rewritten(text, EXPANDED, PASS)
    assert compiled.graph.node[-1].attribute[0].name == "rotary_embedding_dim"
    three = (
        f"lw = Slice(x, k0, k2, k3) hw = Slice(x, k2, k4, k3) xp = Slice(x, k4, end, k3) {PRODUCTS.format('hc', 'hs')}"
    )
    assert_rewritten(graph(f"{three} y = Concat<axis=-1>(r, i, xp)", x="B,2,3,6"), EXPANDED, PASS)


@pytest.mark.parametrize(
    "rest", ["Slice(x, k2, end, k3)", "Slice(zw, k4, end, k3)", "Neg(xp)"]
)  # fmt: skip
def test_a_rest_that_is_another_is_joined_after_the_turn(rest: str) -> None:
    size = 4 + (4 if "k2" in rest else 2)
    lines = f"{PART} zw = Abs(x) w_ = {rest} {turned(x='xr', y='r')} y = Concat<axis=-1>(r, w_)"
    compiled = run_passes(graph(lines, x="B,2,3,6", y=f"B,2,3,{size}"), PASS, "eliminate-dead-code")
    assert ops(compiled)[-1] == "Concat" and NEW in ops(compiled)
    assert_same_numbers(model(graph(lines, x="B,2,3,6", y=f"B,2,3,{size}")), compiled)


def test_the_last_numbers_alone_are_cut_out() -> None:
    lines = f"n = Slice(x, k0, k2, k3) xr = Slice(x, k2, k6, k3) {turned(x='xr', y='r')} y = Concat<axis=-1>(n, r)"
    compiled = assert_rewritten(graph(lines, x="1,2,3,6"), ["Slice", "Slice", NEW, "Concat"], PASS)
    assert not compiled.graph.node[2].attribute


def heads(lines: str, x: str = "B,3,8", out: str = "B,2,3,4") -> str:
    return graph(lines, x=x, y=out)


def test_heads_are_set_apart_after_the_turn() -> None:
    lines = f"rw = Reshape(x, by) h = Transpose<perm=[0,2,1,3]>(rw) {turned(x='h')}"
    text = heads(lines).replace("int64[4] by = {0, 3, 2, 4}", "int64[4] by = {0, 0, 2, 4}")
    compiled = assert_rewritten(text, [*EXPANDED, "Reshape", "Transpose"], PASS)
    (node,) = [node for node in compiled.graph.node if node.op_type == NEW]
    assert node.input[0] == "x" and node.attribute[0].name == "num_heads" and node.attribute[0].i == 2


@pytest.mark.parametrize("table", ["Unsqueeze(c, heads)", "Reshape(c, t4)"])
def test_positions_before_heads(table: str) -> None:
    lines = f"cu = {table} su = Unsqueeze(s, heads) h = Reshape(x, by) {turned('cu', 'su', x='h')}"
    text = heads(lines, out="B,3,2,4").replace("int64[1] k6", "int64[4] t4 = {1, 3, 1, 4}, int64[1] k6")
    compiled = run_passes(text, PASS, "merge-reshapes", "fold-constants", "eliminate-dead-code")
    if "Reshape" not in table:
        assert ops(compiled) == [*EXPANDED, "Reshape"]
    assert_same_numbers(model(text), compiled)
    alone = graph(lines.replace("h = Reshape(x, by)", "h = Identity(x)"), x="B,3,2,4")
    assert NEW not in ops(run_passes(alone.replace("int64[1] k6", "int64[4] t4 = {1, 3, 1, 4}, int64[1] k6"), PASS))


@pytest.mark.parametrize(
    ("dims", "fits"), [("B,1,3,4", True), ("1,1,3,4", True), ("3,4", True), ("1,3,4", True), ("B,2,3,4", False),
                       ("2,3,4", False), ("1,1,1,4", False), ("C,1,3,4", False)],
)  # fmt: skip
def test_tables_must_be_one_angle_for_each_position(dims: str, fits: bool) -> None:
    text = graph(f"e = Concat<axis=-1>(f, f) {turned('e', 'e')}").replace("float[B,3,2] f", f"float[{dims[:-1]}2] f")
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert (NEW in ops(compiled)) == fits
    assert onnx.checker.check_model(compiled, full_check=True) is None
    if fits:
        assert_same_numbers(model(text), compiled)


def test_any_length() -> None:
    """The first rows of a longer table, as many as x has positions."""
    lines = f"""shape = Shape(x) n = Slice(shape, k2, k3, k0) cu = Slice(c, k0, n, k0) su = Slice(s, k0, n, k0)
      {turned("cu", "su")}"""
    text = graph(lines, x="B,2,L,4")
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert NEW in ops(compiled) and "Neg" not in ops(compiled)
    for length in (1, 2, 3):
        rng = np.random.default_rng(length)
        feeds = {"x": rng.standard_normal((2, 2, length, 4)), "f": rng.standard_normal((2, 3, 2))}
        assert_same_numbers(model(text), compiled, [{k: v.astype(np.float32) for k, v in feeds.items()}])
