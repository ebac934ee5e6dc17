"""`pfvm bench --train capture`: how long the capture of a GPT's training step takes, by its number of layers.

Each is measured in fresh processes, in turns, by baselines/capture_gpt.py; the median counts.
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
_ROUNDS = 3


def measure_all(timeout: float) -> list[dict[str, Any]]:
    """{"layers", "parameters", "nodes", "seconds", "cpu_seconds"} of each.

    Raises PfvmError with a process's last words.
    """
    rounds = [[_measure(count, timeout) for count in LAYERS] for _ in range(_ROUNDS)]
    return [sorted(rows, key=lambda row: float(row["cpu_seconds"]))[_ROUNDS // 2] for rows in zip(*rounds)]


def _measure(count: int, timeout: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "pfvm.tools.bench.baselines.capture_gpt", str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise PfvmError(f"capture of {count} layers: no answer within {timeout:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PfvmError(f"capture of {count} layers: {last[:300]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def print_all(measured: Sequence[dict[str, Any]]) -> None:
    shown = table("capture of a GPT", "parameters", "nodes", "s", "cpu s")
    for row in measured:
        millions = f"{row['parameters'] / 1e6:.1f} M"
        shown.add_row(
            f"{row['layers']} layers", millions, str(row["nodes"]), f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"
        )
    out().print(shown)
