"""pfvm.grad: a training step from an inference model alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from pfvm.compiler.forms import Model, in_form_of
from pfvm.compiler.grad.backward import NodeGradient
from pfvm.compiler.grad.optimizers import Settings
from pfvm.compiler.grad.step import Request, make_step
from pfvm.compiler.importer import read_model
from pfvm.errors import MissingExtraError, OptionError, describe_node

from .ort import evaluate


def grad(
    model: Model,
    loss: str | None = None,
    *,
    optimizer: str = "sgd",
    loss_fn: str | None = None,
    params: str | Sequence[str] = (),
    freeze: str | Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    class_axis: int = 1,
    output: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Model:
    """A training step, as one ordinary ONNX model: forward, backward and the optimizer's update; for `pfvm.load`,
    `pfvm.loop`, or any runtime. The argument is not changed.

    model: a path (then `output=` is required, and returned), an onnx.ModelProto or an onnx_ir.Model.
    loss: the output that is the loss, one number; by default the only output that can be.
    optimizer: "sgd", "momentum", "adam" or "adamw"; formulas and defaults are those of torch.optim. `settings` are its
        lr, momentum=0.9, nesterov=False, weight_decay, beta1=0.9, beta2=0.999, eps=1e-8. The learning rate is an input.
    loss_fn: "cross_entropy" or "mse": the loss is this function of the output `loss` and a new input, `target`. For
        cross_entropy the classes are on axis `class_axis`, and an output that comes from a Softmax is taken before it.
    params, freeze: names of the float constants to train, and not to train; `*` matches anything. By default all that
        are weights; running statistics, bounds and single numbers are not.
    shapes: {"x": (8, 3, 224, 224)} fixes the dims of inputs. Symbolic dims stay open where every gradient on the way
        has a form for them; where one has not, the error says so.

    The result has the model's inputs; then as overridable initializers the parameters, the optimizer's state, `lr` and
    `step`; outputs: the loss, the model's own, and a `….new` for every state; and the state manifest that says which is
    which. Models below opset 18 are converted to it.

    Raises OptionError, InvalidModelError, and UnsupportedOpError that names the node without a derivative.
    """
    known = set(Settings.__dataclass_fields__)
    for name in settings:
        if name not in known:
            raise OptionError(f"grad has no option {name!r}; settings of an optimizer: {', '.join(sorted(known))}")
    request = Request(
        loss, loss_fn, optimizer, Settings(**settings), _listed(params), _listed(freeze), dict(shapes or {}), class_axis
    )
    return in_form_of(model, "grad", output, lambda: make_step(read_model(model), request, _general, evaluate))


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _general(model: ir.Model) -> NodeGradient:
    """The gradient of nodes without a rule, through JAX, which is imported when the first of them is met."""
    made: list[NodeGradient] = []

    def gradient(b: Any, node: ir.Node, wanted: Any, gradients: Any) -> Any:
        if not made:
            try:
                from .xla.gradient import XlaNodeGradient
            except ModuleNotFoundError as error:
                if error.name not in ("jax", "jaxlib"):
                    raise
                raise MissingExtraError(f"the gradient of {describe_node(node)}", "xla") from error
            made.append(XlaNodeGradient(model))
        return made[0](b, node, wanted, gradients)

    return gradient
