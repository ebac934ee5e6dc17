"""Promise: an attribute that each call of a function gives is not taken for any value that it might have."""

from __future__ import annotations

import onnx
import pfvm
import pytest
from support import assert_same_numbers, model

CASES = {
    "pads": """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
        agraph (float[1,1,4,4] x) => (float[1,1,6,6] y) { y = my.F<pads = [1,1,1,1]>(x) }
        <opset_import: ["" : 17], domain: "my"> F <pads>(x) => (y) {
            p = Constant<value = int64[8] {0,0,1,1,0,0,1,1}>() a = Pad(x, p)
            y = AveragePool<kernel_shape = [3,3], pads: ints = @pads>(a) }""",
    "dilations": """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
        agraph (float[1,1,5,5] x) => (float[1,1,5,5] y) { y = my.F<dilations = [2,2]>(x) }
        <opset_import: ["" : 17], domain: "my"> F <dilations>(x) => (y) {
            p = Constant<value = int64[8] {0,0,1,1,0,0,1,1}>() a = Pad(x, p)
            y = MaxPool<kernel_shape = [2,2], dilations: ints = @dilations>(a) }""",
    "axes": """<ir_version: 10, opset_import: ["" : 11, "my" : 1]>
        agraph (float[2,3] x) => (float[2,1] y) { y = my.F<axes = [-1]>(x) }
        <opset_import: ["" : 11], domain: "my"> F <axes>(x) => (y) {
            a = Constant<value = float[2,3] {1, 2, 3, 4, 5, 6}>()
            b = ReduceSum<axes: ints = @axes>(a) c = ReduceSum<axes: ints = @axes>(a) d = Mul(b, c)
            e = ReduceSum<axes: ints = @axes>(x) y = Mul(d, e) }""",
    "num_scan_inputs": """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
        agraph (float[2] s, float[3,2] x) => (float[2] y) { y = my.F<count = 1>(s, x) }
        <opset_import: ["" : 17], domain: "my"> F <count>(s, x) => (y) {
            y = Scan<num_scan_inputs: int = @count, body = b (float[2] a, float[2] c) => (float[2] d) { d = Add(a, c) }>
                (s, x) }""",
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_with_such_an_attribute_compiles_equal(name: str) -> None:
    given = model(CASES[name])
    onnx.checker.check_model(given)
    compiled = pfvm.optimize(given)
    onnx.checker.check_model(compiled)
    assert_same_numbers(given, compiled)


def test_equal_nodes_with_equal_parameters_are_one() -> None:
    assert [n.op_type for n in pfvm.optimize(model(CASES["axes"])).functions[0].node].count("ReduceSum") == 2


def test_dropout_that_a_call_may_let_train_is_not_merged() -> None:
    compiled = pfvm.optimize(
        model("""<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
        agraph (float[3] x) => (float[3] y) { y = my.F<test = 0>(x) }
        <opset_import: ["" : 6], domain: "my"> F <test>(x) => (y) {
            a = Dropout<is_test: int = @test>(x) b = Dropout<is_test: int = @test>(x) y = Sub(a, b) }""")
    )
    assert [n.op_type for n in compiled.functions[0].node] == ["Dropout", "Dropout", "Sub"]
