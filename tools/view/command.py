"""`pfvm view`: serves the page until interrupted, or writes it to a file."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from pfvm.compiler import exporter, progress
from pfvm.tools import sources
from pfvm.tools.console import out

from .data import directory_data
from .folder import OTHERS, STAGES, labels, open_folder
from .netron_files import netron_folder
from .page import exported_page
from .pass_diff import pass_diffs
from .server import serve


def view(paths: Sequence[Path], browser: bool, export: Path | None = None) -> None:
    """Serves the page on 127.0.0.1 at a free port and prints its address; returns when interrupted.

    export: writes one self-contained file instead, without Netron. Raises OptionError for a path that has nothing to
    show, PfvmError where the file cannot be written.
    """
    folders = [open_folder(path) for path in paths]
    for path, folder in zip(paths, folders):
        if path.is_dir() and not any(folder.find(name) for name in (*(stage.file for stage in STAGES[1:]), *OTHERS)):
            progress.remark(
                f"{path}: only .onnx files; passes and figures come from pfvm compile MODEL --artifacts DIR"
            )
    if export is not None:
        shown = [(*(stage.file for stage in folder.stages), *OTHERS) for folder in folders]
        sources.keep("--export", export, [folder.find(name) for folder, names in zip(folders, shown) for name in names])
        names = labels(folders)
        data = [directory_data(folder, name) for folder, name in zip(folders, names)]
        content = {"labels": names, "netron": False, "data": data, "diffs": [pass_diffs(folder) for folder in folders]}
        exporter.write_text(export, exported_page(content).decode())
        out().print(f"{export}: {', '.join(names)}", soft_wrap=True)
        return
    if netron_folder() is None:
        progress.remark("without drawings: pip install 'pfvm[view]' brings Netron")
    with serve(folders) as address:
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        while True:
            time.sleep(3600)
