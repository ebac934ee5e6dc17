"""What the tests of the command share: a small model, and the result of a command."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import typing
from collections.abc import Callable, Iterator, Sequence

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,3] x) => (float[n,3] y) <float[3] a = {1,2,3}, float[3] b = {4,5,6}>
{ i = Identity (x)  c = Add (a, b)  y = Mul (i, c) }"""


class Result(typing.NamedTuple):
    """The exit code, and what was printed."""

    code: int
    out: str
    err: str


Pfvm = Callable[..., Result]


def one_line(result: Result) -> str:
    """The message of a failed command: one line, nothing else."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    return result.err


@contextlib.contextmanager
def interruptible(command: Sequence[str], **options: typing.Any) -> Iterator[subprocess.Popen[str]]:
    """A process that Ctrl-C reaches also where the tests run in the background, and that does not outlive its test."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
