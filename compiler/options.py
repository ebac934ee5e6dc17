"""The one schema of options: keyword arguments = command-line flags = option files."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic
from pfvm.errors import NotBuiltError, OptionError, did_you_mean, flag, short
from pfvm.passes import pipeline, schema

from . import mesh

# Options of later versions: in the schema now, a named error until built.
_NOT_BUILT = ("scheduler",)


class Options(pydantic.BaseModel):
    """How to compile. A flag `--opt-level=2` is the field `opt_level`, here and in option files."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True, populate_by_name=True)

    output: pathlib.Path | None = pydantic.Field(
        None,
        validation_alias=pydantic.AliasChoices("output", "out_onnx", "o"),
        description="where to write the compiled model",
    )
    artifacts: pathlib.Path | None = pydantic.Field(
        None,
        validation_alias=pydantic.AliasChoices("artifacts", "codegen_dir"),
        description="folder for model.onnx, pfvm.onnx and passes.json",
    )
    opt_level: Literal[0, 1, 2, 3] = pydantic.Field(
        2,
        validation_alias=pydantic.AliasChoices("opt_level", "O"),
        description="0 reads and writes only, 1 folds and cleans, 2 runs every pass, 3 is 2 for now",
    )
    passes: tuple[str, ...] = pydantic.Field(
        (),
        validation_alias=pydantic.AliasChoices("passes", "pass", "p"),
        description="run this pass, with these options: NAME{option=value}",
    )
    disable: tuple[str, ...] = pydantic.Field((), description="do not run this pass")
    opset: int | None = pydantic.Field(None, description="convert the model to this opset of ai.onnx first")
    verify: bool = pydantic.Field(False, description="run the model after every pass and compare with the original")
    external_data: bool = pydantic.Field(False, description="write the weights to a file beside the model")
    safetensors: bool = pydantic.Field(False, description="write the weights to a safetensors file beside the model")
    max_growth: int | None = pydantic.Field(
        None, ge=0, description="bytes that constant folding may add to the model; else 1 KiB a result, 1 MiB in all"
    )
    fused_ops: Literal["function", "inline"] = pydantic.Field(
        "function", description="fused nodes as calls of model-local functions, or not at all"
    )
    rules: tuple[Any, ...] = pydantic.Field(
        (), description="Python files of rules of one's own, or functions marked with @rule, from pfvm.passes"
    )
    strip_provenance: bool = pydantic.Field(
        False, description="leave out which rule made a node and of what (pfvm.rule and pfvm.from in its metadata)"
    )
    quantize: Literal["dynamic-int8"] | None = pydantic.Field(
        None, description="weights of products as int8, whose data are quantized at each call; prints the accuracy"
    )
    fp16: bool = pydantic.Field(
        False, description="float16 between inputs and outputs, which stay float32; prints the accuracy"
    )
    device: str | None = pydantic.Field(
        None, description="also load the compiled model there: what it cannot run is an error, and nothing is written"
    )
    target: Literal["ort"] | None = pydantic.Field(
        None, description="for this runtime alone: ort may use the operators that only ONNX Runtime has"
    )
    shape: tuple[str, ...] = pydantic.Field((), description="shape of an input on `device`: x=1,3,224,224")
    precision: Literal["default", "high", "highest"] | None = pydantic.Field(
        None, description="of float32 products on `device`, where it has a choice: a TPU's default is bfloat16 operands"
    )
    bf16: bool = pydantic.Field(False, description="compute float32 as bfloat16 on `device` where that is customary")
    effort: Literal["fast", "full"] | None = pydantic.Field(
        None, description="of the compiler for xla:tpu@TOPOLOGY: fast takes a tenth of the time for a worse program"
    )
    timeout: float | None = pydantic.Field(
        None, gt=0, description="seconds that the compiler for xla:tpu@TOPOLOGY may take"
    )
    export: Literal["stablehlo"] | None = pydantic.Field(
        None,
        description="write a portable program for XLA on CPUs, GPUs and TPUs to `output`, a folder, and no ONNX file",
    )
    explain: bool = pydantic.Field(False, description="print what runs where on `device`, and why")
    mesh: str | None = pydantic.Field(
        None, description="spread the model over several devices of `device`: data=2,model=4; the batch over data"
    )
    shard: tuple[str, ...] = pydantic.Field(
        (), description="split weights or state over axes of the mesh: 'linear*.weight=model,None', or auto"
    )
    scheduler: str | None = pydantic.Field(None, description="scheduler of the plan (not built yet)")

    @pydantic.field_validator("opset")
    @classmethod
    def _known_opset(cls, value: int | None) -> int | None:
        if value is not None and not 1 <= value <= schema.newest_opset():
            raise ValueError(f"ai.onnx has opsets 1 to {schema.newest_opset()}, not {value}")
        return value

    @pydantic.field_validator("passes", "disable", "rules", "shape", "shard", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, (str, os.PathLike)) or callable(value) else value

    @pydantic.field_validator("passes")
    @classmethod
    def _known_passes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for spec in value:
            pipeline.parse_spec(spec)
        return value

    @pydantic.field_validator("disable")
    @classmethod
    def _known_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(pipeline.known_name(name) for name in value)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Options:
        for name in _NOT_BUILT:
            if getattr(self, name) not in (None, False):
                elsewhere = "; `pfvm plan` has it" if name == "scheduler" else ""
                raise NotBuiltError(f"{flag(name)} is not built yet in this version of pfvm{elsewhere}")
        if self.quantize is not None and self.fp16:
            raise ValueError("--quantize and --fp16 do not go together: choose one")
        if self.explain and self.device is None:
            raise ValueError("--explain tells what runs where on a device: give --device as well")
        if self.mesh is not None:
            mesh.parse_shard(self.shard, mesh.parse_mesh(self.mesh))
        elif self.shard:
            raise ValueError("--shard says what is split over a mesh: give --mesh as well")
        for name in ("shape", "precision", "bf16", "effort", "timeout", "mesh", "export"):
            if getattr(self, name) not in (None, (), False) and self.device is None:
                raise _NoDevice(name, getattr(self, name))
        return self


def parse(
    source: Options | Mapping[str, Any] | str | os.PathLike | None = None,
    *,
    placeholders: Mapping[str, str] | None = None,
    from_python: bool = False,
    **overrides: Any,
) -> Options:
    """Options from an option file, a mapping or nothing, with `overrides` on top.

    An option file is JSON of the form {"args": ["--flag=value", "--switch"]}; a mapping may hold "args" too.
    `placeholders` replaces `<name>` inside strings: {"codegen_dir": "out"} turns "<codegen_dir>/pfvm.onnx" into
    "out/pfvm.onnx". `from_python`: messages call options by their Python names, and else by their flags.
    Raises OptionError naming the option, and NotBuiltError for an option of a later version.
    """
    if isinstance(source, Options):
        values = source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        values = dict(source)
    elif source is None:
        values = {}
    elif isinstance(source, (str, os.PathLike)):
        values = _read_file(source)
    else:
        raise OptionError(f"options are a mapping, an option file or pfvm.Options, not {short(source)}")
    values = {**from_args(values.pop("args", ())), **values, **overrides}
    values = {key: _substitute(value, placeholders or {}) for key, value in values.items()}
    try:
        return Options.model_validate(values)
    except pydantic.ValidationError as error:
        raise OptionError("; ".join(_describe(item, from_python) for item in error.errors())) from error


def _describe(item: Any, from_python: bool) -> str:
    def called(field: str) -> str:
        return field if from_python else "--" + field.replace("_", "-")

    field = str(item["loc"][0]) if item["loc"] else ""
    name = "-p" if field in ("passes", "pass", "p") and not from_python else called(field)
    if item["type"] == "extra_forbidden":
        known = [called(field) for field in Options.model_fields]
        return f"there is no option {name}{did_you_mean(name, known)}; options: {', '.join(known)}"
    if item["type"] == "value_error":  # a message of our own
        message = _in_python(item["ctx"]["error"]) if from_python else str(item["ctx"]["error"])
        return f"{name}: {message}" if field else message
    return f"{name}: {item['msg']}, not {short(item['input'])}"


def _in_python(error: Exception) -> str:
    """A message of our own with the Python names of the flags in it."""
    message = error.in_python if isinstance(error, _NoDevice) else str(error)
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda match: match[1].replace("-", "_"), message)


class _NoDevice(ValueError):
    """An option of a device, without one."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(f"--{name} is for a device: give --device as well")
        self.in_python = f"{name} is for a device: give device='xla:cpu', say, among the options as well"
        if name == "mesh":
            self.in_python += f"; pfvm.compile takes it as mesh={short(value)}"
        elif name not in ("shape", "export"):
            self.in_python += f"; pfvm.compile takes it as device_options={{{name!r}: {short(value)}}}"


def _read_file(path: str | os.PathLike) -> dict[str, Any]:
    try:
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"option file {path}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"option file {path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise OptionError(f'option file {path} must hold an object such as {{"args": ["--opt-level=2"]}}')
    return data


def from_args(args: Sequence[str]) -> dict[str, Any]:
    """`["--opt-level=2", "--verify"]` → {"opt_level": "2", "verify": True}; a repeated flag collects a tuple."""
    if not isinstance(args, (list, tuple)) or not all(isinstance(arg, str) for arg in args):
        raise OptionError('"args" must be a list of strings such as "--opt-level=2"')
    values: dict[str, Any] = {}
    for arg in args:
        given, equals, text = arg.partition("=")
        name = given.lstrip("-").replace("-", "_")
        if not given.startswith("-") or not name:
            raise OptionError(f"option {arg!r} is not of the form --flag=value")
        if given.startswith("-O") and not equals:
            name, equals, text = "O", "=", given[2:]
        value: Any = text if equals else True
        if name in ("O", "opt_level") and text.isdigit():
            value = int(text)
        if name in ("passes", "pass", "p", "disable", "rules", "shape", "shard"):
            value = (*values.get(name, ()), value)
        values[name] = value
    return values


def _substitute(value: Any, placeholders: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in placeholders.items():
            value = value.replace(f"<{name}>", text)
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_substitute(item, placeholders) for item in value)
    return value
