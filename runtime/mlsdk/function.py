"""What Context.compile and compile_automap return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from pfvm.compiler.capture.dtypes import to_torch
from pfvm.compiler.capture.export import Exported
from pfvm.errors import InputError, PfvmError, short
from pfvm.runtime.compiled import CompiledFunction as Compiled

from .backprop import take_extra_inputs
from .io_spec import IOSpec, io_spec
from .proxy import TensorProxy, as_proxy
from .tracing import trace_event


class CompiledFunction:
    """A compiled function: called like the original, with tensors or proxies; results are TensorProxy.

    Raises InputError naming the input, StaleWeightError, and PfvmError once its context was invalidated.
    """

    def __init__(
        self, compiled: Compiled, name: str, automap: bool, optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> None:
        self.name = name
        self._compiled: Compiled | None = compiled
        self._automap = automap
        self._optimizers = optimizers
        self._keys = () if automap else tuple(self.exported.inputs.spec.children()[0].context)
        state = set(self.exported.states) | set(self.exported.numbers)
        self.input_specs: dict[str, IOSpec] = {
            spec.name: io_spec(spec) for spec in compiled.executable.inputs if spec.name not in state
        }
        results = self.exported.outputs.tensor_names
        self.output_specs: dict[str, IOSpec] = {
            spec.name: io_spec(spec) for spec in compiled.executable.outputs if spec.name in results
        }

    @property
    def compiled(self) -> Compiled:
        """The function of `pfvm.compile`."""
        if self._compiled is None:
            raise PfvmError(
                f"{self.name}: its context was invalidated, so it is no longer on the device; compile again"
            )
        return self._compiled

    @property
    def exported(self) -> Exported:
        """What was captured: structure, state and numbers."""
        return self.compiled.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once. A function of a dict reads the keys that it was compiled with, and no others."""
        with trace_event(self.name):
            if not self._automap:
                args = (self._dict(args, kwargs),)
                kwargs = {}
            results = self.compiled(*args, **kwargs)
            if type(results) is dict and all(type(v) is torch.Tensor for v in results.values()):
                return {name: as_proxy(v) for name, v in results.items()}  # the usual case: pytrees cost more than it
            return pytree.tree_map_only(torch.Tensor, as_proxy, results)

    def _dict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) != 1 or kwargs or not isinstance(args[0], Mapping):
            raise InputError(f"{self.name} takes one dict from input names to tensors, not {short(args)}")
        given = take_extra_inputs(args[0], self._optimizers) if self._optimizers else args[0]
        return {name: given[name] for name in self._keys if name in given}

    def allocate_input_proxy(self) -> dict[str, TensorProxy]:
        """Zeros for each input, to be set by `load_from` and handed over at calls. Not for compile_automap."""
        if self._automap:
            raise InputError(
                f"{self.name} was made by compile_automap: its inputs are no dict of tensors; pass tensors"
            )
        specs = {spec.name: spec for spec in self.compiled.executable.inputs}
        zeros = {}
        for name in self.input_specs:
            dtype, shape = specs[name].dtype, specs[name].shape or ()
            assert dtype is not None
            zeros[name] = as_proxy(to_torch(np.zeros([d if isinstance(d, int) else 1 for d in shape], dtype.numpy())))
        return zeros

    def drop(self) -> None:
        """Free what it holds on the device."""
        self._compiled = None

    def __repr__(self) -> str:
        return f"<CompiledFunction {self.name!r}{'' if self._compiled else ', invalidated'}>"
