"""Promise: what the emulator computes through layouts and addresses is, bit by bit, what the plan says without them.

On MN-Core 2 and on a machine of another depth, with other names and one local memory; by every scheduler.
"""

from __future__ import annotations

import pathlib

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from emulator_plans import compiled_mlp, feeds_for, from_dram
from pfvm.compiler.plan.plan_options import SCHEDULERS
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.runtime.emulator.program import Program
from pfvm.runtime.emulator.reference import Reference
from pfvm.runtime.oracle import Oracle
from pfvm.tools.four_way import relative_l2
from plan_support import write_pond

CNN = """<ir_version: 10, opset_import: ["" : 21]>
cnn (float[2,3,9,9] x) => (float[2,5] y)
<float[8,3,3,3] w1, float[8] b1, float[8,1,3,3] w2, float[5,8] w3, float[5] b3> {
  a = Conv <pads=[1,1,1,1]> (x, w1, b1)
  b = Relu (a)
  c = MaxPool <kernel_shape=[2,2], strides=[2,2]> (b)
  d = Conv <group=8, auto_pad="SAME_UPPER", strides=[2,2]> (c, w2)
  e = HardSwish (d)
  f = GlobalAveragePool (e)
  g = Flatten (f)
  y = Gemm <transB=1> (g, w3, b3)
}"""
ATTENTION = """<ir_version: 10, opset_import: ["" : 21]>
attention (float[2,7,24] x) => (float[2,7,24] y)
<float[24,24] wq, float[24,24] wk, float[24,24] wv, float[24] scale, float[24] bias, int64[4] heads = {2,7,3,8},
 int64[3] flat = {2,7,24}, float root = {0.3535}> {
  n = LayerNormalization (x, scale, bias)
  q0 = MatMul (n, wq)  k0 = MatMul (n, wk)  v0 = MatMul (n, wv)
  q1 = Reshape (q0, heads)  k1 = Reshape (k0, heads)  v1 = Reshape (v0, heads)
  q = Transpose <perm=[0,2,1,3]> (q1)  k = Transpose <perm=[0,2,3,1]> (k1)  v = Transpose <perm=[0,2,1,3]> (v1)
  s0 = MatMul (q, k)  s = Mul (s0, root)  p = Softmax <axis=-1> (s)  o0 = MatMul (p, v)
  o1 = Transpose <perm=[0,2,1,3]> (o0)  o = Reshape (o1, flat)
  y = Add (x, o)
}"""


def model_of(text: str, seed: int = 0) -> ir.Model:
    """The model of a text; weights that are only declared are drawn."""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    for declared in proto.graph.value_info:
        shape = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32) * 0.3
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, declared.name))
    del proto.graph.value_info[:]
    return ir.from_proto(proto)


NETS = {
    "mlp": lambda: compiled_mlp(training=False),
    "mlp step": lambda: compiled_mlp(training=True),
    "cnn": lambda: model_of(CNN),
    "attention": lambda: model_of(ATTENTION),
}


def run(planned: Plan, feeds: dict[str, np.ndarray], exact: bool) -> dict[str, np.ndarray]:
    program = Program(planned.model, planned.machine, exact)
    program.place_weights()
    for name, value in feeds.items():
        program.put(name, value)
    program.run()
    first = {name: program.get(name) for name in program.outputs}
    program.place_weights()
    program.run()  # once more, on memories that have been used
    for name, value in first.items():
        assert np.array_equal(program.get(name), value), name
    return first


def check(planned: Plan, model: ir.Model) -> None:
    feeds = feeds_for(model)
    for exact in (False, True):
        expected = Reference(planned.model, planned.machine, exact)(feeds)
        got = run(planned, feeds, exact)
        for name, value in expected.items():
            assert np.array_equal(got[name], value), (name, exact)
    for name, value in Oracle(model)(feeds).items():
        assert relative_l2(value, got[name]) < 2e-5, name


@pytest.mark.parametrize("net", list(NETS))
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_plan_runs_as_it_says(net: str, scheduler: str) -> None:
    model = NETS[net]()
    check(plan(model, {"scheduler": scheduler, "search_steps": 20}), model)


@pytest.mark.parametrize("net", list(NETS))
def test_on_a_machine_of_another_shape(net: str, tmp_path: pathlib.Path) -> None:
    model = NETS[net]()
    check(plan(model, {"machine": str(write_pond(tmp_path)), "scheduler": "spill_opt"}), model)


@pytest.mark.parametrize("float_dtype", ["half", "float"])
def test_other_dtypes(float_dtype: str) -> None:
    model = NETS["mlp step"]()
    check(plan(model, {"float_dtype": float_dtype}), model)


def test_a_plan_without_a_scheduler() -> None:
    model = NETS["mlp"]()
    check(from_dram(model), model)
