"""What a compiled function takes and gives, and whether one's result can be another's input as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pfvm.errors import OptionError, did_you_mean, short
from pfvm.runtime.executable import TensorSpec


@dataclass(frozen=True)
class IOSpec:
    """Element type ("float") and shape of one input or output; in memory it is dense and row-major."""

    dtype: str
    shape: tuple[int | str | None, ...]

    def is_memcopyable_to(self, other: IOSpec) -> bool:
        """Whether a value of this spec can be handed to `other` without a conversion."""
        return self == other

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def io_spec(spec: TensorSpec) -> IOSpec:
    """The IOSpec of an executable's input or output."""
    return IOSpec(spec.dtype.name.lower() if spec.dtype is not None else "any", spec.shape or ())


def check_constraints(
    constraints: Mapping[str, IOSpec], inputs: Mapping[str, IOSpec], outputs: Mapping[str, IOSpec]
) -> None:
    """Raises OptionError where an input or output is not what another function needs it to be."""
    own = {**inputs, **outputs}
    for name, wanted in constraints.items():
        if not isinstance(wanted, IOSpec):
            raise OptionError(
                f"io_spec_constraints[{name!r}] is an IOSpec, as in other.input_specs, not {short(wanted)}"
            )
        if name not in own:
            known = ", ".join(own)
            raise OptionError(
                f"io_spec_constraints: no input or output is named {name!r}{did_you_mean(name, own)}: {known}"
            )
        if not own[name].is_memcopyable_to(wanted):
            raise OptionError(f"io_spec_constraints: {name!r} is {own[name]}, but {wanted} is asked of it")
