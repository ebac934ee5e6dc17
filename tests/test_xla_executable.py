"""The XLA executable: shapes known at compile time, specialisation, dynamic shapes, 64-bit types, errors, threads."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

jax = pytest.importorskip("jax")

from pfvm.errors import (  # noqa: E402
    InputError,
    NoDeviceError,
    OptionError,
    PfvmError,
    UnsupportedOpError,
)
from pfvm.runtime.executable import Executable  # noqa: E402
from pfvm.runtime.xla import XlaExecutable, supported_ops  # noqa: E402

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.unknown" : 1]>\n'


def model(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(HEADER + text))


def load(text: str, **options) -> XlaExecutable:
    return XlaExecutable(model(text), **options)


DYNAMIC_RESHAPE = """
g (float[N, 3, 4] x) => (float[N, M] y)
<int64[1] minus_one = {-1}, int64[1] zero = {0}, int64[1] one = {1}> {
  dims = Shape(x)
  batch = Slice(dims, zero, one)
  target = Concat<axis = 0>(batch, minus_one)
  y = Reshape(x, target)
}
"""


def test_implements_the_protocol():
    exe = load(DYNAMIC_RESHAPE)
    assert isinstance(exe, Executable)
    assert [str(s) for s in (*exe.inputs, *exe.outputs)] == ["float[N,3,4]", "float[N,M]"]


def test_shape_arithmetic_is_known_while_tracing():
    exe = load(DYNAMIC_RESHAPE)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(exe({"x": x})["y"], x.reshape(2, 12))


def test_each_shape_is_compiled_once():
    exe = load(DYNAMIC_RESHAPE)
    for n in (2, 5, 2, 5, 1):
        assert exe({"x": np.ones((n, 3, 4), np.float32)})["y"].shape == (n, 12)
    assert exe.compilations == 3


def test_integer_input_that_fixes_a_shape_is_specialised():
    exe = load("g (float[A] x, int64[R] shape) => (float[B, C] y) { twice = Add(shape, shape) y = Expand(x, twice) }")
    x = np.ones(1, np.float32)
    assert exe({"x": x, "shape": np.array([1, 2])})["y"].shape == (2, 4)
    assert exe({"x": x, "shape": np.array([3, 1])})["y"].shape == (6, 2)
    assert exe({"x": 2 * x, "shape": np.array([3, 1])})["y"][0, 0] == 2
    assert exe.compilations == 2


def test_specialisation_passes_through_local_functions():
    text = """
    g (float[A] x, int64[1] n) => (float[B] y) { size = local.double(n) y = Expand(x, size) }
    <domain: "local", opset_import: ["" : 17]> double (a) => (b) { b = Add(a, a) }
    """
    assert load(text)({"x": np.ones(1, np.float32), "n": np.array([4])})["y"].shape == (8,)


def test_too_many_specialised_values_is_an_error_that_says_so():
    exe = load("g (float[A] x, int64[R] shape) => (float[B] y) { y = Expand(x, shape) }", max_compilations=2)
    x = np.ones(1, np.float32)
    for n in (1, 2):
        exe({"x": x, "shape": np.array([n])})
    with pytest.raises(PfvmError, match=r"2 different input shapes or values .*'shape'.*max_compilations"):
        exe({"x": x, "shape": np.array([3])})
    assert exe({"x": x, "shape": np.array([2])})["y"].shape == (2,)


def test_shape_that_depends_on_float_data_names_the_node_and_the_input():
    exe = load("g (float[N] x) => (int64[1, M] y) { b = Cast<to = 9>(x) y = NonZero(b) }", allow_host=False)
    with pytest.raises(UnsupportedOpError, match=r"NonZero .*'b'.*data of 'x' \(float32\[100\]\)"):
        exe({"x": np.ones(100, np.float32)})


def test_large_shape_data_is_traced_unless_a_rule_needs_it():
    """Range and Gather run at run time above the limit, yet a Reshape by a computed product still works."""
    text = """
    g (float[N] x) => (float[K] y, int64[N] r)
    <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[1] row = {1}, int64 ten = {10000}> {
      r = Range(zero, ten, one)
      n = Gather(r, last)
      m = Sub(n, n)
      k = Add(m, row)
      s = Concat<axis = 0>(last)
      z = Reshape(x, s)
      y = Tile(z, k)
    }
    """
    out = load(text)({"x": np.ones(4, np.float32)})
    assert out["y"].shape == (4,)
    np.testing.assert_array_equal(out["r"], np.arange(10000))


def test_if_with_a_known_condition_takes_one_branch():
    text = """
    g (float[N] x, bool flag) => (float[N] y) {
      y = If(flag) <
        then_branch = t () => (float[N] a) { a = Add(x, x) },
        else_branch = e () => (float[N] b) { b = Mul(x, x) }
      >
    }
    """
    exe = load(text)
    x = np.array([3.0, 5.0], np.float32)
    np.testing.assert_array_equal(exe({"x": x, "flag": np.array(True)})["y"], [6, 10])
    np.testing.assert_array_equal(exe({"x": x, "flag": np.array(False)})["y"], [9, 25])


def test_attribute_references_and_defaults_of_local_functions():
    text = """
    g (float[2, 3] x) => (float[A] y, float[B] z) { y = local.total <axis = 0>(x) z = local.total(x) }
    <domain: "local", opset_import: ["" : 17]>
    total <axis: int = 1>(a) => (b) { axes = Constant<value_int: int = @axis>() one = Constant<value = int64[1] {-1}>()
      list = Reshape(axes, one) b = ReduceSum<keepdims = 0>(a, list) }
    """
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = load(text)({"x": x})
    np.testing.assert_array_equal(out["y"], x.sum(0))
    np.testing.assert_array_equal(out["z"], x.sum(1))


def test_initializers_before_ir_version_4_are_constants():
    proto = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 8]>
        g (float[N] x, int64[2] s) => (float[A, B] y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }"""
    )
    exe = XlaExecutable(ir.serde.deserialize_model(proto))
    assert [s.name for s in exe.inputs] == ["x"] and exe.optional_inputs == ()
    assert exe({"x": np.ones(6, np.float32)})["y"].shape == (3, 2)


STATE = """
g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {10, 20}> { y = Add(x, w) }
"""


def test_state_is_a_default_that_a_call_may_override():
    exe = load(STATE)
    assert [s.name for s in exe.inputs] == ["x"] and [s.name for s in exe.optional_inputs] == ["w"]
    x = np.zeros(2, np.float32)
    np.testing.assert_array_equal(exe({"x": x})["y"], [10, 20])
    np.testing.assert_array_equal(exe({"x": x, "w": np.ones(2, np.float32)})["y"], [1, 1])
    np.testing.assert_array_equal(exe({"x": x})["y"], [10, 20])
    assert exe.compilations == 1


def test_weights_are_arguments_not_constants():
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(HEADER + "g (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.random((64, 64), np.float32), "w"))
    exe = XlaExecutable(ir.serde.deserialize_model(proto))
    exe({"x": np.ones((2, 64), np.float32)})
    (text,) = exe.hlo()
    assert "f32[64,64]" in text and not any("constant" in line for line in text.splitlines() if "f32[64,64]" in line)


def test_outputs_are_fresh_and_writable():
    exe = load("g (float[N] x) => (float[N] y, float[N] z) { y = Identity(x) z = Identity(x) }")
    x = np.zeros(16, np.float32)
    out = exe({"x": x})
    out["y"][:] = 1
    assert not x.any() and not out["z"].any()


def test_a_small_integer_initializer_may_be_an_output():
    out = load("g (float[N] x) => (int64[2] k, float[N] y) <int64[2] k = {3, 4}> { y = Neg(x) }")(
        {"x": np.ones(1, "f")}
    )
    np.testing.assert_array_equal(out["k"], [3, 4])


def test_64_bit_types_are_kept_and_the_process_setting_is_not_touched():
    before = jax.config.jax_enable_x64
    exe = load("g (int64[N] i, double[N] d) => (int64[N] a, double[N] b) { a = Mul(i, i) b = Exp(d) }")
    out = exe({"i": np.array([2**31]), "d": np.array([1e-9])})
    assert out["a"][0] == 2**62 and out["b"].dtype == np.float64 and out["b"][0] != 1.0
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.arange(2).dtype == (np.int64 if before else np.int32)


@pytest.mark.parametrize(
    "setting",
    [
        jax.disable_jit(),
        jax.debug_nans(True),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
    ],
    ids=["disable_jit", "debug_nans", "rank_promotion", "dtype_promotion", "transfer_guard"],
)
def test_what_the_user_has_set_in_jax_changes_nothing(setting):
    with setting:
        out = load("g (float[2, 3] x, float[3] b) => (float[2, 3] y) { a = Log(x) y = Add(a, b) }")(
            {"x": np.array([[1, -1, 1]] * 2, np.float32), "b": np.ones(3, np.float32)}
        )
    np.testing.assert_array_equal(out["y"], [[1, np.nan, 1]] * 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "g (float[5] x) => (float[K] y, int64[K] i) <int64[1] k = {9}> { y, i = TopK(x, k) }",
            "k is 9, expected 0 to 5",
        ),
        ("g (float[5] x) => (float[A] y, float[B] z) <int64[2] s = {2, 2}> { y, z = Split(x, s) }", r"\[2, 2\] do not"),
        (
            "g (float[5] x) => (float[A, 5] y) <int64[2] s = {1099511627776, 5}> { y = Expand(x, s) }",
            "could not be run",
        ),
    ],
    ids=["k", "parts", "memory"],
)
def test_what_cannot_be_computed_is_an_error_not_a_guess(text, message):
    with pytest.raises(PfvmError, match=message):
        load(text)({"x": np.ones(5, np.float32)})


def test_a_call_while_a_function_of_the_user_is_traced():
    exe = load("g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(x, w) }")
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(jax.jit(lambda a: a + exe({"x": x})["y"])(x), [4, 5])
    np.testing.assert_array_equal(exe({"x": x})["y"], [3, 4])


@pytest.mark.parametrize("count", [0, 1.5, "8", True])
def test_a_limit_of_compilations_is_a_whole_number(count):
    with pytest.raises(OptionError, match=r"max_compilations=.*expected a whole number of 1 or more"):
        load("g (float[2] x) => (float[2] y) { y = Neg(x) }", max_compilations=count)


def test_numbers_of_four_bits_as_weights_and_between_segments():
    header = HEADER.replace('"" : 17', '"" : 21').replace("ir_version: 8", "ir_version: 10")
    text = """g (float[6] x) => (float[2, 3] y, float[A, B] z) <int4[2, 3] w = {225, 195, 133}> {
        y = Cast<to = 1>(w)  q = Cast<to = 22>(x)
        n = NonZero(x)  k = Shape(n)  r = Reshape(q, k)  z = Cast<to = 1>(r) }"""  # two to a byte
    x = np.array([1, 2, -3, 4, 5, -8], np.float32)
    out = XlaExecutable(ir.serde.deserialize_model(onnx.parser.parse_model(header + text)))({"x": x})
    np.testing.assert_array_equal(out["y"], [[1, -2, 3], [-4, 5, -8]])
    np.testing.assert_array_equal(out["z"], x[None])


def test_jax_arrays_are_accepted():
    x = jax.numpy.arange(3, dtype="float32")
    np.testing.assert_array_equal(load("g (float[N] x) => (float[N] y) { y = Neg(x) }")({"x": x})["y"], [0, -1, -2])


def test_feeds_are_checked():
    exe = load("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="'x'"):
        exe({})
    with pytest.raises(InputError, match="float"):
        exe({"x": np.zeros(2)})


def test_every_unsupported_operator_is_listed_at_load_time():
    text = """
    g (float[N] x) => (float[N] y) { a = com.unknown.Foo(x) b = com.unknown.Foo(a) c = local.f(b) y = Neg(c) }
    <domain: "local", opset_import: ["" : 17, "com.unknown" : 1]> f (p) => (q) { q = com.unknown.Bar(p) }
    """
    broken = model(text)
    broken.graph[0].name = "first_foo"
    broken.graph[0].metadata_props["pfvm.source"] = "net.py:12"
    with pytest.raises(UnsupportedOpError) as error:
        XlaExecutable(broken)
    message = str(error.value)
    for part in (
        "com.unknown::Foo",
        "'first_foo'",
        "net.py:12",
        "2 nodes",
        "com.unknown::Bar",
        "pfvm ops --device xla:cpu",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("op", ["StringNormalizer", "SequenceConstruct", "ImageDecoder", "Optional"])
def test_operators_without_tensors_are_refused_without_a_host(op):
    node = onnx.helper.make_node(op, ["x"], ["y"])
    value = onnx.helper.make_tensor_value_info("x", 1, [1])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.helper.make_tensor_value_info("y", 1, [1])])
    with pytest.raises(UnsupportedOpError, match=op):
        XlaExecutable(ir.serde.deserialize_model(onnx.helper.make_model(graph, ir_version=8)), allow_host=False)


def test_operands_that_do_not_fit_name_the_node():
    exe = load("g (float[N] x, float[M] y) => (float[K] z) { z = Add(x, y) }")
    with pytest.raises(InputError, match=r"these inputs \(x \[2\], y \[3\]\): Add .*float32\[2\], float32\[3\]"):
        exe({"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})


def test_strings_without_a_host_and_other_platforms_are_refused():
    with pytest.raises(UnsupportedOpError, match="strings"):
        load("g (string[N] x) => (string[N] y) { y = Identity(x) }", allow_host=False)
    with pytest.raises(NoDeviceError, match=r"device xla:tpu is not here .*; it needs a TPU"):
        load("g (float[N] x) => (float[N] y) { y = Neg(x) }", platform="tpu")


def test_threads_share_executables():
    exe = load(DYNAMIC_RESHAPE)
    wrong = []

    def work(seed: int) -> None:
        for n in (1, 2, 3, 1, 2, 3):
            x = np.full((n, 3, 4), seed, np.float32)
            if not np.array_equal(exe({"x": x})["y"], x.reshape(n, 12)):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and exe.compilations == 3


def test_supported_ops_lists_domains_and_versions():
    ops = supported_ops()
    assert ops["", "Add"] == (1,) and ops["", "Gelu"] == (20,) and ("com.microsoft", "FastGelu") in ops
    assert ("", "StringNormalizer") not in ops and ("", "SequenceConstruct") not in ops
    assert ops["", "If"] == ops["", "Loop"] == (1,) and ops["", "Scan"] == (8, 9)
    assert ("", "Attention") in ops  # by the function body of its schema
