"""Compile every model of some folders twice, and the result once more: the bytes must not change.

    python -m pfvm.tools.recompile DIR|FILE…

Prints one line per model that is not deterministic or not idempotent, then the counts; exits with 1 if there is one.
Files that pfvm refuses with a named error are counted apart.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator, Sequence

import onnx_ir as ir
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import Source, read_model
from pfvm.compiler.options import parse
from pfvm.errors import PfvmError
from pfvm.runtime.api import compile_source


def compiled_bytes(source: Source) -> bytes:
    """The compiled model as the bytes of a file that holds its own weights."""
    model = read_model(source)
    ir.external_data.load_to_model(model)
    return to_proto(compile_source(model, parse()).model).SerializeToString(deterministic=True)


def verdict(path: pathlib.Path) -> str:
    """`same`, `differs when compiled twice`, `changes when compiled again`, or `refused: …`."""
    try:
        first = compiled_bytes(path)
    except PfvmError as error:
        return f"refused: {error}"
    if compiled_bytes(path) != first:
        return "differs when compiled twice"
    try:
        return "same" if compiled_bytes(first) == first else "changes when compiled again"
    except PfvmError as error:
        return f"its output cannot be compiled: {error}"


def _models(arguments: Sequence[str]) -> Iterator[pathlib.Path]:
    for argument in arguments:
        path = pathlib.Path(argument)
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def main(arguments: Sequence[str]) -> int:
    counts = {"same": 0, "refused": 0, "not stable": 0}
    for path in _models(arguments):
        result = verdict(path)
        kind = result if result == "same" else "refused" if result.startswith("refused") else "not stable"
        counts[kind] += 1
        if kind == "not stable" or not path.exists():
            print(f"{path}: {result}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["not stable"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
