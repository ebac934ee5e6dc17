"""An index that is out of range, and that the graph computes or a body or function reads, is an error of the call.

It names the node and the bodies around it. What does not run, a branch or an iteration, is no error.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("jax")

from pfvm.errors import InputError
from pfvm.runtime.api import load

pytestmark = pytest.mark.usefixtures("quick_compilation")

TABLE = "<float[4, 2] w = {0, 1, 2, 3, 4, 5, 6, 7}, int64 one = {1}, int64 five = {5}, bool yes = {1}>"


def exe(text: str, opset: int = 17, **options):
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]>\n'
    return load(onnx.parser.parse_model(header + text), "xla:cpu", allow_host=False, **options)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


GRAPHS = {
    "computed": f"g (int64[N] i) => (y) {TABLE} {{ j = Add(i, one) y = Gather(w, j) }}",
    "elements": f"g (int64[N] i) => (y) {TABLE} {{ j = Add(i, one) k = Unsqueeze(j, a) y = GatherElements(w, k) }}",
    "columns": f"g (int64[N] i) => (y) {TABLE} {{ j = Add(i, one) k = Unsqueeze(j, a) y = GatherND(w, k) }}",
    "written": f"g (int64[N] i) => (y) {TABLE} {{ j = Add(i, one) k = Unsqueeze(j, a) u = Gather(w, zeros)"
    " y = ScatterND(w, k, u) }",
    "element written": f"g (int64[N] i) => (y) {TABLE} {{ j = Add(i, one) k = Unsqueeze(j, a)"
    " u = CastLike(k, w) y = ScatterElements(w, k, u) }",
    "function": f"g (int64[N] i) => (y) {TABLE} {{ y = local.take(w, i) }}"
    '<domain: "local", opset_import: ["" : 17]> take (x, i) => (z) { b = Constant<value_int = 1>() j = Add(i, b)'
    " z = Gather(x, j) }",
    "counted loop": f"""g (int64[N] i) => (y) {TABLE} {{
      y = Loop(five, yes) <body = b (int64 t, bool c) => (bool d, float[N, 2] z) {{ d = Identity(c)
        j = Add(i, one) z = Gather(w, j) }}> }}""",
    "open loop": f"""g (int64[N] i, int64 m) => (y) {TABLE} {{ s = ConstantOfShape(zero)
      y = Loop(m, yes, s) <body = b (int64 t, bool c, float a) => (bool d, float e) {{ d = Identity(c)
        j = Add(i, one) z = Gather(w, j) r = ReduceSum<keepdims = 0>(z) e = Add(a, r) }}> }}""",
    "scan": f"""g (int64[N] i) => (y) {TABLE} {{
      y = Scan<num_scan_inputs = 1, body = b (int64 p) => (float[2] q) {{ j = Add(p, one) q = Gather(w, j) }}>(i) }}""",
    "nested": f"""g (int64[N] i, bool f) => (y) {TABLE} {{
      y = If(f) <then_branch = t () => (float[N, 2] h) {{
        h = Scan<num_scan_inputs = 1, body = b (int64 p) => (float[2] q) {{ j = Add(p, one) q = Gather(w, j) }}>(i) }},
      else_branch = e () => (float[N, 2] l) {{ l = Gather(w, zeros) }}> }}""",
}
NODE = {
    "elements": "GatherElements (→ 'y')",
    "columns": "GatherND (→ 'y')",
    "written": "ScatterND (→ 'y')",
    "element written": "ScatterElements (→ 'y')",
    "function": "Gather (→ 'z')",
    "counted loop": "Gather (→ 'z') in a body of Loop (→ 'y')",
    "open loop": "Gather (→ 'z') in a body of Loop (→ 'y')",
    "scan": "Gather (→ 'q') in a body of Scan (→ 'y')",
    "nested": "Gather (→ 'q') in a body of Scan (→ 'h') in a body of If (→ 'y')",
}
LISTS = "int64[1] a = {1}, int64[0] zero = {}, int64[3] zeros = {0, 0, 0}, int64 one"


@pytest.mark.parametrize("name", GRAPHS)
def test_an_index_out_of_range_names_the_node(name: str):
    loaded = exe(GRAPHS[name].replace("int64 one", LISTS, 1))
    others = {"open loop": {"m": np.array(2)}, "nested": {"f": np.array(True)}}.get(name, {})
    right = loaded({"i": i64(2, -5, 0), **others})["y"]
    assert np.isfinite(right).all()
    for wrong in (3, -6, 1 << 40):
        with pytest.raises(InputError) as caught:
            loaded({"i": i64(0, wrong, 1), **others})
        said = str(caught.value)
        assert said.startswith(NODE.get(name, "Gather (→ 'y')") + f": the index {wrong + 1} is out of range for axis 0")
        assert said.endswith("of size 4: expected -4 to 3")
    assert loaded.compilations == 1
    np.testing.assert_array_equal(loaded({"i": i64(2, -5, 0), **others})["y"], right)


def test_what_does_not_run_is_no_error():
    loaded = exe(GRAPHS["nested"].replace("int64 one", LISTS, 1))
    loaded({"i": i64(9, 9, 9), "f": np.array(False)})
    loaded = exe(GRAPHS["open loop"].replace("int64 one", LISTS, 1))
    assert loaded({"i": i64(9), "m": np.array(0)})["y"] == 0


def test_a_constant_that_does_not_fit_where_it_never_runs():
    loaded = exe(f"""g (bool f, float[2] x) => (y) {TABLE} {{ y = If(f) <
      then_branch = t () => (float[2] p) {{ p = Add(x, x) }}, else_branch = e () => (float[2] q) {{
      a = Add(x, x) b = Gather(a, five) q = Sub(x, b) }}> }}""")
    x = np.ones(2, np.float32)
    assert loaded({"f": np.array(True), "x": x})["y"].tolist() == [2, 2]
    with pytest.raises(InputError, match=r"Gather .*in a body of If .*the index 5 is out of range for axis 0 of 'a'"):
        loaded({"f": np.array(False), "x": x})


def test_each_iteration_is_judged_by_its_own_index():
    loaded = exe(f"""g (int64 first, int64 m) => (y) {TABLE} {{ s = Cast<to = 1>(first)
      y = Loop(m, yes, s) <body = b (int64 t, bool c, float a) => (bool d, float e) {{ d = Identity(c)
        j = Add(t, first) z = Gather(w, j) r = ReduceSum<keepdims = 0>(z) e = Add(a, r) }}> }}""")
    assert loaded({"first": np.array(1), "m": np.array(3)})["y"] == 1 + 5 + 9 + 13
    with pytest.raises(InputError, match="the index 4 is out of range"):
        loaded({"first": np.array(1), "m": np.array(40)})


def test_sequences_of_a_batch_end_where_their_lengths_say():
    loaded = exe(
        f"""g (int64[2] n, int64[2, 3] p) => (y) {TABLE} {{
        y = Scan<num_scan_inputs = 1, body = b (int64 i) => (float[2] q) {{ q = Gather(w, i) }}>(n, p) }}""",
        opset=8,
    )
    p = np.array([[0, 1, 9], [3, 2, 1]])
    assert loaded({"n": i64(2, 3), "p": p})["y"][..., 0].tolist() == [[0, 2, 0], [6, 4, 2]]
    with pytest.raises(InputError, match="the index 9 is out of range"):
        loaded({"n": i64(3, 3), "p": p})


def test_a_table_that_is_computed():
    loaded = exe("g (float[N, 2] x, int64[M] i) => (y) { v = MatMul(x, x) y = Gather(v, i) }")
    x = np.ones((2, 2), np.float32)
    assert loaded({"x": x, "i": i64(1, -2)})["y"].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(InputError, match=r"Gather .*: the index -3 is out of range for axis 0 of 'v' of size 2"):
        loaded({"x": x, "i": i64(1, -3)})


def test_repeated_rows_of_a_bucket_are_as_right_as_the_last():
    text = f"g (int64[N] i) => (float[N, 2] y) {TABLE} {{ j = Add(i, one) y = Gather(w, j) }}"
    loaded = exe(text, bucket={"N": [4]})
    assert loaded({"i": i64(2, 0)})["y"].tolist() == [[6, 7], [2, 3]]
    with pytest.raises(InputError, match="the index 4 is out of range"):
        loaded({"i": i64(0, 3)})


def test_a_program_without_doubtful_indices_returns_nothing_more():
    loaded = exe(f"g (int64[N] i) => (float[N, 2] y) {TABLE} {{ y = Gather(w, i) }}")
    loaded({"i": i64(0)})
    assert loaded.hlo()[0].split("ENTRY")[1].count("ROOT") == 1
    assert "s64[2]" not in loaded.hlo()[0]
