"""Passes one by one, on an onnx_ir model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx_ir as ir
from pfvm.compiler import collector
from pfvm.compiler.exporter import export_shapes
from pfvm.compiler.importer import normalise
from pfvm.compiler.shapes import ShapeInference
from pfvm.compiler.signature import Interface
from pfvm.errors import InputError, short
from pfvm.passes import pipeline, user_rules
from pfvm.passes.rewriter import Rewriter

from .ort import evaluate

if TYPE_CHECKING:
    from pfvm.passes.pipeline import PassRecord
    from pfvm.passes.user_rules import RuleSource


@collector.paused()
def run_passes(model: ir.Model, *passes: str, rules: Iterable[RuleSource] | RuleSource = ()) -> list[PassRecord]:
    """Runs these passes, and no others, on an onnx_ir model, in place; returns what each run of each did.

    passes: names as `pfvm passes` lists them, with options where needed: "fuse-conv", "fold-constants{slack=1KiB}".
        They run in this order, in rounds, until none of them finds anything more to do.
    rules: a file of rules, a function marked with `@rule` from pfvm.passes, or several of them; they run first.

    Constant nodes of the graph become initializers, and types and shapes are inferred as far as they follow from the
    inputs. Inputs and outputs stay as they are declared.
    Raises InvalidModelError, UnsupportedOpError, OptionError for a name that is no pass, RuleError, and InputError for
    something else than a model. After an error of a rule the model may be half rewritten.
    """
    if not isinstance(model, ir.Model):
        raise InputError(f"run_passes takes an onnx_ir.Model, not {short(model)}; pfvm.optimize takes files and protos")
    chosen = [pipeline.load(name)(**options) for name, options in map(pipeline.parse_spec, passes)]
    sources = (rules,) if isinstance(rules, str) or hasattr(rules, "__fspath__") or callable(rules) else rules
    chosen = user_rules.beside(chosen, sources)  # type: ignore[arg-type]
    is_ours = Interface.recorded(model) is not None
    declared = [(value, value.type, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    if not is_ours:
        normalise(model)
    rw = Rewriter(model, ShapeInference(model))
    rw.shapes.infer_model()
    records = pipeline.run(rw, chosen, {"evaluate": evaluate})
    if not is_ours:
        _as_declared(model, declared)
    return records


Declared = list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]]


def _as_declared(model: ir.Model, declared: Declared) -> None:
    """Shapes in the file's own symbols, inputs and outputs as they were; what pfvm notes of a model it read is gone."""
    interface = Interface.of(model)
    interface.forget(model)
    export_shapes(model, interface)
    graph = model.graph
    if model.ir_version < 4:  # there, every initializer is an input as well
        graph.inputs.extend(value for value in graph.initializers.values() if not value.is_graph_input())
    inputs = [(value, kind, shape) for value, kind, shape in declared if value.is_graph_input()]
    outputs = zip(graph.outputs, declared[len(declared) - len(graph.outputs) :])
    for value, kind, shape in [*inputs, *((value, kind, shape) for value, (_, kind, shape) in outputs)]:
        value.type, value.shape = kind or value.type, shape
