"""`pfvm:cpu` and `pfvm:cuda`: a model in ONNX Runtime, called with arrays of every element type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler.importer import is_placeholder
from pfvm.errors import UnsupportedOpError

from .executable import TensorSpec, check_feeds, representation, specs_of
from .ort_errors import run_error
from .ort_expand.expander import expandable
from .ort_expand.kernels import kernel_versions
from .ort_forms.apply import with_fast_forms
from .ort_forms.scaled_sums import own_shapes
from .ort_session import open_session, run_values, session_options
from .ort_values import FLOAT4, RAW_TYPES, as_codes, from_codes, from_ort, is_extension, reshaped, to_ort

if TYPE_CHECKING:
    import onnxruntime


class OrtExecutable:
    """A model in an ONNX Runtime session.

    model: an ir.Model (not changed), a path, or the bytes of a file.
    threads: threads inside an operator; None leaves the choice to ONNX Runtime (the number of cores).
    custom_ops_library: path of a shared library with custom operators.
    optimize: False runs the graph exactly as written (the oracle's setting); else ONNX Runtime optimizes it, after
        what pfvm knows better (see `pfvm.runtime.ort_forms`).
    integer_kernels: True lets QuantizeLinear/DequantizeLinear groups run on int8 kernels: faster, and a quantization
        step off here and there. By default such a graph computes in float, as it is written.
    expand: express what ONNX Runtime lacks (an operator, an opset, a type) by what it has, where `model` is an
        ir.Model; see `pfvm.runtime.ort_expand`. False leaves the graph exactly as written.
    spinning: whether idle threads wait busily; None leaves it to ONNX Runtime, which does.
    device: "pfvm:cpu" or "pfvm:cuda"; on a GPU, what ONNX Runtime has no CUDA kernel for runs on the CPU.

    Raises UnsupportedOpError (unknown operator, no kernel), InvalidModelError, OptionError (bad library), and
    NoDeviceError.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str] | bytes,
        *,
        threads: int | None = None,
        custom_ops_library: str | os.PathLike[str] | None = None,
        optimize: bool = True,
        integer_kernels: bool = False,
        expand: bool = True,
        spinning: bool | None = None,
        device: str = "pfvm:cpu",
    ) -> None:
        self.device = device
        self._model = model if isinstance(model, ir.Model) else None
        options = session_options(
            threads=threads, custom_ops_library=custom_ops_library, optimize=optimize, spinning=spinning
        )
        if isinstance(model, ir.Model) and optimize and expand and device == "pfvm:cpu":
            loaded: Any = with_fast_forms(model)
        else:
            loaded = model
        # The session borrows the memory of large weights.
        self._session, self._memory = open_session(loaded, options, integer_kernels, self.device, expand)
        if isinstance(model, ir.Model):
            self.inputs, self.optional_inputs, self.outputs = specs_of(model)
        else:
            self.inputs = tuple(_session_spec(v) for v in self._session.get_inputs())
            self.optional_inputs = tuple(_session_spec(v) for v in self._session.get_overridable_initializers())
            self.outputs = tuple(_session_spec(v) for v in self._session.get_outputs())
        self._output_names = [s.name for s in self.outputs]
        self._own_shapes = own_shapes(loaded) if isinstance(loaded, ir.Model) else {}
        self._coded = self._coded_names()
        self._raw_outputs = any(_is_raw(v.type) for v in self._session.get_outputs())

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Feeds and results by name, as the Executable protocol says; safe from several threads."""
        values = check_feeds(self.inputs, self.optional_inputs, feeds)
        raw = self._raw_outputs or any(_is_raw_array(v) for v in values.values())
        if raw:
            self._refuse_mixture(values)
        try:
            if raw:
                arguments = {name: to_ort(as_codes(v) if name in self._coded else v) for name, v in values.items()}
                results = [from_ort(v) for v in self._session.run_with_ort_values(self._output_names, arguments)]
            else:
                results = self._session.run(self._output_names, {n: _plain(v) for n, v in values.items()})
        except Exception as error:
            raise run_error(error, self._model, self.device) from error
        outputs = dict(zip(self._output_names, results))
        outputs |= {name: outputs[name].reshape(shape) for name, shape in self._own_shapes.items()}
        return outputs | {n: from_codes(outputs[n]) for n in self._coded if n in outputs} if self._coded else outputs

    def run_on_device(
        self, feeds: Mapping[str, Any], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """A call with `feeds` as arrays, `state` as OrtValues of the right types and shapes; results are OrtValues."""
        given_optional = [spec for spec in self.optional_inputs if spec.name in feeds]
        values = check_feeds([spec for spec in self.inputs if spec.name not in state], given_optional, feeds)
        arguments = {name: to_ort(as_codes(v) if name in self._coded else v) for name, v in values.items()}
        try:
            results = run_values(self._session, self._output_names, {**arguments, **state})
        except Exception as error:
            raise run_error(error, self._model, self.device) from error
        outputs = dict(zip(self._output_names, results))
        return outputs | {name: reshaped(outputs[name], shape) for name, shape in self._own_shapes.items()}

    def _coded_names(self) -> frozenset[str]:
        """Inputs and outputs of float4, which the session has as uint4 after expansion."""
        float4 = {s.name for s in (*self.inputs, *self.optional_inputs, *self.outputs) if s.dtype == FLOAT4}
        values = (*self._session.get_inputs(), *self._session.get_overridable_initializers())
        return frozenset(
            v.name for v in (*values, *self._session.get_outputs()) if v.name in float4 and "uint4" in v.type
        )

    def __repr__(self) -> str:
        return representation(self.device, self.inputs, self.outputs)

    def _refuse_mixture(self, values: Mapping[str, Any]) -> None:
        """ORT's Python interface has two ways in: one without bfloat16 and the like, one without these."""
        for name, value in values.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind in "OUST":
                raise UnsupportedOpError(
                    f"{self.device}: input {name!r} is a sequence, an optional or strings, which ONNX Runtime cannot "
                    "take together with bfloat16, float8 or int4 tensors; cast those to another type inside the model"
                )


def evaluate(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the graph once exactly as written, on one thread: for constant folding and as the oracle."""
    return OrtExecutable(model, threads=1, optimize=False, expand=False)(feeds)


def supported_ops() -> dict[tuple[str, str], tuple[int, ...]]:
    """(domain, operator) → the opset versions from which it runs: with a CPU kernel, or expanded to operators with one.

    Domain "" is ai.onnx.
    """
    found = kernel_versions()
    for key, versions in expandable().items():
        found[key] = found.get(key, set()) | versions
    return {key: tuple(sorted(found[key])) for key in sorted(found)}


def _is_raw(type_text: str) -> bool:
    dtype = _dtype(type_text.removeprefix("tensor(").removesuffix(")"))
    return type_text.startswith("tensor(") and dtype in RAW_TYPES


def _plain(value: Any) -> Any:
    """numpy's own variable-width and byte strings as objects, the one form of strings that ORT takes with any text."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "T":
        return value.astype(object)
    if isinstance(value, np.ndarray) and value.dtype.kind == "S":
        return np.char.decode(value, "utf-8").astype(object)
    return value


def _is_raw_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_extension(value)


def _session_spec(value: onnxruntime.NodeArg) -> TensorSpec:
    """The spec that ORT itself reports; its types read "tensor(float)", "seq(tensor(int64))", "map(string,…)"."""
    text, kinds = value.type, []
    for prefix, kind in (("optional(", "optional"), ("seq(", "sequence"), ("map(", "map")):
        if text.startswith(prefix):
            kinds.append(kind)
            text = text.removeprefix(prefix).removesuffix(")")
    is_tensor = text.startswith("tensor(") and "map" not in kinds
    dtype = _dtype(text.removeprefix("tensor(").removesuffix(")")) if is_tensor else None
    shape = (
        tuple(None if not isinstance(d, int) and is_placeholder(d) else d for d in value.shape)
        if is_tensor and not kinds and value.shape is not None
        else None
    )
    return TensorSpec(value.name, dtype, shape, " ".join(kinds) or "tensor")


def _dtype(text: str) -> ir.DataType | None:
    return ir.DataType.__members__.get(text.upper())
