"""Compile an ONNX file, see what the passes did, and run it on every device that is here.

python examples/compile_file.py [MODEL.onnx] --outdir out/file

Without a file it takes a small convolutional net as an exporter writes it: batch normalizations, shape computations and
all. Fails when a device computes something else than ONNX Runtime does with the original.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np
import onnx
import pfvm
from onnx import numpy_helper
from pfvm.compiler.importer import read_model
from pfvm.runtime.synthesis import workable

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[batch,3,16,16] image) => (float[batch,10] scores) {
  c1 = Conv <pads = [1,1,1,1]> (image, w1)  n1 = BatchNormalization (c1, scale, shift, mean, variance)  r1 = Relu (n1)
  c2 = Conv <pads = [1,1,1,1]> (r1, w2)  n2 = BatchNormalization (c2, scale, shift, mean, variance)  s = Add (r1, n2)
  r2 = Relu (s)  p = GlobalAveragePool (r2)
  all = Shape (p)  n = Gather (all, zero)  n_ = Unsqueeze (n, axis)  target = Concat <axis = 0> (n_, rest)
  flat = Reshape (p, target)  turned = Transpose <perm = [1,0]> (head)  product = MatMul (flat, turned)
  scores = Add (product, bias)
}"""


def made_up_net() -> onnx.ModelProto:
    """The net with random weights."""
    draw = np.random.default_rng(0)
    weights = {
        name: draw.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in {
            "w1": (8, 3, 3, 3),
            "w2": (8, 8, 3, 3),
            "head": (10, 8),
            "bias": (10,),
            "shift": (8,),
            "mean": (8,),
        }.items()
    }
    weights |= {"scale": np.ones(8, np.float32), "variance": np.full(8, 0.5, np.float32)}
    integers = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    proto = onnx.parser.parse_model(NET)
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights | integers).items())
    return proto


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="an ONNX file; by default a small net")
    parser.add_argument("--outdir", default="out/file", help="folder for model.onnx, pfvm.onnx and passes.json")
    args = parser.parse_args()
    folder = pathlib.Path(args.outdir)
    model = onnx.load(args.model) if args.model else made_up_net()
    compiled = pfvm.optimize(model, artifacts=folder, verify=True)  # verify: numbers are compared after every pass
    record = json.loads((folder / "passes.json").read_text())
    print(f"{record['nodes'][0]} → {record['nodes'][1]} nodes")
    for each in record["passes"]:
        if each["matches"]:
            print(f"  {each['name']}: {', '.join(f'{rule} ×{count}' for rule, count in each['matches'].items())}")
    original = pfvm.load(model, optimize=False)  # ONNX Runtime as the file is written
    feeds, expected = workable(read_model(model), original)  # inputs that the graph accepts
    for device in pfvm.devices():
        if device.presence != "present":
            continue
        results = pfvm.load(compiled, device=device.name)(feeds)
        worst = max(float(np.abs(results[name] - value).max()) for name, value in expected.items())
        print(f"{device.name}: largest difference {worst:.1e}")
        assert all(np.allclose(results[name], value, rtol=1e-3, atol=1e-4) for name, value in expected.items())


if __name__ == "__main__":
    main()
