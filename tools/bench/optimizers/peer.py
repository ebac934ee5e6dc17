"""One optimizer on one file, in a fresh process: `PYTHON peer.py NAME IN OUT`, or `PYTHON peer.py versions`.

This file runs in the peers' own environment, so it imports nothing of pfvm but for the optimizer of that name.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any


def _load_save(given: str, result: str) -> None:
    """What every optimizer does at least."""
    import onnx

    onnx.save(onnx.load(given), result)


def _pfvm(given: str, result: str, *options: str) -> None:
    """As `pfvm compile -q`, without the table that no other is asked for; that the command line is imported counts."""
    import pfvm.tools.cli

    sys.argv = ["pfvm", "compile", given, "-o", result, "-q", *options]
    try:
        pfvm.tools.cli.main()
    except SystemExit as end:
        if end.code:
            raise


def _pfvm_ort(given: str, result: str) -> None:
    _pfvm(given, result, "--target", "ort")


def _onnxsim(given: str, result: str) -> None:
    import onnx
    import onnxsim

    model, correct = onnxsim.simplify(given)
    if not correct:
        raise RuntimeError("onnxsim's own check failed")
    onnx.save(model, result)


def _onnxslim(given: str, result: str) -> None:
    import onnxslim

    if onnxslim.slim(given, result) is not None:
        raise RuntimeError("OnnxSlim returned a model and wrote none")


def _onnxoptimizer(given: str, result: str) -> None:
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(given)), result)


def _onnxscript(given: str, result: str) -> None:
    import onnx_ir
    import onnxscript.optimizer
    import onnxscript.rewriter

    model: Any = onnx_ir.load(given)
    onnxscript.optimizer.optimize(model)
    onnx_ir.save(onnxscript.rewriter.rewrite(model), result)


RUNS: dict[str, Callable[[str, str], None]] = {
    "load+save": _load_save,
    "pfvm": _pfvm,
    "pfvm-ort": _pfvm_ort,
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxoptimizer": _onnxoptimizer,
    "onnxscript": _onnxscript,
}


def versions() -> dict[str, str]:
    """Of the packages that this environment has."""
    found = {}
    for package in (*RUNS, "onnx", "onnxruntime"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["versions"]:
        print(json.dumps(versions()))
    else:
        RUNS[sys.argv[1]](sys.argv[2], sys.argv[3])
