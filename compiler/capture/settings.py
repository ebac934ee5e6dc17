"""How torch is set while a function is traced, and what is put back afterwards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .python_random import kept_generators
from .reach import Reach


@contextlib.contextmanager
def untouched(reach: Reach) -> Iterator[None]:
    """Put back every generator and every attribute or list of the user's that the function changed."""
    try:
        with kept_generators(reach.drawn):
            yield
    finally:
        reach.restore()


@contextlib.contextmanager
def tracing_settings() -> Iterator[None]:
    """Take the plain path through torch: no fused attention or encoder, no mkldnn-only ops, no autograd threads."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # prints a traceback for what is raised anyway
    level = logger.level
    fast_path, mkldnn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.set_detect_anomaly(False),  # it reads values
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),  # run what is under torch.compile as it was written
    ):
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._set_mkldnn_enabled(False)  # mkldnn.flags() would warn about Intel GPUs
        try:
            logger.setLevel(logging.CRITICAL)
            yield
        finally:
            logger.setLevel(level)
            torch.backends.mha.set_fastpath_enabled(fast_path)
            torch._C._set_mkldnn_enabled(mkldnn)
