"""Promise: `pfvm view` shows what there is of a directory, broken, half-written or changing, and names the rest."""

from __future__ import annotations

import http.client
import json
import pathlib
import urllib.parse

import onnx
import pytest
import zstandard
from cli_support import Pfvm
from pfvm.tools.view.data import directory_data
from pfvm.tools.view.folder import labels, open_folder
from pfvm.tools.view.server import serve
from view_support import chain


def shown(folder: pathlib.Path) -> dict:
    """What the page gets, through JSON as a browser reads it."""
    opened = open_folder(folder)
    return json.loads(json.dumps(directory_data(opened, "out"), allow_nan=False))


@pytest.fixture
def artifacts(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with two stages."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("model.onnx", "pfvm.onnx"):
        onnx.save(chain(3), folder / name)
    return folder


@pytest.mark.parametrize("text", ['{"seconds": NaN}', "[" * 100_000, '{"a": 1'], ids=["NaN", "deep", "half"])
def test_what_no_browser_reads_as_json_is_a_message(artifacts: pathlib.Path, text: str) -> None:
    for name in ("passes.json", "report.json"):
        (artifacts / name).write_text(text)
    errors = shown(artifacts)["errors"]
    assert "passes.json: not JSON" in errors["passes"] and "report.json: not JSON" in errors["report"]


def test_a_link_that_leads_to_itself_is_no_file(artifacts: pathlib.Path) -> None:
    (artifacts / "pfvm.onnx").unlink()
    for name in ("pfvm.onnx", "passes.json", "x.log"):
        (artifacts / name).symlink_to(name)
    assert [stage["missing"] for stage in shown(artifacts)["stages"]] == [False, True, True]


def test_models_of_another_version_are_listed(artifacts: pathlib.Path) -> None:
    model = chain(3)
    model.graph.input[0].type.tensor_type.elem_type = 99
    model.graph.initializer.add(name="w", data_type=99, dims=[1])
    content = model.SerializeToString().replace(b"value_0", b"val\xff\xfe_0")  # no UTF-8
    (artifacts / "model.onnx").write_bytes(content)
    (artifacts / "pfvm.onnx").write_bytes(b"")
    exported, compiled, _ = shown(artifacts)["stages"]
    assert exported["tensors"]["x"] == "type 99[2,3]" and exported["nodes"][0]["out"] == ["val\ufffd\ufffd_0"]
    assert "no graph in 0 bytes" in compiled["error"]


def test_a_planned_graph_packed_as_a_stream_or_by_half(artifacts: pathlib.Path) -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress((artifacts / "model.onnx").read_bytes())
    (artifacts / "l3ir_stripped.onnx.zst").write_bytes(packed)
    assert len(shown(artifacts)["stages"][2]["nodes"]) == 3
    (artifacts / "l3ir_stripped.onnx.zst").write_bytes(packed[:-9])
    assert "written by half" in shown(artifacts)["stages"][2]["error"]


def test_a_log_of_another_encoding_hides_no_other(artifacts: pathlib.Path) -> None:
    (artifacts / "a.log").write_bytes(b"caf\xe9\n")
    (artifacts / "b.log").write_text("fine\n")
    assert shown(artifacts)["log"] == [["a.log", "caf\ufffd"], ["b.log", "fine"]]


def test_a_directory_with_a_plan_alone_is_shown(tmp_path: pathlib.Path) -> None:
    for name in ("l3ir.txt", "passes.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        assert shown(folder)["stages"][0]["missing"]


def test_a_directory_of_models_alone_says_what_makes_the_rest(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(chain(1), tmp_path / "m.onnx")
    said = pfvm("view", tmp_path, "--export", tmp_path / "page.html").err
    assert "m.onnx" not in said and "figures come from pfvm compile MODEL --artifacts DIR" in " ".join(said.split())


def test_files_of_one_directory_have_labels_of_their_own(tmp_path: pathlib.Path) -> None:
    files = [tmp_path / folder / name for folder in "ab" for name in ("m.onnx", "n.onnx")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        onnx.save(chain(1), file)
    assert labels([open_folder(file) for file in files]) == [str(file) for file in files]


def test_a_file_that_changes_or_goes_is_read_again(artifacts: pathlib.Path) -> None:
    with serve([open_folder(artifacts)]) as url:
        where = urllib.parse.urlsplit(url)

        def stages() -> list[int]:
            connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
            connection.request("GET", "/data/0")
            return [len(stage["nodes"]) for stage in json.load(connection.getresponse())["stages"]]

        assert stages() == [3, 3, 0]
        onnx.save(chain(5), artifacts / "pfvm.onnx")
        assert stages() == [3, 5, 0]
        (artifacts / "pfvm.onnx").unlink()
        assert stages() == [3, 0, 0]


@pytest.mark.parametrize("path", ["http://[", "/data/" + "9" * 5000, "/data/00", "/%00", "/static/%00"])
def test_an_odd_address_is_refused_quietly(artifacts: pathlib.Path, path: str, capfd: pytest.CaptureFixture) -> None:
    with serve([open_folder(artifacts)]) as url:
        where = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
        connection.request("GET", path, headers={"Host": where.netloc})
        assert connection.getresponse().status in (400, 404)
    assert capfd.readouterr().err == ""


def test_a_name_that_is_no_text_is_a_message_of_the_compiler(pfvm: Pfvm, artifacts: pathlib.Path) -> None:
    content = (artifacts / "model.onnx").read_bytes()
    for name in (b"value_0", b"Relu"):
        (artifacts / "odd.onnx").write_bytes(content.replace(name, b"\xff" * len(name)))
        done = pfvm("compile", artifacts / "odd.onnx", "-o", artifacts / "o.onnx")
        assert done.code == 2 and "is not UTF-8" in done.err
