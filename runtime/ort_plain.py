"""ONNX Runtime as a user gets it: default options but for the threads. A yardstick, not a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .ort_errors import load_error, run_error
from .ort_session import set_spinning
from .ort_values import from_ort, to_ort


class PlainOrt:
    """A model file in a session with every optimization that is on by default. Raises what `load_error` says."""

    def __init__(self, path: str | os.PathLike[str], threads: int, spinning: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        set_spinning(options, spinning)
        try:
            self._session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise load_error(error, None, "onnxruntime") from error
        self._names = [v.name for v in self._session.get_outputs()]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """One call through the interface that most programs use; bfloat16 and the like through OrtValues."""
        try:
            if any(getattr(getattr(v, "dtype", None), "isbuiltin", 1) == 2 for v in feeds.values()):
                values = self._session.run_with_ort_values(self._names, {n: to_ort(v) for n, v in feeds.items()})
                return {name: from_ort(v) for name, v in zip(self._names, values)}
            return dict(zip(self._names, self._session.run(self._names, dict(feeds))))
        except Exception as error:
            raise run_error(error, None, "onnxruntime") from error
