"""The loss: a scalar output of the model, or a function of an output and a target."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.signature import Interface
from pfvm.errors import InvalidModelError, OptionError, did_you_mean, flag

from .backward import FLOATS
from .builder import FIX_SHAPES, Builder

LOSS_FUNCTIONS = ("cross_entropy", "mse")


def output_for(model: ir.Model, name: str | None, loss_function: str | None) -> ir.Value:
    """The output that is the loss, or that the loss function is applied to.

    Raises OptionError: no such output, several to choose from, or a loss that is no float scalar.
    """
    outputs = {v.name or "": v for v in model.graph.outputs}
    declared = Interface.of(model).declared()
    for each, value in outputs.items():
        if value.shape is None:  # nothing follows from the graph: the file's word is taken
            value.shape = declared[each].shape if each in declared else None
    if loss_function is not None and loss_function not in LOSS_FUNCTIONS:
        raise OptionError(f"there is no loss function {loss_function!r}; there are: {', '.join(LOSS_FUNCTIONS)}")
    if name is None:
        able = [v for v in outputs.values() if v.dtype in FLOATS and (loss_function is not None or _is_scalar(v))]
        if len(able) != 1:
            raise OptionError(
                f"which output is the loss? The model has {', '.join(outputs)}: choose with {flag('loss')}"
                + ("" if loss_function else f", or make one with {flag('loss-fn', 'cross_entropy')}, or mse")
            )
        return able[0]
    if name not in outputs:
        raise OptionError(
            f"the model has no output {name!r}{did_you_mean(name, outputs)}; it has: {', '.join(outputs)}"
        )
    value = outputs[name]
    if value.dtype not in FLOATS:
        kind = value.dtype.name.lower() if value.dtype is not None else "of unknown type"
        raise OptionError(f"output {name!r} is {kind}: a loss is a float")
    if loss_function is None and not _is_scalar(value):
        shape = "of unknown shape" if value.shape is None else f"of shape {list(map(str, value.shape))}"
        raise OptionError(
            f"output {name!r} is {shape.replace(chr(39), '')}, and a loss is one number; "
            f"make one from it with {flag('loss-fn', 'cross_entropy')}, or mse, or {FIX_SHAPES}"
        )
    return value


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and all(d == 1 for d in value.shape)


def add_loss(b: Builder, function: str, output: ir.Value, class_axis: int) -> tuple[ir.Value, ir.Value]:
    """Write the loss function; returns the new input `target` and the loss, a scalar.

    mse: the mean of squared differences; the target has the output's shape and type.
    cross_entropy: the mean of −log softmax(output) at the class that the target names, int64 without the class axis. An
        output that comes from a Softmax is a probability already: then its operand is taken, along its axis.
    """
    target = ir.Value(name=b.unique("target"))
    if function == "mse":
        target.type, target.shape = output.type, output.shape
        loss = b.op("ReduceMean", b.square(b.sub(output, target)), keepdims=0)
    else:
        loss = _cross_entropy(b, output, target, class_axis)
    b.model.graph.inputs.append(target)
    return target, loss


def _cross_entropy(b: Builder, output: ir.Value, target: ir.Value, axis: int) -> ir.Value:
    producer = output.producer()
    logits = output
    if producer is not None and producer.op_type in ("Softmax", "LogSoftmax") and producer.domain == "":
        operand = producer.inputs[0]
        assert operand is not None
        logits, axis = operand, producer.attributes.get_int("axis", -1)
    if logits.shape is None or not -len(logits.shape) <= axis < len(logits.shape):
        raise InvalidModelError(
            f"cross_entropy needs an output with a class axis {axis}, and {output.name!r} is of shape "
            f"{'unknown' if logits.shape is None else list(map(str, logits.shape))}; see {flag('class-axis')}"
        )
    axis %= len(logits.shape)
    target.type = ir.TensorType(ir.DataType.INT64)
    target.shape = ir.Shape([d for i, d in enumerate(logits.shape) if i != axis])
    chosen = b.op(
        "GatherElements", b.op("LogSoftmax", logits, axis=axis), b.op("Unsqueeze", target, b.ints(axis)), axis=axis
    )
    return b.op("Neg", b.op("ReduceMean", chosen, keepdims=0))


def scalar(b: Builder, loss: ir.Value) -> ir.Value:
    """The loss without its axes of size 1."""
    return loss if not loss.shape else b.op("Reshape", loss, b.ints())
