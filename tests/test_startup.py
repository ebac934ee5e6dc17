"""Commands do not wait for sympy, which only arithmetic of symbolic dims needs; what computes with them still can."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import onnx.parser
import pytest

FIXED = "agraph (float[2,3] x) => (float[4,3] y) { y = Concat<axis=0>(x, x) }"
OPEN = "agraph (float[N,3] x) => (float[M,3] y) { a = Concat<axis=0>(x, x) y = Relu(a) }"
NET = """agraph (float[N,3,8,8] x, float[4,3,3,3] w, float[4] b, float[4,2] m, float[2] c) => (float[N,2] y) {
    conv = Conv<pads=[1,1,1,1]>(x, w, b) clip = Relu(conv) sum = Add(clip, conv) pool = GlobalAveragePool(sum)
    flat = Flatten(pool) y = Gemm(flat, m, c) }"""
HEADER = '<ir_version: 8, opset_import: ["" : 18]>'
COMPILE = """
import atexit, sys
atexit.register(lambda: print("sympy.core" in sys.modules))
from pfvm.tools.cli import main
main(sys.argv[1:])
"""
LATER = """
import sys
from pfvm.tools.startup import defer_sympy
defer_sympy()
import onnx_ir, onnx_shape_inference
assert "sympy" not in sys.modules
n = onnx_ir.SymbolicDim("N") + 1
import sympy, sympy.core
from sympy import Max
assert isinstance(n._expr, sympy.Expr) and onnx_ir.SymbolicDim(Max(n._expr, 3)).value == "Max(3, N + 1)"
import onnx_ir._symbolic_shapes as direct
assert direct.parse_symbolic_expression("N").is_positive
"""


def run(program: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("text", "needed"), [(FIXED, "False"), (NET, "False"), (OPEN, "True")])
def test_only_arithmetic_of_open_dims_loads_sympy(tmp_path: pathlib.Path, text: str, needed: str) -> None:
    onnx.save(onnx.parser.parse_model(HEADER + text), tmp_path / "m.onnx")
    assert run(COMPILE, "compile", tmp_path / "m.onnx", "-o", tmp_path / "c.onnx", "-q") == needed
    onnx.checker.check_model(str(tmp_path / "c.onnx"), full_check=True)


def test_who_imports_sympy_later_gets_sympy_itself() -> None:
    run(LATER)
