"""Promise: the server of `pfvm view` answers its own page only, with files of the directory only."""

from __future__ import annotations

import http.client
import json
import pathlib
import urllib.parse
from collections.abc import Mapping

import onnx
import pytest
import zstandard
from cli_support import Pfvm, one_line
from pfvm.errors import OptionError
from pfvm.tools.view.data import directory_data
from pfvm.tools.view.folder import labels, open_folder
from pfvm.tools.view.pass_diff import pass_diffs
from pfvm.tools.view.server import serve
from view_support import HOSTILE, chain


def get(url: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, content and headers of a request whose path is sent as it is."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
    connection.request("GET", path, headers=dict(headers or {}))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, dict(response.getheaders())


@pytest.fixture
def artifacts(pfvm: Pfvm, model: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """What `pfvm compile --artifacts` leaves."""
    folder = tmp_path / "out"
    assert pfvm("compile", model, "--artifacts", folder).code == 0
    return folder


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_other_hosts_and_origins_are_refused(artifacts: pathlib.Path, headers: Mapping[str, str]) -> None:
    with serve([open_folder(artifacts)]) as url:
        for path in ("/", "/data/0", "/netron/0/exported/data/model.onnx"):
            status, content, _ = get(url, path, headers)
            assert status == 403 and b"x" not in content.split()
            assert get(url, path, {"Origin": url.rstrip("/")})[0] == 200


def test_only_files_of_the_directory_are_read(artifacts: pathlib.Path, tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"passes": ["secret"]}')
    (artifacts / "report.json").symlink_to(secret)
    (artifacts / "run.log").symlink_to(secret)
    with serve([open_folder(artifacts)]) as url:
        data = json.loads(get(url, "/data/0")[1])
        assert data["report"] is None and b"secret" not in get(url, "/data/0")[1]
        for path in (
            "/../secret.json", "/static/../folder.py", "/static/%2e%2e%2ffolder.py", "/static/page.html", "/data/1",
            "/data/-1", "/data/%C2%B2", "/netron/0/exported/../server.py", "/netron/0/exported/server.py",
            "/netron/0/exported/data/passes.json", "/netron/0/exported/data/..%2f..%2fsecret.json", "/netron/0/other/",
        ):  # fmt: skip
            assert get(url, path)[0] == 404, path


def test_every_answer_has_a_policy(artifacts: pathlib.Path) -> None:
    with serve([open_folder(artifacts)]) as url:
        assert url.startswith("http://127.0.0.1:")
        for path in ("/", "/data/0", "/nothing", "/netron/0/exported/"):
            policy = get(url, path)[2]["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "http" not in policy and "unsafe-eval" not in policy
            assert "script-src 'self';" in policy


def test_netron_is_served_from_the_installed_package(artifacts: pathlib.Path) -> None:
    pytest.importorskip("netron")
    with serve([open_folder(artifacts)]) as url:
        page = get(url, "/netron/0/compiled/")[1].decode()
        assert 'content="data/pfvm.onnx"' in page and 'name="version" content="0.0.0"' in page
        assert 'name="date"' not in page
        assert get(url, "/netron/0/compiled/view.js")[0] == 200
        assert get(url, "/netron/0/compiled/data/pfvm.onnx")[1] == (artifacts / "pfvm.onnx").read_bytes()


def test_a_broken_file_is_a_message_beside_the_others(artifacts: pathlib.Path) -> None:
    (artifacts / "l3ir_stripped.onnx.zst").write_bytes(b"no zstd")
    (artifacts / "pfvm.onnx").write_bytes(b"\xff\xff no model")
    (artifacts / "report.json").write_text("{")
    (artifacts / "l3ir.txt").write_text("no block\n")
    (artifacts / "trace.json").write_text("[]")
    data = directory_data(open_folder(artifacts), "out")
    exported, compiled, planned = data["stages"]
    assert exported["error"] is None and [node["op"] for node in exported["nodes"]] == ["Identity", "Add", "Mul"]
    assert "no ONNX model" in compiled["error"] and "not compressed by zstd" in planned["error"]
    assert "report.json: not JSON" in data["errors"]["report"] and data["errors"]["plan"]
    (artifacts / "report.json").write_text('{"machine": "mncore2", "notes": 1}')
    (artifacts / "passes.json").write_text('{"passes": [1]}')
    (artifacts / "l3ir.txt").write_text("")
    assert "not as pfvm writes them" in directory_data(open_folder(artifacts), "out")["errors"]["log"]
    assert "not as pfvm writes it" in pass_diffs(open_folder(artifacts))["note"]
    (artifacts / "model.onnx").write_bytes(b"\xff\xff no model")
    assert "no ONNX model" in pass_diffs(open_folder(artifacts))["note"]


def test_planned_graphs_are_unpacked(artifacts: pathlib.Path) -> None:
    content = (artifacts / "pfvm.onnx").read_bytes()
    (artifacts / "l3ir_stripped.onnx.zst").write_bytes(zstandard.ZstdCompressor().compress(content))
    planned = directory_data(open_folder(artifacts), "out")["stages"][2]
    assert planned["error"] is None and [node["op"] for node in planned["nodes"]] == ["Mul"]


def test_a_pass_has_its_diff(artifacts: pathlib.Path) -> None:
    found = pass_diffs(open_folder(artifacts))
    assert found["note"] is None
    assert found["diffs"]["1/eliminate-identity"]["removed"][0] == "Identity(x) -> (i)"
    recorded = json.loads((artifacts / "passes.json").read_text())
    recorded["passes"][0]["nodes_before"] += 1
    (artifacts / "passes.json").write_text(json.dumps(recorded))
    assert "than passes.json says" in pass_diffs(open_folder(artifacts))["note"]
    (artifacts / "model.onnx").unlink()
    assert "model.onnx is not in this directory" in pass_diffs(open_folder(artifacts))["note"]


def test_a_pass_with_options_has_its_diff(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[4000] y) <float[2] a = {1, 2}, int64[1] r = {2000}>
    { b = Tile (a, r)  c = Tile (x, r)  y = Add (b, c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    given = ("-p", "fold-constants{slack=1MiB}")
    assert pfvm("compile", tmp_path / "net.onnx", "--artifacts", tmp_path / "out", *given).code == 0
    found = pass_diffs(open_folder(tmp_path / "out"))
    assert found["note"] is None and found["diffs"]["1/fold-constants"]["removed"][0] == "Tile(a, r) -> (b)"
    recorded = json.loads((tmp_path / "out" / "passes.json").read_text())
    assert recorded["settings"] == {"fold-constants": {"slack": 2**20}}


def test_weights_in_another_file_are_not_read(artifacts: pathlib.Path) -> None:
    model = onnx.load(artifacts / "model.onnx")
    weights = model.graph.initializer.add(name="outside", data_type=onnx.TensorProto.FLOAT, dims=[1])
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/etc/passwd")
    (artifacts / "model.onnx").write_bytes(model.SerializeToString())
    assert "in another file" in pass_diffs(open_folder(artifacts))["note"]
    assert directory_data(open_folder(artifacts), "out")["stages"][0]["error"] is None


def test_paths(model: pathlib.Path, tmp_path: pathlib.Path, pfvm: Pfvm) -> None:
    assert [stage.file for stage in open_folder(model).stages] == ["model.onnx"]
    other = tmp_path / "others"
    other.mkdir()
    with pytest.raises(OptionError, match=r"no \.onnx file"):
        open_folder(other)
    onnx.save(chain(2), other / "net.onnx")
    assert labels([open_folder(model), open_folder(other)]) == ["model.onnx", "net.onnx"]
    assert "no such file or directory" in one_line(pfvm("view", tmp_path / "none", "--no-browser"))


def test_export_is_one_file_that_holds_no_markup_of_a_model(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    onnx.save(chain(8, HOSTILE), tmp_path / "model.onnx")
    target = tmp_path / "report.html"
    shown = pfvm("view", tmp_path, "--export", target)
    assert (shown.code, shown.out) == (0, f"{target}: {tmp_path.name}\n")
    text = target.read_text()
    assert "src=" not in text.replace("src=x", "") and "href=" not in text.replace('href="data:,"', "")
    assert HOSTILE[0] not in text and text.count("</script>") == 2
    assert "default-src 'none'; script-src 'sha256-" in text
