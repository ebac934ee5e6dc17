"""Promise: every tab of `pfvm view` shows what the directory holds, in a real browser, and asks nobody else."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from cli_support import Pfvm
from view_support import HOSTILE, Visit, browser_path, chain, visit

pytestmark = pytest.mark.slow

FRAMES = """async (box) => {
    const times = [];
    let last = performance.now();
    for (let i = 0; i < 40; i += 1) {
        box.scrollTop += 700;
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        times.push(now - last);
        last = now;
    }
    return times.sort((a, b) => a - b)[20];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = browser_path()
    if path is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small net, compiled and planned."""
    from pfvm.tools import cli

    folder = tmp_path_factory.mktemp("view") / "out"
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[16,32] x) => (float[16,8] y) <float[8,32] w>
    { i = Identity (x)  t = Transpose <perm = [1, 0]> (w)  m = MatMul (i, t)  y = Relu (m) }"""
    text = text.replace("float[8,32] w>", "float[8,32] w = {" + ",".join(["0.5"] * 256) + "}>")
    model = onnx.parser.parse_model(text)
    model.graph.node[2].metadata_props.add(key="pfvm.source", value="net.py:7")
    onnx.save(model, folder.parent / "net.onnx")
    assert cli.run_command(["compile", str(folder.parent / "net.onnx"), "--artifacts", str(folder)]) == 0
    assert cli.run_command(["plan", str(folder / "pfvm.onnx"), "-o", str(folder)]) == 0
    return folder


def test_stages_link_a_node_to_what_it_became(browser: Any, planned: pathlib.Path) -> None:
    pytest.importorskip("netron")
    with visit(browser, planned) as shown:
        page = shown.page
        page.get_by_role("option", name="MatMul").click()
        detail = page.locator(".detail")
        assert "net.py:7" in detail.inner_text() and "FLOAT[16,8]" in detail.inner_text()
        detail.get_by_role("button").first.click()
        assert page.get_by_role("button", name="Compiled").get_attribute("aria-pressed") == "true"
        assert page.locator('.row[aria-selected="true"]').count() == 1
        page.frame_locator("iframe").locator("#canvas .node, .node").first.wait_for(timeout=20000)
        page.get_by_role("button", name="Planned").click()
        page.locator(".row", has_text="MNCoreDownload").first.click()
        assert "the value that is moved" in detail.inner_text()
        page.get_by_role("searchbox").fill("relu")
        assert {row.split()[0] for row in page.locator(".row").all_inner_texts()} == {"Relu"}


def test_netron_does_not_take_the_keyboard(browser: Any, planned: pathlib.Path) -> None:
    pytest.importorskip("netron")
    with visit(browser, planned) as shown:
        shown.page.get_by_role("searchbox").focus()
        shown.page.frame_locator("iframe").locator("#canvas .node, .node").first.wait_for(timeout=20000)
        shown.page.wait_for_load_state("networkidle")
        shown.page.keyboard.type("relu")
        assert shown.page.get_by_role("searchbox").input_value() == "relu"
        shown.page.frame_locator("iframe").locator(".node").first.click()
        assert shown.page.evaluate("document.activeElement.tagName") == "IFRAME"


def test_passes_open_their_diff(browser: Any, planned: pathlib.Path) -> None:
    with visit(browser, planned) as shown:
        panel = shown.tab("Passes")
        assert panel.locator("svg").count() == 2
        panel.get_by_role("button", name="eliminate-identity").click()
        panel.locator("tr.diff .removed").first.wait_for()
        assert "Identity(x) -> (i)" in panel.locator("tr.diff").inner_text()


def test_plan_report_and_log(browser: Any, planned: pathlib.Path) -> None:
    with visit(browser, planned) as shown:
        panel = shown.tab("Plan")
        headings = panel.locator("h2").all_inner_texts()
        assert {"DRAM over the schedule", "LM0 over the schedule", "Cycles by kind of node", "Timeline by unit",
                "Lower bound by resource", "Layout of a value"} <= set(headings)  # fmt: skip
        panel.get_by_role("searchbox").fill("y")
        panel.locator(".layout .row").first.click()
        assert panel.locator(".cells button").count() == 8 * 8 + 16 * 4
        panel = shown.tab("Report")
        report = json.loads((planned / "report.json").read_text())
        assert f"{report['flops']:,}" in panel.inner_text() and panel.locator("svg circle").count() == 1
        panel = shown.tab("Log")
        panel.get_by_role("searchbox").fill("y loc=LM")
        assert " of " in panel.locator(".bar .note").inner_text() and panel.locator(".row").count() > 0


def test_a_schedule_of_xla_is_listed_and_its_layouts_are_read(browser: Any, tmp_path: pathlib.Path) -> None:
    onnx.save(chain(2), tmp_path / "model.onnx")
    line = "onnx_type=Tensor(dtype=FLOAT32 shape=2,3) layout={0,1} layout_kind=XLA dtype=f32 loc=HOST)"
    (tmp_path / "l3ir.txt").write_text(f"fusion(x) -> (y.1)\n   in(0):x {line}\n  out(0):y.1 {line}\n")
    (tmp_path / "report.json").write_text('{"machine": {"name": "xla:cpu"}, "vsm_cycles": null, "flops": 6}')
    with visit(browser, tmp_path) as shown:
        shown.page.get_by_role("button", name="Planned").click()
        shown.page.get_by_role("option", name="fusion y.1").click()
        assert "FLOAT32[2,3]" in shown.page.locator(".detail").inner_text()
        assert "has no graph to draw" in shown.page.locator("#panel").inner_text()
        panel = shown.tab("Plan")
        assert "counted from shapes" in panel.inner_text() and "states no cycles" in panel.inner_text()
        assert panel.locator(".words td").all_inner_texts() == ["0,0", "1,0", "0,1", "1,1", "0,2", "1,2"]
        assert "no roof to draw" in shown.tab("Report").inner_text()


def test_cycles_without_a_total_are_shown_with_the_reason(browser: Any, tmp_path: pathlib.Path) -> None:
    """As of a TPU: what has no cycles is a part of the bytes accessed, not more of them."""
    onnx.save(chain(2), tmp_path / "model.onnx")
    line = "onnx_type=Tensor(dtype=FLOAT32 shape=2,3) layout={0,1} layout_kind=XLA dtype=f32 loc=HBM)"
    (tmp_path / "l3ir.txt").write_text(f"fusion(x) -> (y.1)\n   in(0):x {line}\n  out(0):y.1 {line}\n")
    moved = {"accessed": 2048, "copied_beside": 0, "without_cycles": 1024}
    report = {"machine": {"name": "xla:tpu"}, "vsm_cycles": None, "flops": 4096, "cycles": {"by_op": {"fusion": 731}}}
    report |= {"bytes_moved": moved, "cycles_missing": "the compiler states no cycles for gather"}
    (tmp_path / "report.json").write_text(json.dumps(report))
    with visit(browser, tmp_path) as shown:
        plan = shown.tab("Plan").inner_text()
        assert "731" in plan and "No total: the compiler states no cycles for gather." in plan
        found = shown.tab("Report").inner_text()
        assert "2 operations a byte" in found and "without cycles" in found and "no cycles for gather" in found


def test_pictures_for_the_readme_are_taken(browser: Any, planned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """By the program that made those of docs/view, each of which is shown somewhere."""
    from view_screenshots import take

    take(browser, tmp_path, planned, "net-dark", dark=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"net-dark-{tab}.png" for tab in ("stages", "passes", "plan", "report", "log")
    }
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
    root = pathlib.Path(__file__).parents[1]
    pages = "".join(page.read_text(encoding="utf-8") for page in (root / "README.md", *(root / "docs").glob("*.md")))
    assert [path.name for path in (root / "docs" / "view").iterdir() if f"view/{path.name}" not in pages] == []


def test_directories_are_compared(browser: Any, planned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = {"machine": {"name": "xla:cpu", "title": "a CPU"}, "vsm_cycles": None, "flops": 8193}
    (tmp_path / "report.json").write_text(json.dumps(report))
    onnx.save(chain(2), tmp_path / "model.onnx")
    with visit(browser, planned, tmp_path) as shown:
        rows = shown.tab("Report").get_by_role("table").last.get_by_role("row").all_inner_texts()
        ours = json.loads((planned / "report.json").read_text())
        assert len(rows) == 3 and f"{ours['vsm_cycles']:,}" in rows[1]
        assert "a CPU" in rows[2] and "8,193" in rows[2]


def test_a_part_that_waits_draws_in_its_own_tab_only(
    browser: Any, planned: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    onnx.save(chain(2), tmp_path / "model.onnx")
    with visit(browser, planned, tmp_path) as shown:
        held: list[Any] = []
        shown.page.route("**/data/1", lambda route: held.append(route))  # a bound builtin is refused
        with shown.page.expect_request("**/data/1"):
            shown.page.get_by_role("tab", name="Report").click()
        assert "Report" not in shown.page.title()
        log = shown.tab("Log").inner_text()
        with shown.page.expect_response("**/data/1"):
            held[0].continue_()
        shown.page.wait_for_load_state("networkidle")
        assert shown.page.locator("#panel").inner_text() == log and "Log" in shown.page.title()
        assert "Devices beside each other" in shown.tab("Report").inner_text()


def test_layouts_are_those_of_the_planner(browser: Any, planned: pathlib.Path) -> None:
    from pfvm.compiler.plan.layout import Layout
    from pfvm.tools.l3ir import read

    layouts = {value.name: value.layout for node in read(planned) for value in node.values() if value.layout}
    with visit(browser, planned) as shown:
        data = shown.page.evaluate("fetch('data/0').then((answer) => answer.json())")
        for value in data["plan"]["values"]:
            layout: Layout = layouts[value["name"]]
            for place in ({}, {"L2B": 1, "PE": 3}, {"MAB": 5, "": 1, "W": 1}, {"L1B": 7, "PE": 2, "W": 3}):
                mine = shown.page.evaluate("([value, place]) => PV.element(value, place)", [value, place])
                expected = layout.element(place)
                assert (None if mine is None else tuple(mine)) == expected, (str(layout), place)


def test_names_of_a_model_are_text(browser: Any, tmp_path: pathlib.Path) -> None:
    onnx.save(chain(8, HOSTILE), tmp_path / "model.onnx")
    onnx.save(chain(8, HOSTILE), tmp_path / "pfvm.onnx")
    run = {"round": 1, "matches": {HOSTILE[0]: 1}, "rejected": {HOSTILE[1]: 1}, "seconds": 0, "nodes_before": 1,
           "nodes_after": 1, "bytes_before": 1, "bytes_after": 1, "name": HOSTILE[2]}  # fmt: skip
    (tmp_path / "passes.json").write_text(json.dumps({"nodes": [1, 1], "bytes": [1, 1], "seconds": 0, "passes": [run]}))
    with visit(browser, tmp_path) as shown:
        assert HOSTILE[0] in shown.page.locator(".row").all_inner_texts()[0]
        shown.page.locator(".row").nth(4).click()
        assert HOSTILE[4] in shown.page.locator(".detail").inner_text()
        assert "\\u202egpj.evil" in shown.page.locator(".side").inner_text()
        for tab in ("Passes", "Log"):
            assert HOSTILE[0] in shown.tab(tab).inner_text()
        assert shown.page.evaluate("window.hit") is None
        assert shown.page.locator("#panel img").count() == 0


def test_a_missing_stage_is_said(browser: Any, planned: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pfvm.onnx").write_bytes((planned / "pfvm.onnx").read_bytes())
    with visit(browser, tmp_path) as shown:
        assert shown.page.get_by_role("button", name="Compiled").get_attribute("aria-pressed") == "true"
        shown.page.get_by_role("button", name="Exported").click()
        assert "model.onnx is not in this directory" in shown.page.locator("#panel").inner_text()
        for tab, file in (("Passes", "passes.json"), ("Plan", "l3ir.txt"), ("Report", "report.json")):
            assert f"{file} is not in this directory" in shown.tab(tab).inner_text()


def test_5000_nodes_scroll(browser: Any, tmp_path: pathlib.Path) -> None:
    for name in ("model.onnx", "pfvm.onnx"):
        onnx.save(chain(5000), tmp_path / name)
    (tmp_path / "run.log").write_text("".join(f"line {i}\n" for i in range(5000)))
    with visit(browser, tmp_path) as shown:
        box = shown.page.get_by_role("listbox")
        assert box.evaluate(FRAMES) <= 33
        assert box.evaluate("(box) => box.scrollTop") > 20000
        assert shown.page.locator('[role="option"]').count() <= 300
        box.focus()
        shown.page.keyboard.press("End")
        assert "value_4999" in shown.page.locator(".detail").inner_text()
        shown.tab("Log")
        assert shown.page.get_by_role("listbox").evaluate(FRAMES) <= 33
        assert shown.page.locator('[role="option"]').count() <= 300


def test_keyboard_alone_and_both_themes(browser: Any, planned: pathlib.Path) -> None:
    with visit(browser, planned, color_scheme="dark") as shown:
        page = shown.page
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 27, 33)"
        page.get_by_role("button", name="Switch between dark and light").press("Enter")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.get_by_role("tab", name="Stages").focus()
        for name in ("Passes", "Plan", "Report", "Log"):
            page.keyboard.press("ArrowRight")
            shown.until_title(f".*: {name} –")
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280
            assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"


def test_the_exported_file_shows_the_same(
    browser: Any, planned: pathlib.Path, tmp_path: pathlib.Path, pfvm: Pfvm
) -> None:
    target = tmp_path / "report.html"
    assert pfvm("view", planned, "--export", target).code == 0
    shown = Visit(browser, target.as_uri())
    assert shown.page.locator(".row").count() > 0
    for tab in ("Passes", "Plan", "Report", "Log"):
        assert shown.tab(tab).inner_text()
    shown.tab("Passes").get_by_role("button", name="eliminate-identity").click()
    shown.page.locator("tr.diff .removed").first.wait_for()
    assert shown.complaints == [] and shown.outside() == []
