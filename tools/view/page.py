"""The page: our own HTML, CSS and scripts, served in parts, or put together into one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from typing import Any

SCRIPTS = ("dom.js", "list.js", "plot.js", "stages.js", "passes.js", "layout.js", "plan.js", "report.js", "log.js",
           "main.js")  # fmt: skip
STYLE = "view.css"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def static_file(name: str) -> bytes | None:
    """A file of the page, None for any other name."""
    return read(name) if name in (*SCRIPTS, STYLE) else None


def served_page() -> bytes:
    """The page with its parts as links."""
    scripts = "".join(f'<script src="static/{name}" defer></script>\n' for name in SCRIPTS)
    return _filled(f'<link rel="stylesheet" href="static/{STYLE}">', scripts)


def exported_page(content: dict[str, Any]) -> bytes:
    """One file with everything in it. Its policy allows its own script by hash, and no request."""
    script = b"\n".join(read(name) for name in SCRIPTS).decode()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    # In JSON these are the same characters, and no parser of HTML sees the end of the element or a comment.
    data = json.dumps(content, ensure_ascii=True).replace("<", "\\u003c").replace("&", "\\u0026")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{read(STYLE).decode()}</style>'
    body = f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>'
    return _filled(head, body)


def _filled(head: str, scripts: str) -> bytes:
    return read("page.html").decode().replace("<!--head-->", head).replace("<!--scripts-->", scripts).encode()


def read(name: str) -> bytes:
    """A file of ours beside this module."""
    return (importlib.resources.files(__package__) / "static" / name).read_bytes()
