"""One file in Netron, in a process of its own: Netron keeps what it serves once per process.

    python -m pfvm.tools.netron_server FILE [--browse]

Prints the address, and ends when its standard input does, so that it never outlives `pfvm view`.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys

HOST = "127.0.0.1"


def serve(file: str, browse: bool) -> str:
    """Starts the server, in a thread of this process. Returns its address."""
    import netron

    with contextlib.redirect_stdout(io.StringIO()):  # netron prints lines of its own
        host, port = netron.start(file, address=(HOST, _free_port()), browse=browse)
    return f"http://{host}:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    print(serve(sys.argv[1], "--browse" in sys.argv[2:]), flush=True)
    sys.stdin.read()
