"""What the emulator catches: plans that read what is not there, or not theirs, or not what they say it is."""

from __future__ import annotations

from pfvm.errors import PfvmError


class EmulatorError(PfvmError):
    """A plan that is wrong. Names the node, the value and the place."""


class AddressError(EmulatorError):
    """A value outside of its memory, at an address that is none, or away from the value whose memory it names."""


class OverwrittenError(EmulatorError):
    """A value is read after another one was written over it. Names both."""


class UnwrittenError(EmulatorError):
    """A value is read from memory that nobody wrote, or that was written as something else."""


class CopiesError(EmulatorError):
    """The copies of a value are not equal."""


class LocalityError(EmulatorError):
    """A node reads an element that does not lie in the cell which computes with it."""


class PaddingError(EmulatorError):
    """A node reads padding that does not hold what its operator needs, or padding is not what the plan says."""
