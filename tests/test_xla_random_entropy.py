"""Random numbers: with a seed the same in every call, without one new; other ones in every iteration either way.

They come from an argument of the program and not from a callback."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from pfvm.runtime.api import load
from pfvm.runtime.xla import cache as cache_module

pytestmark = pytest.mark.usefixtures("quick_compilation")

DRAW = "RandomUniform<shape = [2], dtype = 11>()"  # 2^52 values: none comes twice by chance
PROGRAMS = {
    "twice": f"g () => (double[4] y) {{ a = {DRAW} b = {DRAW} y = Concat<axis = 0>(a, b) }}",
    "function": "g () => (double[4] y) { a = local.draw() b = local.draw() y = Concat<axis = 0>(a, b) }"
    f'<domain: "local", opset_import: ["" : 20]> draw () => (z) {{ z = {DRAW} }}',
    "counted loop": f"""g () => (double[N, 2] y) <int64 m = {{100}}, bool go = {{1}}> {{
      y = Loop(m, go) <body = b (int64 i, bool c) => (bool d, double[2] z) {{ d = Identity(c) z = {DRAW} }}> }}""",
    "nested loops": f"""g () => (double[N, M, 2] y) <int64 m = {{70}}, bool go = {{1}}> {{
      y = Loop(m, go) <body = b (int64 i, bool c) => (bool d, double[M, 2] z) {{ d = Identity(c)
        z = Loop(m, go) <body = e (int64 j, bool f) => (bool h, double[2] k) {{
          h = Identity(f) k = {DRAW} }}> }}> }}""",
    "scan": f"""g (float[65] x) => (double[65, 2] y) {{
      y = Scan<num_scan_inputs = 1, body = b (float p) => (double[2] q) {{ q = {DRAW} }}>(x) }}""",
    "branch": f"""g (bool f) => (double[2] y) {{
      y = If(f) <then_branch = t () => (double[2] a) {{ a = {DRAW} }}, else_branch = e () => (double[2] b) {{
        b = RandomNormal<shape = [2], dtype = 11>() }}> }}""",
}
FEEDS = {"scan": {"x": np.zeros(65, np.float32)}, "branch": {"f": np.array(True)}}


def executable(name: str, text: str | None = None, opset: int = 20, **options):
    source = f'<ir_version: 9, opset_import: ["" : {opset}, "local" : 1]>\n' + (text or PROGRAMS[name])
    return load(onnx.parser.parse_model(source), "xla:cpu", allow_host=False, **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_number_comes_twice(name: str):
    exe = executable(name)
    drawn = [exe(FEEDS.get(name, {}))["y"] for _ in range(2)]
    assert len(np.unique(drawn)) == np.size(drawn)
    assert np.min(drawn) >= 0 and np.max(drawn) < 1
    assert exe.compilations == 1
    assert "callback" not in exe.hlo()[0]


def test_a_batch_of_sequences_draws_for_each():
    text = f"""g (float[3, 5] x) => (double[3, 5, 2] y) {{
      y = Scan<num_scan_inputs = 1, body = b (float p) => (double[2] q) {{ q = {DRAW} }}>(, x) }}"""
    drawn = executable("", text, opset=8)({"x": np.zeros((3, 5), np.float32)})["y"]
    assert len(np.unique(drawn)) == drawn.size


def test_a_loop_of_unknown_length_draws_in_every_iteration():
    text = f"""g (int64 m) => (double[2] y) <bool go = {{1}}, double[2] zero = {{0, 0}}> {{
      y = Loop(m, go, zero) <body = b (int64 i, bool c, double[2] s) => (bool d, double[2] z) {{
        d = Identity(c) r = {DRAW} z = Add(s, r) }}> }}"""
    exe = executable("", text)
    one, many = (exe({"m": np.array(m)})["y"] for m in (1, 400))
    assert exe.compilations == 1
    assert np.abs(many / 400 - 0.5).max() < 0.1 and (one != many / 400).all()


def test_a_seeded_node_beside_repeats():
    text = """g () => (double[2] a, double[2] b) {
      a = RandomNormal<shape = [2], seed = 3.0, dtype = 11>() b = RandomNormal<shape = [2], dtype = 11>() }"""
    first, second = executable("", text), executable("", text)
    calls = [first({}), first({}), second({})]
    assert len(np.unique([c["a"] for c in calls])) == 2
    assert len(np.unique([c["b"] for c in calls])) == 6


@pytest.mark.parametrize("name", ["counted loop", "nested loops", "scan"])
def test_a_seed_is_that_of_a_generator_which_iterations_do_not_start_anew(name: str):
    text = PROGRAMS[name].replace("<shape = [2]", "<seed = 3.0, shape = [2]")
    first, second = (executable(name, text)(FEEDS.get(name, {}))["y"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == first.size


@pytest.mark.parametrize("seed", ["", "seed = 1.0, "])
def test_shapes_that_follow_from_random_numbers(seed: str):
    draw = f"RandomUniform<{seed}low = 2.0, high = 6.0, shape = [2]>"
    text = f"g () => (float[a, b] y) {{ r = {draw}() s = Cast<to = 7>(r) y = ConstantOfShape(s) }}"
    in_loop = f"""g () => (float y) <int64 m = {{3}}, bool go = {{1}}, float zero = {{0}}> {{
      y = Loop(m, go, zero) <body = b (int64 i, bool c, float t) => (bool d, float u) {{ d = Identity(c)
        r = {draw}() s = Cast<to = 7>(r) z = ConstantOfShape<value = float[1] {{1}}>(s)
        n = ReduceSum<keepdims = 0>(z) u = Add(t, n) }}> }}"""
    source = '<ir_version: 9, opset_import: ["" : 20]>\n'
    y = load(onnx.parser.parse_model(source + text), "xla:cpu")({})["y"]
    assert all(2 <= n < 6 for n in y.shape)
    total = load(onnx.parser.parse_model(source + in_loop), "xla:cpu")({})["y"]
    assert 3 * 4 <= total <= 3 * 25 and total == round(float(total))


def test_programs_that_draw_are_kept_on_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_MIN_SECONDS", 0.0)
    runs = [executable("twice") for _ in range(2)]
    drawn = [exe({})["y"] for exe in runs for _ in range(2)]
    assert [exe.reloads for exe in runs] == [0, 1]
    assert len(np.unique(drawn)) == np.size(drawn)
