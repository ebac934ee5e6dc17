"""Plan a net for MN-Core 2 and run the plan on the emulator: the same numbers through layouts, memories and addresses.

python examples/plan.py --scheduler spill_opt --outdir out/plan

Prints cycles of the cost model beside their lower bound, and how far the emulated result is from ONNX Runtime's, with
the machine's rounding and without. `pfvm view out/plan` draws it.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
import onnx
import onnx_ir
import pfvm
from onnx import numpy_helper
from pfvm.compiler.plan.artifacts import write_artifacts
from pfvm.compiler.plan.planner import plan
from pfvm.runtime.ort import evaluate

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[32,256] x) => (float[32,10] p) {
  a = Gemm (x, w1, b1)  h = Relu (a)  b = Gemm (h, w2, b2)  p = Softmax <axis = 1> (b)
}"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", default="reuse_consecutive", help="see pfvm plan --help")
    parser.add_argument("--outdir", default="out/plan", help="folder for l3ir.txt, report.json, …")
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    model = onnx.parser.parse_model(NET)
    for name, shape in {"w1": (256, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}.items():
        weight = draw.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    compiled = pfvm.optimize(model)
    planned = plan(onnx_ir.from_proto(compiled), {"machine": "mncore2", "scheduler": args.scheduler}, evaluate)
    write_artifacts(planned, pathlib.Path(args.outdir))
    report = planned.report
    print(f"{args.scheduler}: {report['vsm_cycles']:,} cycles, at least {report['lower_bound']['cycles']:,}")
    feeds = {"x": draw.normal(size=(32, 256)).astype(np.float32)}
    expected = pfvm.load(model)(feeds)["p"]
    for exact in (True, False):
        emulated = pfvm.load(compiled, device="mncore2:emu", scheduler=args.scheduler, exact=exact)
        worst = float(np.abs(emulated(feeds)["p"] - expected).max())
        print(f"emulated {'exactly' if exact else 'with rounding'}: largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
