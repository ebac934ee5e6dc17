"""`pfvm bench --train capture`: how long the capture of a GPT's training step takes, by its number of layers.

Each is measured in a fresh process, by baselines/capture_gpt.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pfvm.errors import PfvmError
from pfvm.tools.console import out, table

LAYERS = (3, 6, 12)


def measure_all(timeout: float) -> list[dict[str, Any]]:
    """{"layers", "parameters", "nodes", "seconds", "cpu_seconds"} of each.

    Raises PfvmError with a process's last words.
    """
    found = []
    for count in LAYERS:
        command = [sys.executable, "-m", "pfvm.tools.bench.baselines.capture_gpt", str(count)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise PfvmError(f"capture of {count} layers: no answer within {timeout:g} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise PfvmError(f"capture of {count} layers: {last[:300]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def print_all(measured: Sequence[dict[str, Any]]) -> None:
    shown = table("capture of a GPT", "parameters", "nodes", "s", "cpu s")
    for row in measured:
        millions = f"{row['parameters'] / 1e6:.1f} M"
        shown.add_row(
            f"{row['layers']} layers", millions, str(row["nodes"]), f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"
        )
    out().print(shown)
