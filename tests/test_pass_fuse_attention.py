"""fuse-attention: heads apart, together and shared, masks and Where; what would be hidden otherwise stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pass_settings import assert_rewritten
from support import assert_same_numbers, assert_stays, model, ops, run_passes

PASS, NEW = "fuse-attention", "Attention"
INF = -float("inf")
LOWEST = float(np.finfo(np.float32).min)


def row(values: np.ndarray) -> str:
    return ", ".join(str(x) for x in np.asarray(values).reshape(-1).tolist())


HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
agraph ({inputs}) => (float[{out}] y)
<int64[4] apart = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float half = {{0.5}}, float two = {{2}},
 float below = {{-1}}, int64[1] second = {{2}}, int64[5] five = {{1, 1, 2, 1, 1}}, int64[4] four = {{0, 4, 3, 4}},
 bool[3,3] tril = {{{tril}}}, bool[3,3] some = {{1, 0, 0, 0, 1, 1, 1, 1, 1}},
 bool[3,3] none = {{1, 0, 0, 0, 0, 0, 1, 1, 1}}, bool[3,3] triu = {{{triu}}},
 int64[1] k0 = {{0}}, int64[1] k1 = {{1}}, int64[1] k2 = {{2}}, int64[1] k3 = {{3}},
 float one = {{1}}, float ten = {{-10000}}> {{ {lines} }}"""
APART = """qa = Reshape(q, apart) ka = Reshape(k, apart) va = Reshape(v, apart) qh = Transpose<perm=[0,2,1,3]>(qa)
  kh = Transpose<perm=[0,2,3,1]>(ka) vh = Transpose<perm=[0,2,1,3]>(va)"""
TOGETHER = "ot = Transpose<perm=[0,2,1,3]>(o) y = Reshape(ot, joined)"
THREE = "float[B,S,8] q, float[B,L,8] k, float[B,L,8] v"
FOUR = "float[B,2,S,4] q, float[B,2,L,4] kr, float[B,2,L,4] v"
PLAIN = "m = MatMul(qh, kh) s = Mul(m, half) p = Softmax(s) o = MatMul(p, vh)"
MASKED = "m = MatMul(qh, kh) t = Mul(m, half) s = Add(t, mask) p = Softmax(s) o = MatMul(p, vh)"


def graph(lines: str, inputs: str = THREE, out: str = "B,S,8", opset: int = 23) -> str:
    square = np.ones((3, 3), int)
    return HEAD.format(
        opset=opset, inputs=inputs, out=out, lines=lines, tril=row(np.tril(square)), triu=row(np.triu(square, 1))
    )


def heads(lines: str) -> str:
    return f"{APART} {lines} {TOGETHER}"


def assert_fused(text: str, expected: list[str]) -> onnx.ModelProto:
    """Alone; what `assert_rewritten` does in every setting takes seconds for each graph."""
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled) == expected
    onnx.checker.check_model(compiled, full_check=True)
    assert_same_numbers(model(text), compiled)
    return compiled


def attributes(proto: onnx.ModelProto) -> dict[str, float]:
    (node,) = [node for node in proto.graph.node if node.op_type == NEW]
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "inputs", "out"),
    [
        (f"{APART} {PLAIN} {TOGETHER}", THREE, "B,S,8"),
        (f"m_ = Cast<to=1>(i) mask = Mul(m_, ten) {APART} {MASKED} {TOGETHER}", f"{THREE}, bool[B,1,1,L] i", "B,S,8"),
    ],
)
def test_in_every_setting(lines: str, inputs: str, out: str) -> None:
    assert_rewritten(
        graph(lines, inputs, out), ops(run_passes(graph(lines, inputs, out), PASS, "eliminate-dead-code")), PASS
    )


@pytest.mark.parametrize(
    ("lines", "scale"),
    [
        (PLAIN, 0.5),
        (PLAIN.replace("Mul(m, half)", "Div(m, two)"), 0.5),
        (PLAIN.replace("Mul(m, half)", "Mul(half, m)").replace("Softmax(s)", "Softmax<axis=3>(s)"), 0.5),
        ("m = MatMul(qh, kh) p = Softmax(m) o = MatMul(p, vh)", 1.0),
        ("x = Mul(qh, half) z = Div(kh, two) m = MatMul(x, z) p = Softmax(m) o = MatMul(p, vh)", 0.25),
    ],
)
def test_heads_that_reshapes_set_apart(lines: str, scale: float) -> None:
    compiled = assert_fused(graph(heads(lines)), [NEW, "Reshape"])
    assert attributes(compiled) == {"q_num_heads": 2, "kv_num_heads": 2, "scale": scale}
    assert list(compiled.graph.node[0].input) == ["q", "k", "v"]


ALONE = "kt = Transpose<perm=[0,1,3,2]>(kr) m = MatMul(q, kt) s = Mul(m, half) p = Softmax(s) y = MatMul(p, v)"


def test_operands_of_four_dims() -> None:
    compiled = assert_fused(graph(ALONE, FOUR, "B,2,S,4"), [NEW])
    assert attributes(compiled) == {"scale": 0.5}
    turned = ALONE.replace("perm=[0,1,3,2]", "perm=[0,2,3,1]")
    assert_fused(graph(turned, FOUR.replace("B,2,L,4] kr", "B,L,2,4] kr"), "B,2,S,4"), ["Transpose", NEW])
    values = FOUR.replace("4] v", "5] v")
    assert_fused(graph(ALONE, values, "B,2,S,5"), [NEW])


@pytest.mark.parametrize(
    "lines",
    [
        ALONE.replace("Softmax(s)", "Softmax<axis=2>(s)"),
        ALONE.replace("perm=[0,1,3,2]>(kr)", "perm=[0,1,2,3]>(kr)").replace("kt)", "kt)"),
        ALONE.replace("half", "below"),
        ALONE.replace("MatMul(p, v)", "MatMul(v, p)"),
        ALONE.replace("Mul(m, half)", "Add(m, half)"),
        ALONE.replace("Mul(m, half)", "Sub(m, half)"),
        ALONE.replace("Div(m, two)", "Div(two, m)").replace("Mul(m, half)", "Div(two, m)"),
    ],
)
def test_what_is_no_attention_stays(lines: str) -> None:
    inputs = FOUR.replace("S", "4").replace("L", "4")
    compiled = run_passes(graph(lines, inputs, "B,2,4,4"), PASS)
    assert NEW not in ops(compiled)
    assert_same_numbers(model(graph(lines, inputs, "B,2,4,4")), compiled)


@pytest.mark.parametrize(
    "inputs", [FOUR.replace("B,2,L,4] kr", "1,2,L,4] kr"), FOUR.replace("B,2,L,4] v", "C,2,L,4] v")]
)
def test_other_batches_stay(inputs: str) -> None:
    assert NEW not in ops(run_passes(graph(ALONE, inputs, "B,2,S,4"), PASS))


@pytest.mark.parametrize(
    "inputs",
    [
        "float[1,2,0,4] q, float[1,2,3,4] kr, float[1,2,3,4] v",
        "float[1,2,3,4] q, float[1,2,0,4] kr, float[1,2,0,4] v",
        "float[0,2,3,4] q, float[0,2,3,4] kr, float[0,2,3,4] v",
    ],
)
def test_known_to_be_empty_stays(inputs: str) -> None:
    lines = f"kh = Transpose<perm=[0,1,3,2]>(kr) {PLAIN.replace('qh', 'q').replace('vh', 'v').replace('o =', 'y =')}"
    assert_stays(graph(lines, inputs, "B,2,S,4"), PASS)


def test_the_operator_must_exist_and_take_the_type() -> None:
    assert_stays(graph(ALONE, FOUR, "B,2,S,4", 22))
    double = graph(ALONE.replace("Mul(m, half)", "Identity(m)"), FOUR.replace("float", "double"), "B,2,S,4")
    assert NEW not in ops(run_passes(double.replace("(float[B,2,S,4] y)", "(double[B,2,S,4] y)"), PASS))


REPEATED = """ku = Unsqueeze(kr, second) ke = Expand(ku, five) kk = Reshape(ke, four) vu = Unsqueeze(v, second)
  ve = Expand(vu, five) vv = Reshape(ve, four) """
GROUPED = "float[B,4,3,4] q, float[B,2,3,4] kr, float[B,2,3,4] v"
SHARED = REPEATED + ALONE.replace("(kr)", "(kk)").replace("MatMul(p, v)", "MatMul(p, vv)")


def test_heads_that_share_keys_and_values() -> None:
    compiled = assert_fused(graph(SHARED, GROUPED, "B,4,3,4"), [NEW])
    assert list(compiled.graph.node[0].input) == ["q", "kr", "v"]
    one = GROUPED.replace("2,3,4", "1,3,4")
    assert_fused(graph(ALONE, one, "B,4,3,4"), [NEW])
    assert NEW in ops(
        run_passes(graph(SHARED.replace("(p, vv)", "(p, v)"), one, "B,4,3,4").replace("2, 1, 1}", "4, 1, 1}"), PASS)
    )


def test_heads_that_share_otherwise_stay() -> None:
    """Repeated as a whole, heads are in another order."""
    other = SHARED.replace("Unsqueeze(kr, second)", "Unsqueeze(kr, k1)").replace(
        "Expand(ku, five)", "Expand(ku, other)"
    )
    text = graph(other, GROUPED, "B,4,3,4").replace(
        "<int64[4] apart", "<int64[5] other = {1, 2, 1, 1, 1}, int64[4] apart"
    )
    compiled = run_passes(text, PASS)
    assert list(next(node for node in compiled.graph.node if node.op_type == NEW).input)[1] != "kr"
    assert_same_numbers(model(text), compiled)


BERT = "mi = Cast<to=1>(i) mn = Sub(one, mi) mask = Mul(mn, ten)"


@pytest.mark.parametrize("shape", ["B,1,S,L", "B,2,S,L", "1,1,S,L", "S,L"])
def test_a_mask_of_numbers(shape: str) -> None:
    text = graph(f"{BERT} {heads(MASKED)}", f"{THREE}, int64[{shape}] i")
    assert_fused(text, ["Cast", "Sub", "Mul", NEW, "Reshape"])


@pytest.mark.parametrize("shape", ["B,1,1,L", "1,1,L", "1,L", "L"])
def test_one_row_for_all_queries_is_repeated_for_the_kernel(shape: str) -> None:
    text = graph(f"{BERT} {heads(MASKED)}", f"{THREE}, int64[{shape}] i")
    assert_fused(text, ["Cast", "Sub", "Mul", "Shape", "Concat", "Expand", NEW, "Reshape"])
    known = graph(f"{BERT} {heads(MASKED)}", f"{THREE}, int64[{shape}] i", "B,3,8").replace("B,S,8", "B,3,8")
    assert_fused(known, ["Cast", "Sub", "Mul", "Expand", NEW, "Reshape"])
    square = graph(f"{BERT} {heads(MASKED)}", f"{THREE}, int64[{shape}] i".replace("L", "S"))
    compiled = assert_fused(square, ["Cast", "Sub", "Mul", "Shape", "Concat", "Expand", NEW, "Reshape"])
    (shape_of,) = [node for node in compiled.graph.node if node.op_type == "Shape"]
    assert shape_of.input[0] == "mask"


@pytest.mark.parametrize(
    "mask", ["float[B,1,S,L] mask", "float[S,L] mask", "float[B,2,S,1] mask", "float mask", "float[2,1,S,L] mask"]
)
def test_a_mask_that_may_hide_a_whole_row_stays(mask: str) -> None:
    text = graph(heads(MASKED), f"{THREE}, {mask}")
    assert NEW not in ops(run_passes(text, PASS))
    taken = "S,L]" in mask and "[2" not in mask
    compiled = run_passes(text, f"{PASS}{{any_mask=true}}")
    assert (NEW in ops(compiled)) == taken
    if "[2" not in mask:
        assert_same_numbers(model(text), compiled)


@pytest.mark.parametrize(
    ("number", "fits"), [(-1e4, True), (-1e9, True), (-1e36, True), (-1e38, False), (LOWEST, False), (INF, False)]
)
def test_how_low_a_mask_may_be(number: float, fits: bool) -> None:
    lines = f"mask = Where(i, zero, low) {heads(MASKED)}"
    text = graph(lines, f"{THREE}, bool[B,1,S,L] i")
    text = text.replace("float one", f"float zero = {{0}}, float low = {{{number}}}, float one")
    assert (NEW in ops(run_passes(text, PASS))) == fits
    assert_same_numbers(model(text), run_passes(text, PASS))


SQUARE = "float[B,3,8] q, float[B,3,8] k, float[B,3,8] v"


def constant_mask(values: np.ndarray) -> str:
    text = graph(heads(MASKED), SQUARE, "B,3,8")
    dims = ",".join(str(n) for n in values.shape)
    return text.replace("float one", f"float[{dims}] mask = {{{row(values)}}}, float one")


@pytest.mark.parametrize("number", [INF, LOWEST, -1e38])
@pytest.mark.parametrize("shape", [(3, 3), (1, 1, 3, 3)])
def test_a_constant_that_hides_the_future(number: float, shape: tuple[int, ...]) -> None:
    mask = np.where(np.tril(np.ones((3, 3), bool)), 0.0, number).reshape(shape)
    compiled = assert_fused(constant_mask(mask), [NEW, "Reshape"])
    assert attributes(compiled)["is_causal"] == 1 and len(compiled.graph.node[0].input) == 3


def test_other_constants_are_masks() -> None:
    window = np.where(np.tri(3, k=1) - np.tri(3, k=-2) > 0, 0.0, LOWEST)
    for mask in (window, np.where(np.tri(3), 0.0, -1e4), np.arange(9.0).reshape(3, 3), np.where(np.tri(3), 1.0, INF)):
        compiled = assert_fused(constant_mask(mask), [NEW, "Reshape"])
        assert "is_causal" not in attributes(compiled) and len(compiled.graph.node[0].input) == 4


def test_a_constant_row_that_is_hidden_stays() -> None:
    for number in (INF, LOWEST):
        mask = np.zeros((3, 3))
        mask[1] = number
        assert NEW not in ops(run_passes(constant_mask(mask), PASS))


HIDDEN = "m = MatMul(qh, kh) t = Mul(m, half) s = Where({0}) p = Softmax(s) o = MatMul(p, vh)"


def where(condition: str, number: float = INF, inputs: str = SQUARE, before: str = "") -> str:
    text = graph(f"{before} {heads(HIDDEN.format(condition))}", inputs, "B,3,8" if inputs == SQUARE else "B,S,8")
    return text.replace("float one", f"float low = {{{number}}}, float one")


@pytest.mark.parametrize(
    ("condition", "causal"),
    [("tril, t, low", True), ("triu, low, t", True), ("some, t, low", False)],
)
def test_where_by_a_constant(condition: str, causal: bool) -> None:
    for number in (INF, LOWEST):
        compiled = assert_fused(where(condition, number), [NEW, "Reshape"])
        assert (attributes(compiled).get("is_causal") == 1) == causal
        assert len(compiled.graph.node[0].input) == (3 if causal else 4)


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        ("none, t, low", INF),
        ("triu, t, low", INF),
        ("tril, t, low", -1e9),
        ("tril, t, half", INF),
        ("tril, low, t", INF),
    ],
)
def test_where_that_leaves_other_scores_stays(condition: str, number: float) -> None:
    text = where(condition, number)
    compiled = run_passes(text, PASS)
    assert NEW not in ops(compiled)
    assert_same_numbers(model(text), compiled)


def test_where_and_a_mask() -> None:
    lines = f"{BERT} {APART} m = MatMul(qh, kh) t = Mul(m, half) {{}} p = Softmax(s) o = MatMul(p, vh) {TOGETHER}"
    for steps in ("w = Where(tril, t, low) s = Add(mask, w)", "w = Add(t, mask) s = Where(tril, w, low)"):
        text = graph(lines.format(steps), f"{SQUARE}, int64[B,1,1,3] i", "B,3,8")
        text = text.replace("float one", f"float low = {{{LOWEST}}}, float one")
        compiled = assert_fused(text, ["Cast", "Sub", "Mul", "Expand", NEW, "Reshape"])
        assert attributes(compiled)["is_causal"] == 1
        some = text.replace("Where(tril", "Where(some")
        assert NEW not in ops(run_passes(some, PASS))


@pytest.mark.parametrize("names", ["k0, n, k0", "k0, n, k1"])
def test_any_length_of_what_hides_the_future(names: str) -> None:
    """The first rows and columns of a constant, as many as there are positions."""
    first = "shape = Shape(q) n = Slice(shape, k1, k2, k0) r = Slice(tril, k0, n, k0) cut = Slice(r, k0, n, k1)"
    text = where("cut, t, low", LOWEST, THREE.replace("L", "S"), first)
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled) == [NEW, "Reshape"] and attributes(compiled)["is_causal"] == 1
    for length in (2, 3):
        rng = np.random.default_rng(length)
        feeds = {name: rng.standard_normal((2, length, 8)).astype(np.float32) for name in "qkv"}
        assert_same_numbers(model(text), compiled, [feeds])
    rows = where("r, t, low", LOWEST, THREE.replace("L", "S"), first)
    assert NEW not in ops(run_passes(rows, PASS))


@pytest.mark.parametrize(
    ("mask", "fits"), [("Trilu(low, diag)", True), ("Trilu<upper=0>(low, diag)", False), ("Trilu(low)", False)]
)
def test_a_triangle_of_any_length(mask: str, fits: bool) -> None:
    """As models that take any length write what hides the future."""
    fill = f"low = ConstantOfShape <value = float[1] {{{LOWEST}}}> (ns)"
    lines = f"shape = Shape(q) n = Slice(shape, k1, k2) ns = Concat<axis=0>(n, n) {fill} mask = {mask}"
    text = graph(f"{lines} {heads(MASKED)}", THREE.replace("L", "S")).replace(
        "float one", "int64 diag = {1}, float one"
    )
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled) == [NEW, "Reshape"] if fits else NEW not in ops(compiled)
    assert_same_numbers(model(text), compiled)


WRITTEN = f"""qa = Reshape(q, apart) ka = Reshape(k, apart) va = Reshape(v, apart) qh = Transpose<perm=[0,2,1,3]>(qa)
  kh = Transpose<perm=[0,2,1,3]>(ka) vh = Transpose<perm=[0,2,1,3]>(va) {{}} {TOGETHER}"""


@pytest.mark.parametrize(
    "line", ["o = Attention(qh, kh, vh)", "o = Attention<scale=0.3, is_causal=1, softcap=2.0>(qh, kh, vh, m)"]
)
def test_attention_that_the_file_has_takes_in_its_heads(line: str) -> None:
    text = graph(WRITTEN.format(line), f"{THREE}, float[B,1,S,L] m")
    compiled = assert_fused(text, [NEW, "Reshape"])
    found = attributes(compiled)
    assert found["q_num_heads"] == found["kv_num_heads"] == 2 and ("softcap" in found) == ("softcap" in line)
    again = run_passes(compiled, PASS)
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "lines",
    [
        WRITTEN.format("o = Attention(qh, kh, vh)").replace("perm=[0,2,1,3]>(va)", "perm=[0,2,3,1]>(va)"),
        WRITTEN.format("qn = Neg(qh) o = Attention(qn, kh, vh)"),
        WRITTEN.format("o, pk, pv = Attention(qh, kh, vh, , past, past)"),
        WRITTEN.format("o, , , s = Attention(qh, kh, vh) n = Neg(s)").replace("y = Resh", "z = Neg(n) y = Resh"),
    ],
)
def test_attention_with_more_around_it_stays(lines: str) -> None:
    square = THREE.replace("S", "4").replace("L", "4")
    text = graph(lines, f"{square}, float[B,2,1,4] past", "B,4,8")
    assert "q_num_heads" not in attributes(run_passes(text, PASS))


def test_a_transpose_of_another_domain_stays() -> None:
    text = graph(heads(PLAIN).replace("ot = Transpose", "ot = my.Transpose")).replace('"" : 23', '"" : 23, "my" : 1')
    compiled = run_passes(text, PASS, "eliminate-dead-code")
    assert ops(compiled)[-2:] == ["Transpose", "Reshape"] and compiled.graph.node[-2].domain == "my"
    assert compiled.graph.node[-1].input[0] == compiled.graph.node[-2].output[0]
