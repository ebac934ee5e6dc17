"""Promise: the commands on a PyTorch function, and the viewer of stages, work as the manual says."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from cli_support import TEXT, Pfvm, one_line


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


def test_export_errors(pfvm: Pfvm, tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text("def fn(x):\n    return x\n")
    assert "expected FILE.py:FUNCTION" in one_line(pfvm("export", source, "-o", "x.onnx"))
    assert "no such file" in one_line(pfvm("export", "none.py:fn", "-o", "x.onnx"))
    assert "has no 'other'; it has: fn" in one_line(pfvm("export", f"{source}:other", "-o", "x.onnx"))
    assert "has no 'sample'" in one_line(pfvm("export", f"{source}:fn", "-o", "x.onnx"))
    source.write_text("import nowhere_at_all\n")
    assert f"{source}:1: ModuleNotFoundError" in one_line(pfvm("export", f"{source}:fn", "-o", "x.onnx"))


def test_view_stages(model: Path, tmp_path: Path) -> None:
    from pfvm.errors import OptionError
    from pfvm.tools.view import stages

    (tmp_path / "pfvm.onnx").write_bytes(model.read_bytes())
    assert [p.name for p in stages(tmp_path)] == ["model.onnx", "pfvm.onnx"]
    assert stages(model) == [model]
    with pytest.raises(OptionError, match="no such file or directory"):
        stages(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"no \.onnx file"):
        stages(tmp_path / "empty")


def test_view_unpacks_the_planned_graph(model: Path, tmp_path: Path) -> None:
    import zstandard
    from pfvm.errors import PfvmError
    from pfvm.tools.view import stages, unpacked

    packed = tmp_path / "out" / "l3ir_stripped.onnx.zst"
    packed.parent.mkdir()
    packed.write_bytes(zstandard.ZstdCompressor().compress(model.read_bytes()))
    assert stages(packed.parent) == [packed]
    file = unpacked(packed, tmp_path / "unpacked")
    assert file.name == "l3ir_stripped.onnx" and file.read_bytes() == model.read_bytes()
    packed.write_bytes(b"no zstd")
    with pytest.raises(PfvmError, match="not compressed by zstd"):
        unpacked(packed, tmp_path / "again")


def test_view_serves_every_file_on_this_machine_only(model: Path) -> None:
    pytest.importorskip("netron")
    import urllib.request

    from pfvm.tools.view import serve

    def get(url: str) -> bytes:
        return urllib.request.urlopen(url, timeout=10).read()

    other = model.with_name("other.onnx")
    onnx.save(onnx.parser.parse_model(TEXT.replace("{1,2,3}", "{3,2,1}")), other)
    with serve([model, other], browser=False) as addresses:
        for file, address in zip([model, other], addresses):
            assert address.startswith("http://127.0.0.1:")
            assert f'<meta name="file" content="/data/{file.name}"' in get(address).decode()
            assert get(f"{address}/data/{file.name}") == file.read_bytes()
    with pytest.raises(OSError):
        get(addresses[0])


def test_view_without_netron(pfvm: Pfvm, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'pfvm[view]'" in one_line(pfvm("view", model, "--no-browser"))
