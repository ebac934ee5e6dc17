"""Graphs as text, and the two questions that tests ask of a pass: what came out, and are the numbers the same."""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.compiler.driver import compile_model
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import Options, parse
from pfvm.errors import MissingExtraError, NoDeviceError
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.device import load_executable
from pfvm.runtime.noise import noise_note
from pfvm.runtime.ort import evaluate

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text: str) -> onnx.ModelProto:
    """A model from its text form; without a header it has IR version 8 and opset 17."""
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)


def has_gpu(device: str) -> bool:
    """Does this device ("pfvm:cuda", "xla:cuda") run here?"""
    try:
        load_executable(ir.from_proto(model("g (float[1] x) => (float[1] y) { y = Neg(x) }")), device)
    except (NoDeviceError, MissingExtraError):
        return False
    return True


def run_passes(source: str | onnx.ModelProto, *passes: str) -> onnx.ModelProto:
    """Compile with these passes alone (shapes are always inferred); without any, with the default level."""
    options = parse(opt_level=0, passes=("infer-shapes", *passes)) if passes else Options()
    proto = model(source) if isinstance(source, str) else source
    return to_proto(compile_model(read_model(proto), options, evaluate=evaluate).model)


def ops(proto: onnx.ModelProto) -> list[str]:
    """Operators of the main graph in order."""
    return [node.op_type for node in proto.graph.node]


def body(proto: onnx.ModelProto) -> str:
    """The main graph's nodes as text, without what is known about intermediate values."""
    graph = onnx.GraphProto()
    graph.CopyFrom(proto.graph)
    _strip(graph)
    return "\n".join(onnx.printer.to_text(node) for node in graph.node)


def _strip(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for node in graph.node:
        node.name = ""
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


def assert_becomes(before: str, after: str, *passes: str) -> onnx.ModelProto:
    """The passes turn the graph `before` into exactly `after`, and the numbers stay."""
    compiled, expected = run_passes(before, *passes), to_proto(read_model(model(after)))
    assert body(compiled) == body(expected)
    assert_same_numbers(model(before), compiled)
    return compiled


def assert_stays(graph: str, *passes: str) -> onnx.ModelProto:
    """The passes leave the graph alone."""
    return assert_becomes(graph, graph, *passes)


def assert_same_numbers(
    a: onnx.ModelProto, b: onnx.ModelProto, feeds: Sequence[dict[str, np.ndarray]] | None = None
) -> None:
    """Both models give equal outputs in ONNX Runtime without optimizations: random, other random, all-zero inputs."""
    for each in feeds or [inputs(a, seed) for seed in (0, 1, None)]:
        reference, result = (evaluate(ir.from_proto(m), each) for m in (a, b))
        assert list(reference) == list(result)
        for name, value in reference.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
            assert np.asarray(result[name]).dtype == np.asarray(value).dtype


def assert_same_but_for_rounding(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    """Like `assert_same_numbers`; more passes where `a` itself moves as much when its inputs move by 1e-6."""
    tolerance = Tolerance(rtol=1e-4, atol=3e-5)  # a norm of equal numbers divides rounding by the root of 1e-3
    for feeds in [inputs(a, seed) for seed in (0, 1, None)]:
        reference, result = (evaluate(ir.from_proto(m), feeds) for m in (a, b))
        assert list(reference) == list(result)
        for name, value in reference.items():
            assert np.asarray(result[name]).dtype == np.asarray(value).dtype
            found = difference(name, value, result[name], tolerance)
            if found is not None:
                run = functools.partial(evaluate, ir.from_proto(a))
                assert noise_note(name, value, result[name], run, feeds, tolerance), found


def inputs(proto: onnx.ModelProto, seed: int | None) -> dict[str, np.ndarray]:
    """Inputs for the required graph inputs; symbolic dims are 3; zeros when `seed` is None."""
    rng = np.random.default_rng(seed or 0)
    given = {t.name for t in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in given:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else 3 for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array = rng.integers(0, 3, shape) if dtype.kind in "iub" else rng.standard_normal(shape)
        feeds[value.name] = np.asarray(array if seed is not None else np.zeros(shape)).astype(dtype)
    return feeds


SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"
"""Test material beside the repository; tests that use it skip where it is missing."""


def recipes(path: pathlib.Path) -> list[dict]:
    """Realistic inputs for one of the shared models, as its recipes say."""
    recipe = json.loads((SHARED / "models" / "inputs.json").read_text()).get(path.name, {"seed": 0, "dim": 1})
    return [recipe, *recipe.get("more", [])]


def inputs_of(path: pathlib.Path, recipe: dict) -> dict[str, np.ndarray]:
    """The arrays of a recipe."""
    spec = importlib.util.spec_from_file_location("caselib", SHARED / "harness" / "caselib.py")
    assert spec is not None and spec.loader is not None
    caselib = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(caselib)
    return caselib.synth_inputs(onnx.load(path), recipe)
