"""A rule of one's own beside pfvm's: x² written as Pow becomes a product, and pfvm says where that was not possible.

python examples/own_rule.py

The same rule in a file works on the command line: `pfvm compile model.onnx -o out.onnx --rules FILE.py`.
"""

from __future__ import annotations

import argparse
from typing import Any

import onnx
import onnx_ir
import pfvm
from pfvm.passes import constant, rule

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[n,8] x, float e) => (float[1,1] y, float[n,8] z)
<float two = {2.0}> { square = Pow (x, two)  y = ReduceSum (square)  z = Pow (x, e) }"""


@rule("Pow")
def square(node: Any, rw: Any) -> bool:
    """Pow(x, 2) → Mul(x, x)."""
    base, exponent = node.inputs
    number = constant(exponent)
    if number is None:
        return rw.reject("square", "the exponent differs from run to run")
    if number.size != 1 or number.item() != 2:
        return False
    rw.replace(node, rw.op("Mul", base, base, at=node).outputs[0])
    return True


def main() -> None:
    """Compile with the rule, compare after every pass, and say what became of each Pow."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    model = onnx.parser.parse_model(NET)
    compiled = pfvm.optimize(model, rules=[square], verify=True)
    print(" ".join(node.op_type for node in compiled.graph.node))
    for run in pfvm.run_passes(onnx_ir.from_proto(model), rules=[square]):  # the rule alone, in place
        if run.matches:
            print(f"{run.name}: {dict(run.matches)}, refused: {dict(run.rejected)}")


if __name__ == "__main__":
    main()
