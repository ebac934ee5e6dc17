"""A model as one StableHLO program for CPUs, NVIDIA GPUs and TPUs at once, lowered by jax.export without any of them.

    f(inputs…, state…, weights…, entropy) → outputs…[, finding]        one variant for each platform inside

The manifest lists the names of the arguments in order. State is an argument like a weight, and the outputs that replace
it have the memory of the old one: `donated`. A finding is that of the checks of indices (see `range_checks`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jaxlib
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.compiler.signature import read_manifest
from pfvm.errors import PfvmError, UnsupportedOpError, describe_node, flag
from pfvm.runtime.executable import TensorSpec, specs_of
from pfvm.runtime.synthesis import input_shapes

from .context import NeedsValue, Scope, locate
from .host_nodes import data_dependent, host_nodes
from .interpreter import Interpreter
from .open_dims import OPEN
from .own_settings import own_settings
from .platforms import PLATFORMS, Precision, lowering_for
from .random_keys import ENTROPY, Keys
from .range_checks import RangeChecks
from .schema_functions import SchemaFunctions
from .specialize import Specialization, backward_slice
from .support import check_supported
from .weights import Weights

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"mod", "floordiv", "max", "min", "non_negative"}  # of jax's language of dimensions


@dataclasses.dataclass(frozen=True, eq=False)
class Portable:
    """`manifest` is JSON; `program` what jax.export serializes; `text` the same as MLIR; `weights` by name."""

    manifest: dict[str, Any]
    program: bytes
    text: str
    weights: dict[str, np.ndarray]


def export_portable(
    model: ir.Model, shapes: Mapping[str, Sequence[int]] | None = None, precision: Precision | None = None
) -> Portable:
    """shapes: of inputs whose dimensions shall not stay open, by name. precision: of float32 products on GPUs and TPUs.

    Raises UnsupportedOpError where something would have to run on the host, or where a dimension cannot stay open.
    """
    reasons = host_nodes(model)
    check_supported(model, "StableHLO")  # names what has no lowering at all
    if reasons:
        node, why = next(iter(reasons.items()))
        raise UnsupportedOpError(
            f"{describe_node(node)} has to run on the host ({why}), and a StableHLO program has no host segments: run "
            "the ONNX file, or take that node out of the model"
        )
    return _Exporter(model, shapes or {}, precision).export()


class _Exporter:
    def __init__(self, model: ir.Model, shapes: Mapping[str, Sequence[int]], precision: Precision | None) -> None:
        self._model = model
        self._precision = precision
        self._weights = Weights(model)
        self._required, optional, self._outputs = specs_of(model)
        state = {v.name for v in self._weights.state}
        self._optional = tuple(spec for spec in optional if spec.name in state)
        inputs = {v.name: v for v in model.graph.inputs}
        self._inputs = [inputs[spec.name] for spec in (*self._required, *self._optional)]
        self._constants = [v for v in self._weights.arguments() if v not in self._weights.state]
        self._updates = {e.name: e.output for e in read_manifest(model) if e.output}
        self._schema_functions = SchemaFunctions()
        self._forced = Specialization()
        self._messages: list[str] = []
        self._structs, self._open = self._input_structs(shapes)

    def export(self) -> Portable:
        names = self._constant_names()
        structs = [
            *self._structs,
            *(self._weights.struct(v) for v in (*self._inputs[len(self._required) :], *self._constants)),
            ENTROPY,
        ]
        try:
            with own_settings():
                exported = jax.export.export(jax.jit(self._program, keep_unused=True), platforms=PLATFORMS)(*structs)
        except _NeedsHost as error:
            raise UnsupportedOpError(str(error)) from None
        except Exception as error:
            if not self._open:
                raise
            raise UnsupportedOpError(
                f"the dimension{'s' * (len(self._open) > 1)} {', '.join(self._open)} cannot stay open in a StableHLO "
                f"program of this model; fix the shape: {flag('shape', self._example())} ({_first_line(error)})"
            ) from error
        state = [spec.name for spec in self._optional]
        weights = {name: self._weights.read(value) for name, value in zip(names, self._constants)}
        weights.update((v.name or "", self._weights.read(v)) for v in self._inputs[len(self._required) :])
        arguments = [*(s.name for s in self._required), *state, *names]
        manifest = {
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "inputs": [_described(s._replace(shape=d)) for s, d in zip(self._required, self._dims)],
            "state": [{**_described(spec), **self._entry(spec.name)} for spec in self._optional],
            "outputs": [_described(spec) for spec in self._outputs],
            "arguments": [*arguments, None],
            "donated": [name for name in state if name in self._updates],
            "checks": self._messages,
            "platforms": list(exported.platforms),
            "calling_convention": exported.calling_convention_version,
        }
        return Portable(manifest, bytes(exported.serialize()), exported.mlir_module(), weights)

    def _entry(self, name: str) -> dict[str, Any]:
        entries = [e for e in read_manifest(self._model) if e.name == name]
        return dataclasses.asdict(entries[0]) if entries else {}

    def _input_structs(self, shapes: Mapping[str, Sequence[int]]) -> tuple[list[Any], list[str]]:
        """The types of required inputs, and the names of dimensions that stay open."""
        fixed = input_shapes(self._model, shapes)
        sizes = {
            dim: size
            for spec in self._required
            for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()))
            if isinstance(dim, str)
        }
        scope = jax.export.SymbolicScope()
        names: dict[str, str] = {}
        structs = []
        self._dims: list[tuple[int | str | None, ...]] = []
        for spec, value in zip(self._required, self._inputs):
            dtype = np.dtype(spec.dtype.numpy()) if spec.dtype is not None else None
            if dtype is None or (spec.shape is None and fixed[spec.name] is None):
                raise UnsupportedOpError(
                    f"input {spec.name!r} ({spec}) has no type to export a program for; "
                    f"give {flag('shape', f'{spec.name}=…')}"
                )
            dims: Sequence[Any] = fixed[spec.name] or tuple(
                sizes.get(d, d) if isinstance(d, str) else d for d in spec.shape or ()
            )
            self._dims.append(tuple(dims))
            parts = [d if isinstance(d, int) else self._symbol(names, d, value, i) for i, d in enumerate(dims)]
            shape = jax.export.symbolic_shape(f"({','.join(map(str, parts))},)", scope=scope) if parts else ()
            structs.append(jax.ShapeDtypeStruct(shape, dtype))
        return structs, list(names)

    def _symbol(self, names: dict[str, str], dim: str | None, value: ir.Value, axis: int) -> str:
        """A dimension's name as jax takes it: the model's where it can be."""
        key = dim if dim is not None else f"{value.name}.{axis}"
        fits = _NAME.fullmatch(key) and key not in _WORDS
        return names.setdefault(key, key if fits else f"d{len(names)}_")

    def _example(self) -> str:
        spec = next(s for s in self._required if not s.is_fixed)
        return f"{spec.name}={','.join(str(d) if isinstance(d, int) else '8' for d in spec.shape or ())}"

    def _constant_names(self) -> list[str]:
        """One for each; two bodies may have constants of one name."""
        taken = {v.name for v in self._inputs}
        names = []
        for value in self._constants:
            name, number = str(value.name), 1
            while name in taken:
                name, number = f"{value.name}#{number}", number + 1
            taken.add(name)
            names.append(name)
        return names

    def _program(self, *arguments: Any) -> Any:
        """Traced by jax.export: for each platform, what the rules write for it."""
        variants = {p: (lambda *given, p=p: self._traced(p, given)) for p in PLATFORMS}
        return lax.platform_dependent(*arguments, **variants)

    def _traced(self, platform: str, arguments: Sequence[Any]) -> list[Any]:
        while True:
            try:
                precision = None if platform == "cpu" else self._precision
                with lowering_for(platform, precision, OPEN if self._open else platform):
                    return self._evaluated(arguments)
            except NeedsValue as request:
                self._specialise(request)

    def _evaluated(self, arguments: Sequence[Any]) -> list[Any]:
        inputs, weights = arguments[: len(self._inputs)], arguments[len(self._inputs) : -1]
        checks = RangeChecks()
        interpreter = Interpreter(
            self._model.functions,
            self._schema_functions,
            self._weights,
            dict(zip(self._constants, weights)),
            self._forced.forced,
            Keys(arguments[-1]),
            checks,
        )
        given = dict(zip(self._inputs, inputs))
        scope = Scope(self._model.graph.opset_imports, dict(given))
        interpreter.run(self._model.graph, scope)
        results = [jnp.asarray(interpreter.read(v, scope)) for v in self._model.graph.outputs]
        self._messages = checks.messages
        if not checks.total.items:
            return results
        finding = checks.total.first()
        old = {self._updates[v.name]: x for v, x in given.items() if v.name in self._updates}
        names = [v.name for v in self._model.graph.outputs]
        kept = [jnp.where(finding[0] == 0, r, old[n]) if n in old else r for n, r in zip(names, results)]
        return [*kept, finding]

    def _specialise(self, request: NeedsValue) -> None:
        """Grow what is computed when the program is traced. Raises where that would take the value of an input."""
        option: NeedsValue | None = request
        while option is not None:
            needed = backward_slice(option, self._weights, dict(self._model.functions))
            if not needed.inputs and self._forced.add(needed):
                return
            option = option.otherwise
        needed = backward_slice(request, self._weights, dict(self._model.functions))
        names = ", ".join(sorted(repr(v.name) for v in needed.inputs)) or repr(request.value.name)
        where = locate(request.node, request.scope)
        if request.error is not None or data_dependent(request.node):
            what = request.error or f"{where} has a result whose shape follows from the data of {names}"
            raise _NeedsHost(
                f"{what}; a StableHLO program has no host segments: run the ONNX file, or take that node out of the "
                "model"
            )
        raise _NeedsHost(
            f"{where} needs the value of {request.value.name!r} when the program is made, and it depends on {names}, "
            "which every call gives; make that a constant of the model"
        )


class _NeedsHost(Exception):
    """What no StableHLO program can do, whatever the shapes are."""


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": spec.dtype.name if spec.dtype is not None else None,
        "shape": None if spec.shape is None else list(spec.shape),
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, PfvmError) else f"{type(error).__name__}: {text}"
