"""Promise: `pfvm export` works as the manual says."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from cli_support import Pfvm, one_line


def test_export(pfvm: Pfvm, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, target = tmp_path / "program.py", tmp_path / "out.onnx"
    source.write_text("import torch\n\ndef double(x):\n    return x * 2\n\ndef sample():\n    return torch.ones(3)\n")
    result = pfvm("export", f"{source}:double", "-o", target)
    assert result.code == 0, result.err
    assert len(onnx.load(target).graph.node) >= 1


def test_export_freezes_and_leaves_dimensions_open(pfvm: Pfvm, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, target = tmp_path / "net.py", tmp_path / "out.onnx"
    source.write_text(
        "import torch\n\nmodel = torch.nn.Linear(3, 2)\nsample = torch.ones(4, 3)\n\ndef fn(x):\n    return model(x)\n"
    )
    for name, flags, count in (
        ("fn", (), 3),
        ("fn", ("--freeze",), 1),
        ("model", (), 1),
        ("model", ("--no-freeze",), 3),
    ):
        assert pfvm("export", f"{source}:{name}", "-o", target, *flags).code == 0
        assert len(onnx.load(target).graph.input) == count
    assert pfvm("export", f"{source}:fn", "-o", target, "--dynamic", "x:0=batch").code == 0
    assert onnx.load(target).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert "as in x:0=batch" in one_line(pfvm("export", f"{source}:fn", "-o", target, "--dynamic", "x=batch"))


def test_export_without_torch(pfvm: Pfvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "pfvm.compiler.capture.export", raising=False)
    monkeypatch.delitem(vars(sys.modules["pfvm"]), "export", raising=False)
    for text in ("import torch\n", "fn, sample = abs, 1\n"):
        (tmp_path / "net.py").write_text(text)
        assert "pip install 'pfvm[torch]'" in one_line(pfvm("export", f"{tmp_path}/net.py:fn", "-o", "x.onnx"))


def test_check_of_a_function_without_torch(pfvm: Pfvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("torch_case", "torch_state"):
        monkeypatch.delitem(sys.modules, f"pfvm.runtime.{name}", raising=False)
    for text in ("import torch\n", "fn, sample = abs, 1\n"):
        (tmp_path / "net.py").write_text(text)
        assert "pip install 'pfvm[torch]'" in one_line(pfvm("check", f"{tmp_path}/net.py:fn"))


def test_export_errors(pfvm: Pfvm, tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text("def fn(x):\n    return x\n")
    assert "expected FILE.py:FUNCTION" in one_line(pfvm("export", source, "-o", "x.onnx"))
    assert "no such file" in one_line(pfvm("export", "none.py:fn", "-o", "x.onnx"))
    assert "has no 'other'; it has: fn" in one_line(pfvm("export", f"{source}:other", "-o", "x.onnx"))
    assert "has no 'sample'" in one_line(pfvm("export", f"{source}:fn", "-o", "x.onnx"))
    source.write_text("import nowhere_at_all\n")
    assert f"{source}:1: ModuleNotFoundError" in one_line(pfvm("export", f"{source}:fn", "-o", "x.onnx"))
