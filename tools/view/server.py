"""The page's server: this machine only, for the page itself only, and only files of the directories it was given."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from pfvm.errors import PfvmError

from . import netron_files, page
from .data import directory_data
from .folder import Folder, labels
from .pass_diff import pass_diffs

HOST = "127.0.0.1"
JSON = "application/json"
_KEPT = 32
"""Parts in memory: those of the latest directories."""


class Answer(NamedTuple):
    """A response with status 200."""

    content: bytes
    kind: str
    policy: str = page.POLICY
    cookie: str | None = None


class Pages:
    """What every address answers; None where there is nothing.

    Parts are made when first asked for, and again once a file of the directory has changed.
    """

    def __init__(self, folders: Sequence[Folder]) -> None:
        self.folders, names = list(folders), labels(folders)
        self._reading, self._running = threading.Lock(), threading.Lock()  # each part is made once
        self._data = functools.lru_cache(_KEPT)(lambda number, state: directory_data(folders[number], names[number]))
        self._diffs = functools.lru_cache(_KEPT)(lambda number, state: pass_diffs(folders[number]))

    def answer(self, path: str) -> Answer | None:
        """The answer to a GET. Raises PfvmError where a file cannot be read."""
        match path.removeprefix("/").split("/"):
            case [""]:
                return Answer(page.served_page(), "text/html; charset=utf-8")
            case ["static", name]:
                content = page.static_file(name)
                kind = "text/css" if name.endswith(".css") else "text/javascript"
                return None if content is None else Answer(content, f"{kind}; charset=utf-8")
            case ["directories.json"]:
                return _json({"labels": labels(self.folders), "netron": netron_files.netron_folder() is not None})
            case ["data", number] if self._has(number):
                with self._reading:
                    return _json(self._data(int(number), self.folders[int(number)].state()))
            case ["diffs", number] if self._has(number):
                with self._running:
                    return _json(self._diffs(int(number), self.folders[int(number)].state()))
            case ["netron", number, key, *rest] if self._has(number):
                return self._netron(self.folders[int(number)], key, rest)
        return None

    def _has(self, number: str) -> bool:
        return number in map(str, range(len(self.folders)))

    def _netron(self, folder: Folder, key: str, rest: list[str]) -> Answer | None:
        stage = next((each for each in folder.stages if each.key == key), None)
        if stage is None:
            return None
        name = stage.file.removesuffix(".zst")
        if rest == ["data", name]:
            content = folder.model_bytes(stage)
            return None if content is None else Answer(content, "application/octet-stream", netron_files.POLICY)
        found = netron_files.netron_file(rest[0] or "index.html", name) if len(rest) == 1 else None
        return None if found is None else Answer(*found, netron_files.POLICY, netron_files.COOKIE)


def _json(content: Any) -> Answer:
    return Answer(json.dumps(content).encode(), JSON)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: Pages
    hosts: tuple[str, ...] = ()

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the browser left
            super().handle()

    def do_GET(self) -> None:
        if not self._is_ours():
            self._send(HTTPStatus.FORBIDDEN, Answer(b"pfvm view answers its own page only\n", "text/plain"))
            return
        try:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path, errors="replace")
        except ValueError:  # http://[
            self._send(HTTPStatus.BAD_REQUEST, Answer(b"no address\n", "text/plain"))
            return
        try:
            answer = self.pages.answer(path)
        except PfvmError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, Answer(str(error).encode(), "text/plain; charset=utf-8"))
            return
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, Answer(b"not found\n", "text/plain"))
        else:
            self._send(HTTPStatus.OK, answer)

    do_HEAD = do_GET

    def _is_ours(self) -> bool:
        """Another site's page cannot read this one: not by a name that it points here, nor by a request from there."""
        origin = self.headers.get("Origin")
        return (
            self.headers.get("Host") in self.hosts
            and (origin is None or origin.removeprefix("http://") in self.hosts)
            and self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        )

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if answer.cookie is not None:
            self.send_header("Set-Cookie", answer.cookie)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed for a request."""


@contextlib.contextmanager
def serve(folders: Sequence[Folder]) -> Iterator[str]:
    """Within the block the page is served at a free port of this machine; gives its address."""
    handler: type[_Handler] = type("Handler", (_Handler,), {"pages": Pages(folders)})
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        handler.hosts = tuple(f"{name}:{server.server_port}" for name in (HOST, "localhost"))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
