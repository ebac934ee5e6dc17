"""What tests of TPU compilation share: models as text, compiled at effort fast for one v5e chip unless told else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from pfvm.compiler.importer import read_model
from pfvm.runtime.xla.ahead import AheadExecutable
from pfvm.runtime.xla.tpu_report import make_report

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A model from its text, with random float32 initializers of these shapes."""
    proto = onnx.parser.parse_model(HEADER + text)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        array = random.standard_normal(shape).astype(np.float32) / 8
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def compiled(proto: onnx.ModelProto, topology: str = "v5e:1x1", **options: Any) -> AheadExecutable:
    """Compiled when its program or report is asked for."""
    return AheadExecutable(read_model(proto), topology, **{"effort": "fast", **options})


def report(proto: onnx.ModelProto, topology: str = "v5e:1x1", **options: Any) -> dict[str, Any]:
    """The content of report.json."""
    return make_report(compiled(proto, topology, **options))


MLP = "g (float[128,256] x) => (float[128,64] y) { h = MatMul(x, a)  r = Relu(h)  y = MatMul(r, b) }"
CNN = """g (float[N,3,32,32] x) => (float[N,10] y)
{ c = Conv<pads=[1,1,1,1]>(x, k)  r = Relu(c)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
  d = Conv<pads=[1,1,1,1], group=16>(p, q)  a = GlobalAveragePool(d)  f = Flatten(a)  y = Gemm<transB=1>(f, w) }"""


def mlp() -> onnx.ModelProto:
    """Two products."""
    return model(MLP, a=(256, 512), b=(512, 64))


def cnn() -> onnx.ModelProto:
    """A convolution, a pool and a depthwise convolution, of any batch."""
    return model(CNN, k=(16, 3, 3, 3), q=(16, 1, 3, 3), w=(10, 16))
