"""What `pfvm view` may read: the files of one artifacts directory by name, and nothing that a link leads to outside."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pfvm.errors import OptionError, PfvmError


class StageFile(NamedTuple):
    """A stage: its key, the title that a reader sees, the file."""

    key: str
    title: str
    file: str


STAGES = (
    StageFile("exported", "Exported", "model.onnx"),
    StageFile("compiled", "Compiled", "pfvm.onnx"),
    StageFile("planned", "Planned", "l3ir_stripped.onnx.zst"),
)
"""The stages of an artifacts directory, in the order in which the compiler writes them."""

OTHERS = ("passes.json", "report.json", "l3ir.txt")
"""What makes an artifacts directory of one without a stage."""


@dataclass(frozen=True)
class Folder:
    """An artifacts directory, or a model file alone. `stages` are those that it should have."""

    path: Path
    stages: tuple[StageFile, ...]

    def find(self, name: str) -> Path | None:
        """The file of that name, None where there is none or a link leads out of the directory."""
        try:
            root = self.path.resolve()
            file = (root / name).resolve()
        except RuntimeError:  # a link that leads to itself
            return None
        return file if file.parent == root and file.is_file() else None

    def read(self, name: str) -> bytes | None:
        """The content of a file. Raises PfvmError where it cannot be read."""
        file = self.find(name)
        try:
            return None if file is None else file.read_bytes()
        except OSError as error:
            raise PfvmError(f"cannot read {self.path / name}: {error.strerror}") from error

    def read_text(self, name: str) -> str | None:
        """A text file. Raises PfvmError where it is no UTF-8."""
        content = self.read(name)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise PfvmError(f"{self.path / name}: not UTF-8 text") from error

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file. Raises PfvmError where it is none; NaN is none, which a browser cannot read."""
        text = self.read_text(name)
        if text is None:
            return None
        try:
            content = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise PfvmError(f"{self.path / name}: not JSON: {error}") from error
        if not isinstance(content, dict):
            raise PfvmError(f"{self.path / name}: expected a JSON object")
        return content

    def model_bytes(self, stage: StageFile) -> bytes | None:
        """A stage as an ONNX file, unpacked. Raises PfvmError where a .zst is broken."""
        content = self.read(stage.file)
        return content if content is None or not stage.file.endswith(".zst") else _unpacked(content, stage.file)

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Names, sizes and times of the files: another value once any of them has changed."""
        try:
            with os.scandir(self.path) as entries:
                found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        except OSError:  # gone, or going: what is read next says so
            return ()
        return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))

    def logs(self) -> list[str]:
        """The names of the log files, sorted."""
        return sorted(file.name for file in self.path.glob("*.log") if self.find(file.name))


def open_folder(path: Path) -> Folder:
    """The artifacts directory, or the directory of a model file with that one stage. Raises OptionError."""
    if path.is_file():
        return Folder(path.parent, (StageFile("exported", path.name, path.name),))
    if not path.is_dir():
        raise OptionError(f"{path}: no such file or directory")
    if any((path / name).is_file() for name in (*(stage.file for stage in STAGES), *OTHERS)):
        return Folder(path, STAGES)
    others = sorted(path.glob("*.onnx"))
    if not others:
        raise OptionError(
            f"{path}: no .onnx file in this directory; pfvm compile MODEL --artifacts DIR makes one to view"
        )
    return Folder(path, tuple(StageFile(f"file{i}", file.name, file.name) for i, file in enumerate(others)))


def labels(folders: Sequence[Folder]) -> list[str]:
    """A short name for each: the last part of its path, the whole path where that is not unique."""
    alone = [folder.stages[0].title if len(folder.stages) == 1 else None for folder in folders]
    short = [title or folder.path.resolve().name for folder, title in zip(folders, alone)]
    whole = [str(folder.path / (title or "")) for folder, title in zip(folders, alone)]
    return short if len(set(short)) == len(short) else whole


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _unpacked(content: bytes, name: str) -> bytes:
    import zstandard

    stream = zstandard.ZstdDecompressor().decompressobj()  # which needs no size in the header
    try:
        unpacked = stream.decompress(content)
    except zstandard.ZstdError as error:
        raise PfvmError(f"{name}: not compressed by zstd: {error}") from error
    if not stream.eof:
        raise PfvmError(f"{name}: it ends too early: written by half")
    return unpacked
