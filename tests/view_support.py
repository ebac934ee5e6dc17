"""What the tests of `pfvm view` share: artifacts directories without a compiler, and a headless Chromium."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper
from pfvm.tools.view.folder import open_folder
from pfvm.tools.view.server import serve

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "</script><script>window.hit=2</script>",
    "\"'><svg onload=window.hit=3>",
    "‮gpj.evil",
    "{{constructor}}",
    "javascript:window.hit=4",
)


def chain(count: int, names: Sequence[str] = ()) -> onnx.ModelProto:
    """A model of `count` Relus in a row; the first ones make values of the names given."""
    made = [names[i] if i < len(names) else f"value_{i}" for i in range(count)]
    nodes = [
        helper.make_node("Relu", [given], [out], name=f"node {out}")
        for given, out in zip(["x", *made], made, strict=False)
    ]
    for node, name in zip(nodes, names):
        for key in ("pfvm.source", "pfvm.module"):
            node.metadata_props.add(key=key, value=name)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", made[-1])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def browser_path() -> str | None:
    """Debian's Chromium, or another by this name."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Visit:
    """A page in the browser, and what it asked for and complained of."""

    def __init__(self, browser: Any, url: str, tab: str = "stages", **context: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 800}, **context)
        self.url = url
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{url}#{tab}")
        self.until_title(".* –")

    def tab(self, name: str) -> Any:
        """Opens a tab and gives its panel."""
        self.page.get_by_role("tab", name=name, exact=True).click()
        self.until_title(f".*: {name} –")
        return self.page.locator("#panel")

    def until_title(self, pattern: str) -> None:
        """Waits for the title, which a tab sets once it shows. The page's policy forbids waiting for an expression."""
        from playwright.sync_api import expect

        expect(self.page).to_have_title(re.compile(pattern), timeout=20_000)

    def outside(self) -> list[str]:
        """The requests that went anywhere but to the page's own origin."""
        return [each for each in self.requests if not each.startswith((self.url, "data:", f"blob:{self.url}"))]


@contextlib.contextmanager
def visit(browser: Any, *paths: pathlib.Path, **context: Any) -> Iterator[Visit]:
    """Within the block the directories are served and shown; no script may have failed, nothing gone outside."""
    with serve([open_folder(path) for path in paths]) as url:
        shown = Visit(browser, url, **context)
        try:
            yield shown
            assert shown.complaints == []
            assert shown.outside() == []
        finally:
            shown.page.close()
