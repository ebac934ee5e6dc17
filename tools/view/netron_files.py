"""Netron's own files, as installed, for a frame of the page: told to send nothing, and kept from it by policy."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path

from . import page

POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-src 'none'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
FOCUS = "netron_focus.js"
"""A script of ours in Netron's page."""
COOKIE = "consent=1; Path=/; SameSite=Strict"
"""Netron asks a location service whether to ask for consent, unless this cookie is there."""


def netron_folder() -> Path | None:
    """Where the installed Netron has its files, None without it."""
    spec = importlib.util.find_spec("netron")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def netron_file(name: str, model: str) -> tuple[bytes, str] | None:
    """Content and type of one of Netron's files; its page opens `data/MODEL`. None where there is no such file."""
    folder = netron_folder()
    kind = TYPES.get(Path(name).suffix)
    if folder is None or kind is None or not re.fullmatch(r"[A-Za-z0-9_-]+\.[a-z]+", name):
        return None
    if name == FOCUS:
        return page.read(FOCUS), kind
    file = folder / name
    if not file.is_file():
        return None
    content = file.read_bytes()
    return (_page(content.decode(), model).encode() if name == "index.html" else content), kind


def _page(text: str, model: str) -> str:
    """Netron's page with the file that it opens. As version 0.0.0 it sends no telemetry; without a date it never ages.

    It names everything in the frame by that file, so the name is escaped.
    """
    name = html.escape(model, quote=True)
    tags = (
        '<meta name="type" content="Python"><meta name="version" content="0.0.0">'
        f'<meta name="file" content="data/{name}"><meta name="identifier" content="{name}">'
        f'<script src="{FOCUS}"></script>'
    )
    text = re.sub(r'<meta name="date" content="[^"]*">', "", text)
    return re.sub(r'<meta name="version" content="[^"]*">', lambda _: tags, text)
