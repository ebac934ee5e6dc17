"""Promise: control flow on xla:cpu can be differentiated, and what is wrong in a body is named."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

import jax
from control_flow import TRUE, X, int_, load, model
from pfvm.errors import InvalidModelError, UnsupportedOpError
from pfvm.runtime.xla.context import Scope
from pfvm.runtime.xla.interpreter import Interpreter
from pfvm.runtime.xla.random_keys import Keys, fresh_entropy
from pfvm.runtime.xla.schema_functions import SchemaFunctions
from pfvm.runtime.xla.weights import Weights

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_counted_loops_scans_and_branches_can_be_differentiated():
    text = """
    g (float[2] x, bool f) => (float total) <int64 m = {3}, bool go = {1}, float[2] w = {2, 3}> {
      y, s = Loop(m, go, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] z, float[2] e) {
        d = Identity(c) z = Mul(a, x) e = Identity(a) }>
      t, u = Scan <num_scan_inputs = 1, body = c (float[2] p, float[2] q) => (float[2] r, float[2] v) {
        n = Mul(q, w) r = Add(p, n) v = Neg(r) }>(y, s)
      k = If(f) <then_branch = t () => (float[2] g) { g = Mul(t, x) },
                 else_branch = e () => (float[2] h) { h = Neg(t) }>
      total = ReduceSum<keepdims = 0>(k)
    }
    """
    graph = ir.serde.deserialize_model(model(text))
    weights = Weights(graph)

    def total(x: jax.Array, flag: jax.Array) -> jax.Array:
        constants = {v: weights.constant(v) for v in weights.arguments()}
        interpreter = Interpreter(graph.functions, SchemaFunctions(), weights, constants, set(), Keys(fresh_entropy()))
        scope = Scope(graph.graph.opset_imports, dict(zip(graph.graph.inputs, (x, flag))))
        interpreter.run(graph.graph, scope)
        return interpreter.read(graph.graph.outputs[0], scope)

    with jax.enable_x64(True):
        # total = Σ (x⁴ + w (x + x² + x³)) x
        gradient = jax.jit(jax.grad(total))(X[:2], TRUE)
    x, w = X[:2], np.array([2, 3])
    np.testing.assert_allclose(gradient, 5 * x**4 + w * (2 * x + 3 * x**2 + 4 * x**3), rtol=1e-5)


def test_unsupported_operators_in_bodies_are_found_when_the_model_is_loaded():
    text = """
    g (float[N] x, int64 m, bool f) => (float[N] y) {
      y = Loop(m, , x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        d = Identity(c)
        z = If(f) <then_branch = t () => (float[N] u) { u = com.unknown.Foo(a) },
                   else_branch = e () => (float[N] v) { v = Neg(a) }> }>
    }
    """
    with pytest.raises(UnsupportedOpError, match=r"com.unknown::Foo .*in a body of If .*in a body of Loop"):
        load(text)


def test_a_body_that_does_not_fit_its_node_is_named():
    text = """g (float[N] x, int64 m) => (float[N] y) {
      y = Loop(m, , x) <body = b (int64 i, bool c) => (bool d) { d = Identity(c) }> }"""
    with pytest.raises(InvalidModelError, match=r"Loop .*its body has 2 inputs and 1 outputs, the node gives it 3"):
        load(text)({"x": X, "m": int_(1)})
