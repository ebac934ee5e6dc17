"""Models in fewer bits, by ONNX Runtime's own tools, and what that does to their numbers.

dynamic-int8: weights of products as int8, with one scale each; their data are quantized at each call
(`onnxruntime.quantization.quantize_dynamic`). fp16: float32 as float16 between inputs and outputs, which stay float32
(`onnxruntime.transformers.float16`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common
from onnx.reference import ReferenceEvaluator
from pfvm.compiler.exporter import PROTOBUF_LIMIT, to_proto, weight_bytes
from pfvm.compiler.flops import count_flops
from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import Interface
from pfvm.errors import InputError, OptionError, PfvmError, UnsupportedOpError, flag, one_line
from pfvm.passes.rewriter import Rewriter

from .oracle import REFERENCE, Oracle
from .synthesis import workable

Form = Literal["dynamic-int8", "fp16"]
_SEEDS = 8
_MOST_FLOPS = 2e8  # of a model that onnx.reference runs, in numpy, which has no fast product of float16
_SMALLEST_NORMAL = 2.0**-14  # of float16: relative errors below are errors of a denormal number


_Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def reduce(model: ir.Model, form: Form) -> ir.Model:
    """The model, in normal form, with weights and arithmetic of fewer bits; the signature stays.

    Raises OptionError for a model that is a training step or larger than 2 GiB, UnsupportedOpError where ONNX Runtime's
    tool fails or makes a model that does not run.
    """
    if any(value.is_initializer() for value in model.graph.inputs):
        raise OptionError(
            f"{form}: the model's weights are state that a call may replace; freeze them first: "
            f"pfvm export {flag('freeze', True)}"
        )
    if weight_bytes(model) > PROTOBUF_LIMIT:
        raise OptionError(f"{form}: ONNX Runtime's tool does not take models of more than 2 GiB")
    complete = model.clone()
    ir.external_data.load_to_model(complete)
    ir.passes.common.InlinePass()(complete)  # the tools know no functions
    _outputs_by_nodes(complete)
    Interface.of(model).record(complete)
    proto = to_proto(complete)
    try:
        converted = _TOOLS[form](proto)
    except Exception as error:  # the tools raise whatever their parts do
        raise UnsupportedOpError(f"{form}: ONNX Runtime's tool fails on this model: {one_line(error)}") from error
    try:
        result = read_model(converted)
        _keep(model, result, form)
        Oracle(result)
    except PfvmError as error:
        raise UnsupportedOpError(f"{form}: ONNX Runtime's tool makes a model that does not load: {error}") from error
    return result


def _outputs_by_nodes(model: ir.Model) -> None:
    """Let an Identity hand out each weight that is an output: the tool casts outputs under the weight's own name."""
    rw = Rewriter(model)
    handed: dict[ir.Value, ir.Value] = {}
    for i, value in enumerate(model.graph.outputs):
        if value.is_initializer() and value not in handed:
            name = value.name
            value.name = rw.unique_name(f"{name}_weight")
            out = ir.Value(name=name, type=value.type, shape=value.shape)
            model.graph.append(ir.Node("", "Identity", [value], outputs=[out]))
            handed[value] = out
        if value in handed:
            model.graph.outputs[i] = handed[value]


def _keep(model: ir.Model, result: ir.Model, form: Form) -> None:
    """Names and metadata of the original; the tools rewrite what they know of."""
    names = [[value.name for value in values] for m in (model, result) for values in (m.graph.inputs, m.graph.outputs)]
    if names[:2] != names[2:]:
        raise UnsupportedOpError(f"the signature changed from {names[:2]} to {names[2:]}")
    Interface.of(model).record(result)
    result.metadata_props.update(model.metadata_props)
    result.graph.metadata_props.update(model.graph.metadata_props)
    result.graph.name, result.graph.doc_string = model.graph.name, model.graph.doc_string
    for field in ("producer_name", "producer_version", "model_version", "doc_string", "domain"):
        setattr(result, field, getattr(model, field))
    kept = {out.name: node for node in model.graph.all_nodes() for out in node.outputs if out.name}
    for node in result.graph.all_nodes():
        origin = next((kept[out.name] for out in node.outputs if out.name in kept), None)
        if origin is not None:
            for key, text in origin.metadata_props.items():
                node.metadata_props.setdefault(key, text)


def _dynamic_int8(proto: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.registry import IntegerOpsRegistry

    # The tool goes by the name alone, and knows com.microsoft's Attention.
    others = {node.op_type for node in proto.graph.node if not node.domain} & {"Attention"}
    with tempfile.TemporaryDirectory() as folder, _silenced():
        target = pathlib.Path(folder, "quantized.onnx")
        types = [each for each in IntegerOpsRegistry if each not in others]
        quantize_dynamic(proto, target, op_types_to_quantize=types, weight_type=QuantType.QInt8, per_channel=False)
        return onnx.load(target)


def _float16(proto: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _silenced():
        return convert_float_to_float16(proto, keep_io_types=True, disable_shape_infer=False)


class _silenced:
    """The tools log advice and warn of numbers that they truncate; the accuracy report says what came of it."""

    def __enter__(self) -> None:
        self._level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *reason: object) -> None:
        self._warnings.__exit__(None, None, None)
        logging.disable(self._level)


_TOOLS: Mapping[Form, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "dynamic-int8": _dynamic_int8,
    "fp16": _float16,
}


def finisher(form: Form) -> Callable[[ir.Model], tuple[ir.Model, dict[str, Any]]]:
    """What compiling does last: the model in this form, and the report of its accuracy as JSON has it."""

    def finish(model: ir.Model) -> tuple[ir.Model, dict[str, Any]]:
        reduced = reduce(model, form)
        return reduced, {"form": form, **dataclasses.asdict(accuracy(model, reduced))}

    return finish


def lines(report: Mapping[str, Any]) -> list[str]:
    """The text of such a report."""
    outputs = [str(Accuracy(**each)) for each in report["outputs"]]
    return [f"{report['form']}, in {report['engine']}, over made-up inputs:", *(f"  {line}" for line in outputs)]


# ---- what it does to the numbers


@dataclass(frozen=True)
class Accuracy:
    """How far an output moved, over all made-up inputs.

    largest, mean: |a - b| as a part of the output's largest |a| in the same call. top1: the part of rows whose largest
    element is the same one, along the last axis; None for an output without rows. broken: results that are no longer
    finite.
    """

    output: str
    largest: float
    mean: float
    top1: float | None
    broken: int

    def __str__(self) -> str:
        text = f"{self.output}: error {self.largest:.2%} of the largest element at most, {self.mean:.3%} in the mean"
        if self.top1 is not None:
            text += f", the same largest element in {self.top1:.1%} of rows"
        return text + (f", {self.broken} elements no longer finite" if self.broken else "")


@dataclass(frozen=True)
class Report:
    """The accuracy of each float output, and what computed the reduced model."""

    engine: str
    outputs: list[Accuracy]


def accuracy(original: ir.Model, reduced: ir.Model, seeds: Sequence[int] = tuple(range(_SEEDS))) -> Report:
    """Compares float outputs on made-up inputs with those of ONNX Runtime without optimizations.

    ONNX Runtime on a CPU keeps float32 between operators of float16 that it has no kernel for, and so rounds less than
    other devices. Models that are small enough run in onnx.reference instead, which rounds after every operator.
    Raises InputError where the original runs on no inputs.
    """
    engine, second = _engine(reduced)
    try:
        found = _pairs(original, second, seeds)
    except PfvmError:
        raise
    except Exception:  # onnx.reference lacks forms of operators (a Pad that takes away), and says so in any way
        if engine != REFERENCE:
            raise
        oracle = Oracle(reduced)
        engine, found = oracle.engine, _pairs(original, oracle, seeds)
    return Report(engine, [_measured(name, pairs) for name, pairs in found.items()])


def _pairs(original: ir.Model, second: _Run, seeds: Sequence[int]) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """What the original and the other one compute, by output of floats."""
    first = Oracle(original)
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    refused, done = None, False
    for seed in seeds:
        try:
            feeds, expected = workable(original, first, seed)
        except InputError as error:
            refused = error
            continue
        done, actual = True, second(feeds)
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
                found.setdefault(name, []).append((value.astype(np.float64), np.asarray(actual[name], np.float64)))
    if refused is not None and not done:
        raise refused
    return found


def _engine(model: ir.Model) -> tuple[str, _Run]:
    halves = any(
        value.dtype == ir.DataType.FLOAT16 for graph in (model.graph, *model.graph.subgraphs())
        for value in graph.initializers.values()
    )  # fmt: skip
    flops = count_flops(model) if halves else None
    evaluator: ReferenceEvaluator | None = None
    if flops is not None and not flops.note and flops.value() <= _MOST_FLOPS:
        with contextlib.suppress(NotImplementedError):  # it has no maps, and nothing of com.microsoft
            evaluator = ReferenceEvaluator(to_proto(model))
    if evaluator is not None:
        names = [value.name or "" for value in model.graph.outputs]

        def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
            with np.errstate(all="ignore"):
                return dict(zip(names, evaluator.run(None, dict(feeds))))

        return REFERENCE, run
    oracle = Oracle(model)
    return oracle.engine, oracle


def _measured(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Accuracy:
    largest, sums, count, broken = 0.0, 0.0, 0, 0
    same, rows = 0, 0
    for a, b in pairs:
        usable = np.isfinite(a) & np.isfinite(b)
        broken += int((np.isfinite(a) & ~np.isfinite(b)).sum())
        scale = max(float(np.abs(a[usable]).max(initial=0.0)), _SMALLEST_NORMAL)
        error = np.abs(a[usable] - b[usable]) / scale
        largest, sums, count = (
            max(largest, float(error.max(initial=0.0))),
            sums + float(error.sum()),
            count + error.size,
        )
        if a.ndim >= 2 and a.shape[-1] > 1:
            agree = a.argmax(-1) == b.argmax(-1)
            same, rows = same + int(agree.sum()), rows + agree.size
    return Accuracy(name, largest, sums / max(count, 1), same / rows if rows else None, broken)
