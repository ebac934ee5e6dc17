"""The gradient of any node that the lowering covers: jax.vjp of its lowering, translated to ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import onnx_ir as ir
from pfvm.compiler.grad.backward import reads
from pfvm.compiler.grad.builder import FIX_SHAPES, Builder
from pfvm.errors import PfvmError, UnsupportedOpError, describe_node
from pfvm.passes.effects import Effect
from pfvm.passes.rewriter import Rewriter

from .context import NeedsValue, Scope
from .interpreter import Interpreter
from .own_settings import own_settings
from .random_keys import Keys
from .schema_functions import SchemaFunctions
from .to_onnx.dims import Dims
from .to_onnx.translate import NoOnnxForm, Translator
from .weights import Weights

# What jax raises for a program without a derivative, and lowering rules for symbolic sizes.
_NOT_DIFFERENTIABLE = (
    TypeError,
    ValueError,
    ArithmeticError,
    NotImplementedError,
    jax.errors.InconclusiveDimensionOperation,
)


class XlaNodeGradient:
    """Implements `pfvm.compiler.grad.backward.NodeGradient` for the nodes of one model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._weights = Weights(model)
        self._schema_functions = SchemaFunctions()
        self._effects = Rewriter(model)

    def __call__(
        self, b: Builder, node: ir.Node, wanted: Sequence[ir.Value], gradients: Mapping[ir.Value, ir.Value]
    ) -> list[ir.Value | None]:
        if self._effects.effect(node) == Effect.RANDOM:
            raise UnsupportedOpError(
                f"{describe_node(node)} draws random numbers or updates statistics (training mode), and has no "
                "gradient here; give a model in inference mode"
            )
        others = [v for v in reads(node) if v not in wanted and self._weights.inline(v) is None and v.name]
        symbols = _Symbols(node)
        given, rest = ([symbols.struct(v) for v in group] for group in (wanted, others))

        def forward(inputs: list[Any], constants: list[Any]) -> list[Any]:
            env = {**dict(zip(others, constants)), **dict(zip(wanted, inputs))}
            return self._evaluate(node, env, list(gradients))

        def pulled(inputs: list[Any], constants: list[Any], cotangents: list[Any]) -> Any:
            _, pull = jax.vjp(lambda *x: forward(list(x), constants), *inputs)
            return pull(cotangents)

        try:
            with own_settings():
                closed = jax.make_jaxpr(pulled)(given, rest, jax.eval_shape(forward, given, rest))
                operands = [*wanted, *others, *gradients.values()]
                found = Translator(b, Dims(b, symbols.sources)).run(closed.jaxpr, closed.consts, operands)
        except NoOnnxForm as error:
            raise UnsupportedOpError(f"the gradient of {describe_node(node)}: {error}") from error
        except NeedsValue as error:
            raise UnsupportedOpError(
                f"the gradient of {describe_node(node)} needs the value of {error.value.name!r} when it is made, and "
                f"that is known only at run time; {FIX_SHAPES}, or make it a constant"
            ) from error
        except PfvmError:
            raise
        except _NOT_DIFFERENTIABLE as error:
            reason = f"{type(error).__name__}: {error}".strip().split("\n")[0]
            advice = f"; {FIX_SHAPES}" if symbols.sources else ""
            raise UnsupportedOpError(f"{describe_node(node)} has no derivative here ({reason}){advice}") from error
        return [_settled(value, like) for value, like in zip(found, wanted)]

    def _evaluate(self, node: ir.Node, env: dict[ir.Value, Any], outputs: list[ir.Value]) -> list[Any]:
        interpreter = Interpreter(
            self._model.functions, self._schema_functions, self._weights, env, frozenset(), Keys(np.zeros(2, np.uint32))
        )
        scope = Scope(self._model.graph.opset_imports, dict(env))
        interpreter.run((node,), scope)
        return [interpreter.read(v, scope) for v in outputs]


def _settled(value: ir.Value, like: ir.Value) -> ir.Value:
    """A gradient has the shape of its value, whose dims have better names than those of the trace."""
    if value.producer() is not None:
        value.shape = like.shape
    return value


class _Symbols:
    """Symbolic dims of the trace for those of the node's operands. `sources`: their names → a value and an axis."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self._scope = jax.export.SymbolicScope()
        self._dims: dict[str, Any] = {}
        self.sources: dict[str, tuple[ir.Value, int]] = {}

    def struct(self, value: ir.Value) -> jax.ShapeDtypeStruct:
        """Raises UnsupportedOpError where the shape is not known."""
        if value.shape is None or value.dtype is None:
            raise UnsupportedOpError(
                f"the gradient of {describe_node(self._node)} needs the shape of {value.name!r}, which is not known; "
                + FIX_SHAPES
            )
        dims = [d if isinstance(d, int) else self._dim(d, value, axis) for axis, d in enumerate(value.shape)]
        return jax.ShapeDtypeStruct(tuple(dims), np.dtype(value.dtype.numpy()))

    def _dim(self, dim: ir.SymbolicDim, value: ir.Value, axis: int) -> Any:
        if dim.value is not None and dim.value.isdecimal():  # shape inference may leave a number as an expression
            return int(dim.value)
        key = dim.value if dim.value is not None else f"{value.name} {axis}"
        if key not in self._dims:
            name = f"d{len(self._dims)}"
            (self._dims[key],) = jax.export.symbolic_shape(name, scope=self._scope)
            self.sources[name] = (value, axis)
        return self._dims[key]
