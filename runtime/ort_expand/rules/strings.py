"""StringNormalizer: ONNX Runtime's default locale is one that small systems do not have."""

from __future__ import annotations

import functools
import locale

from pfvm.runtime.ort_expand.node import Builder, Node

_DEFAULT = "en_US.UTF-8"
# Part of the C library itself; upper and lower case are those of Unicode, as in every locale but the Turkic ones.
_ALWAYS_THERE = "C.UTF-8"


def _with_a_locale(node: Node, b: Builder) -> list[str] | None:
    if node.has_attr("locale") or _has_locale(_DEFAULT) or not _has_locale(_ALWAYS_THERE):
        return None
    return b.copy(node, locale=_ALWAYS_THERE)


@functools.cache
def _has_locale(name: str) -> bool:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True


RULES = {("", "StringNormalizer"): _with_a_locale}
