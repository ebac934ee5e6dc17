"""ONNX's own backend tests on a device, with what each of them needed there.

    python -m pfvm.tools.official_suite DEVICE FILE.json

All that the installed onnx has; nothing is downloaded. The file holds `total`, `passed`, on xla devices
`passed_without_host` (those whose model ran without a host segment), and `tests`: name → why it failed ("" where it
passed) and whether it had a host segment.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import onnx
import onnx.backend.test
from pfvm.runtime.api import load
from pfvm.runtime.executable import Executable
from pfvm.runtime.onnx_backend import PfvmBackend, PfvmRep

_LONGEST = 300


class Result(NamedTuple):
    """Of one test: why it failed ("" where it passed), and whether something of its model ran in a host segment."""

    failure: str
    host: bool


class _Suite(onnx.backend.test.BackendTest):
    """The official runner, which cannot compare scalars in sequences by itself."""

    @classmethod
    def assert_similar_outputs(
        cls,
        ref_outputs: Sequence[Any],
        outputs: Sequence[Any],
        rtol: float,
        atol: float,
        model_dir: str | None = None,
    ) -> None:
        assert len(outputs) == len(ref_outputs), f"{len(outputs)} values, expected {len(ref_outputs)}"
        for expected, actual in zip(ref_outputs, outputs):
            if isinstance(expected, (list, tuple)):
                assert isinstance(actual, (list, tuple)), f"a {type(actual).__name__}, expected a sequence"
                cls.assert_similar_outputs(expected, actual, rtol, atol, model_dir)
            else:
                super().assert_similar_outputs([expected], [actual], rtol, atol, model_dir)


def run_suite(on: str, prefix: str = "test_", loading: Callable[..., Executable] = load) -> dict[str, Result]:
    """Every test whose name starts with `prefix`, on the device `on`, where `loading(model, on)` puts its model."""
    last: list[Any] = []

    class Recorder(PfvmBackend):
        @classmethod
        def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
            return True  # what cannot be loaded has failed

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PfvmRep:
            last[:] = []
            last.append(loading(model, on))
            return PfvmRep(last[0])

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    results = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the tests' data divides by zero
        os.environ["ONNX_HOME"] = folder  # where the runner puts the inputs that it makes up
        for name, case in _cases(_Suite(Recorder, __name__).test_suite):
            if name.startswith(prefix):
                last[:] = []
                results[name] = Result(_failure(case), any(_has_host(executable) for executable in last))
    return results


def _cases(suite: unittest.TestSuite) -> Iterator[tuple[str, unittest.TestCase]]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _cases(each)
        elif each.id().endswith("_cpu"):
            yield each.id().rpartition(".")[2].removesuffix("_cpu"), each


def _failure(case: unittest.TestCase) -> str:
    outcome = unittest.TestResult()
    case.run(outcome)
    problems = [text for _, text in (*outcome.errors, *outcome.failures, *outcome.skipped)]
    if not problems:
        return ""
    text = problems[0]
    start = text.rfind("\n  File ")  # of the traceback's last frame; the message stands behind it and its source line
    message = " ".join(text[start:].splitlines()[3:]) if start >= 0 else text
    return (" ".join(message.split()) or "failed")[:_LONGEST]


def _has_host(executable: Any) -> bool:
    return any(segment.kind == "host" for segment in getattr(executable, "segments", ()))


def summary(device: str, results: dict[str, Result]) -> dict[str, Any]:
    """What the file holds."""
    passed = {name: result for name, result in results.items() if not result.failure}
    counts = {"device": device, "onnx": onnx.__version__, "total": len(results), "passed": len(passed)}
    if device.startswith("xla"):
        counts["passed_without_host"] = sum(not result.host for result in passed.values())
    return {**counts, "tests": {name: result._asdict() for name, result in sorted(results.items())}}


def main(arguments: Sequence[str]) -> int:
    device, path = arguments
    found = summary(device, run_suite(device))
    pathlib.Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{key}: {value}" for key, value in found.items() if key != "tests"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
