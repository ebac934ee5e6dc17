"""The device of a Context."""

from __future__ import annotations

import re
from typing import Any

from pfvm.errors import NoDeviceError
from pfvm.runtime.device import Device, parse_device

# Strings of the MLSDK → the device that will run them.
_ALIASES = {"emu2": "mncore2:emu"}
_BOARD = re.compile(r"mncore2:[0-7]")


class MNDevice:
    """A device: "pfvm:cpu", "xla:cpu" or another of `pfvm.devices()`.

    The boards "mncore2:0" … and "emu2" are emulated. Raises OptionError for an unknown string, NoDeviceError,
    MissingExtraError.
    """

    def __init__(self, device: str) -> None:
        name: Any = device
        if isinstance(device, str):
            name = "mncore2:auto" if _BOARD.fullmatch(device) else _ALIASES.get(device, device)
        self.device: Device = parse_device(name)
        try:
            self.device.require()
        except NoDeviceError as error:
            raise NoDeviceError(f"MNDevice({device!r}): {error}") from None
        self.name = str(device)

    def __repr__(self) -> str:
        return f"MNDevice({self.name!r})"
