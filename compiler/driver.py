"""The stages in order: read, passes, write, and the artifacts directory."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import onnx
import onnx_ir as ir
import onnx_ir.passes.common
from pfvm.errors import OptionError, flag
from pfvm.passes import pipeline, provenance, user_rules
from pfvm.passes.constant_subgraph import Evaluate
from pfvm.passes.pipeline import PassRecord
from pfvm.passes.rewriter import SEALED_DOMAIN, Rewriter
from pfvm.passes.trace import Trace

from . import collector, exporter, progress
from .importer import Source, read_model
from .options import Options
from .shapes import ShapeInference


class Verifier(Protocol):
    """Compares the model after a pass with the original; made by the runtime, which can run models."""

    def __call__(self, model: ir.Model, pass_name: str) -> float:
        """Largest difference, relative to the tolerance's scale. Raises MismatchError when they do not agree."""


@dataclasses.dataclass
class CompileResult:
    """A compiled model in normal form and what every pass did; `original` is the model that was read, if it was.

    accuracy: what fewer bits did to the numbers, where there are fewer (see pfvm.runtime.reduced).
    settings: by pass its options that are not the defaults, for who runs the passes again.
    """

    model: ir.Model
    passes: list[PassRecord]
    original: ir.Model | None = None
    accuracy: dict[str, Any] | None = None
    settings: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def summary(self) -> dict:
        """The content of passes.json: the runs of passes that changed something, and those of the last round.

        The totals are those of all runs.
        """
        last_round = max((record.round for record in self.passes), default=0)
        shown = [record for record in self.passes if record.changed or record.round == last_round]
        first, last = (self.passes[0], self.passes[-1]) if self.passes else (None, None)
        return {
            "version": 1,
            "nodes": [first.nodes_before, last.nodes_after] if first and last else None,
            "bytes": [first.bytes_before, last.bytes_after] if first and last else None,
            "seconds": sum(record.seconds for record in self.passes),
            "runs": len(self.passes),
            "settings": self.settings,
            "passes": [dataclasses.asdict(record) for record in shown],
            **({} if self.accuracy is None else {"accuracy": self.accuracy}),
        }


def compile_model(
    model: ir.Model,
    options: Options,
    *,
    evaluate: Evaluate | None = None,
    make_verifier: Callable[[ir.Model], Verifier] | None = None,
    trace: Trace | None = None,
    in_place: bool = False,
) -> CompileResult:
    """Run the passes on a copy of a model in normal form, or on the model itself where nobody needs it any more.

    `evaluate` runs constant subgraphs; without one, floating point constants stay as they are. `make_verifier` is
    called with the original when `options.verify` is set. `trace` is told of every rule that is tried.
    Raises MismatchError from the verifier, OptionError for an impossible opset and for `verify` without an engine.
    """
    working = model if in_place else read_model(model)
    if options.opset is not None and options.opset != working.opset_imports.get(""):
        working = _convert(working, options.opset)
    disabled = list(options.disable)
    if options.fused_ops == "inline":
        disabled.extend(pipeline.FUSED)
        _inline_fused(working)
    if options.verify and make_verifier is None:
        raise OptionError("verify needs an engine to run the model; compile through pfvm.optimize or the command line")
    verifier = make_verifier(model) if options.verify and make_verifier is not None else None

    def after(current: ir.Model, record: PassRecord) -> None:
        runs.append(record.name)
        _report(record, len(runs) / len(passes))
        if verifier is not None and record.changed:
            record.max_difference = verifier(current, record.name)

    runs: list[str] = []
    rewriter = Rewriter(working, ShapeInference(working))
    rewriter.provenance.is_written = not options.strip_provenance
    rewriter.trace = trace or rewriter.trace
    ours = pipeline.select(options.opt_level, options.passes, disabled, options.target, options.max_growth)
    passes = user_rules.beside(ours, options.rules)
    records = pipeline.run(rewriter, passes, {"evaluate": evaluate}, after)
    if options.strip_provenance:
        provenance.strip(working)
    return CompileResult(working, records, settings=_settings(ours))


def _settings(passes: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The options of passes that are not their defaults."""
    found = {
        each.name: {
            field.name: getattr(each, field.name)
            for field in dataclasses.fields(each)
            if getattr(each, field.name) != field.default
        }
        for each in passes
    }
    return {name: options for name, options in found.items() if options}


def _report(record: PassRecord, rounds: float) -> None:
    """Nobody knows how many rounds there are. Later ones find less: each is counted as half of what was left."""
    within = min(rounds - (record.round - 1), 1.0)
    progress.report(f"round {record.round}, {record.name}", 1.0 - 0.5 ** (record.round - 1) * (1.0 - 0.5 * within))


@collector.paused()
def compile_source(
    source: Source,
    options: Options,
    *,
    evaluate: Evaluate | None = None,
    make_verifier: Callable[[ir.Model], Verifier] | None = None,
    finish: Callable[[ir.Model], tuple[ir.Model, dict[str, Any]]] | None = None,
    accept: Callable[[ir.Model], Mapping[str, bytes]] | None = None,
    keep_original: bool = True,
) -> CompileResult:
    """Read a model, compile it, and write what the options ask for: the output file and the artifacts directory.

    `finish` makes of the compiled model what is written, with a report of its accuracy.
    `accept` is called with that model: it raises where that must not be written, and returns name and content
    of more files for the directory. Without `keep_original`, `original` of the result is None where that spares a copy.
    """
    model = read_model(source)
    _check_targets(source, model, options)
    spent = not (keep_original or options.verify or options.artifacts)
    result = compile_model(model, options, evaluate=evaluate, make_verifier=make_verifier, in_place=spent)
    if finish is not None:
        result.model, result.accuracy = finish(result.model)
    result.original = None if spent else model
    files = {} if accept is None else accept(result.model)
    write_outputs(result, options, files)
    return result


def _check_targets(source: Source, model: ir.Model, options: Options) -> None:
    """The output's weights must not replace those of another file."""
    if options.output is None or not isinstance(source, (str, os.PathLike)):
        return
    same = pathlib.Path(source).resolve() == options.output.resolve()
    for data in _data_paths(options.output):
        if not same and exporter.reads_from(model, data):
            raise OptionError(
                f"{flag('output', options.output)}: {data} holds the weights of {source}; choose another name"
            )


def _data_paths(path: pathlib.Path) -> list[pathlib.Path]:
    """Files beside `path` that writing a model there may replace."""
    return [exporter.data_path(path, safetensors) for safetensors in (False, True)]


def write_outputs(result: CompileResult, options: Options, files: Mapping[str, bytes] | None = None) -> None:
    """Write model.onnx, pfvm.onnx, passes.json and `files` into the artifacts directory, then the output file.

    The output comes last: who finds it finds everything. Raises PfvmError.
    """
    folder = None if options.artifacts is None else pathlib.Path(options.artifacts)
    if folder is not None:
        exporter.make_directory(folder)
    targets = [folder / "model.onnx", folder / "pfvm.onnx"] if folder is not None else []
    for target in [*targets, *([options.output] if options.output is not None else [])]:
        models = [result.model] if result.original is None else [result.original, result.model]
        for model in models:  # weights may lie in a file that is about to be replaced
            for data in _data_paths(target):
                exporter.load_from(model, data)
    if folder is not None:
        assert result.original is not None, "kept where there is a directory"
        exporter.write_model(result.original, folder / "model.onnx", options.external_data, options.safetensors)
        exporter.write_model(result.model, folder / "pfvm.onnx", options.external_data, options.safetensors)
        summary = json.dumps(result.summary(), indent=1) + "\n"
        exporter.write_files(folder, {"passes.json": summary.encode(), **(files or {})})
    if options.output is not None:
        exporter.write_model(result.model, options.output, options.external_data, options.safetensors)


def _convert(model: ir.Model, opset: int) -> ir.Model:
    """The model at another opset of ai.onnx, by onnx's own converter, which knows no functions: they are inlined."""
    complete = model.clone()
    ir.external_data.load_to_model(complete)
    ir.passes.common.InlinePass()(complete)
    complete.opset_imports.pop(SEALED_DOMAIN, None)
    try:
        converted = onnx.version_converter.convert_version(exporter.to_proto(complete), opset)
    except Exception as error:  # the converter raises bare RuntimeErrors from C++
        raise OptionError(
            f"{flag('opset', opset)}: the model cannot be converted from "
            f"{model.opset_imports.get('')}: {_reason(error)}"
        ) from error
    result = read_model(converted)
    _carry_metadata(complete, result)
    return result


def _carry_metadata(old: ir.Model, new: ir.Model) -> None:
    """The converter keeps names but no metadata."""
    new.metadata_props.update(old.metadata_props)
    new.graph.metadata_props.update(old.graph.metadata_props)
    by_output = {out.name: node for node in old.graph.all_nodes() for out in node.outputs if out.name}
    for node in new.graph.all_nodes():
        origin = by_output.get(node.outputs[0].name or "")
        if origin is not None:
            node.metadata_props.update(origin.metadata_props)
            node.outputs[0].metadata_props.update(origin.outputs[0].metadata_props)


_NO_STEP = re.compile(r"No Adapter (?:From|To) Version \$?(\d+) for (\w+)")
_ASSERTION = re.compile(r"^\S+:\d+: \w+: Assertion .* failed: ")


def _reason(error: Exception) -> str:
    """What onnx's converter says, without the C++ assertion around it."""
    text = str(error).strip().partition("\n")[0]
    found = _NO_STEP.search(text)
    if found:
        return f"onnx's converter has no step from version {found[1]} of operator {found[2]}"
    return _ASSERTION.sub("", text)


def _inline_fused(model: ir.Model) -> None:
    """Turn fused functions of an earlier compilation back into standard operators."""
    ir.passes.common.InlinePass(criteria=lambda function: function.domain == SEALED_DOMAIN)(model)
    model.opset_imports.pop(SEALED_DOMAIN, None)
