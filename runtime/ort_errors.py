"""ONNX Runtime's exceptions as pfvm's: one line, with the node that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir
from pfvm.errors import InputError, InvalidModelError, PfvmError, UnsupportedOpError, describe_node, flag

_LONGEST = 400
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : (?P<code>\w+) : ")
_NO_KERNEL = (
    re.compile(
        r"Could not find an implementation for (?:node )?(?P<op>[\w.:]+?)(?:\((?P<version>\d+)\))? "
        r"node with name '(?P<name>[^']*)'"
    ),
    re.compile(r"Failed to find kernel for (?P<op>\w+)\((?P<version>\d+)\) \(node:'(?P<name>[^']*)'"),
)
_UNKNOWN_OP = (
    re.compile(r"In Node, \(\"(?P<name>[^\"]*)\", (?P<op>\w+), \"(?P<domain>[^\"]*)\".*No Op registered", re.S),
    re.compile(r"(?P<domain>[\w.]*):(?P<op>\w+)\((?P<version>-?\d+)\) is not a registered function/op"),
    re.compile(r"No opset import for domain '(?P<domain>[^']*)'"),
)
_RUNNING = re.compile(
    r"Non-zero status code returned while running (?P<op>\w+) node\. "
    r"Name:'(?P<name>[^']*)' Status Message: (?P<why>.*)",
    re.S,
)
# "file.cc:12 onnxruntime::C::f(const T&) const " or "file.h:12 Compute ": where in ORT's own source it happened.
_SOURCE = re.compile(
    r"\S+\.(?:cc|cpp|h):\d+ (?:(?:virtual |void |bool |[\w:]*Status )?[\w:~<>]*onnxruntime::[^()]*\(.*?\)(?: const)?"
    r"(?:::<lambda\([^)]*\)>)?|\w+) "
)
_ASSERTION = re.compile(r"^(?P<before>.*?: )?[^:]*(?:::[^:]*)* was false\. (?=\S)")


def load_error(error: Exception, model: ir.Model | None, device: str) -> PfvmError:
    """The pfvm error for a failed session creation."""
    text = str(error)
    for pattern in _NO_KERNEL:
        match = pattern.search(text)
        if match:
            node = _described(model, match["op"], match["name"])
            types = _types(model, match["op"], match["name"])
            version = f" at version {match['version']}" if match["version"] else ""
            return UnsupportedOpError(
                f"{device}: no kernel for {node}{version} with {types or 'its types'}; cast its inputs to another type"
            )
    for pattern in _UNKNOWN_OP:
        match = pattern.search(text)
        if match:
            return UnsupportedOpError(f"{device}: {_unknown(match, model)}")
    if any(mark in text for mark in ("NOT_IMPLEMENTED", "under development", "Exception during initialization")):
        return UnsupportedOpError(f"{device}: {_clean(text)}")
    return InvalidModelError(f"{device}: cannot load the model: {_clean(text)}")


def run_error(error: Exception, model: ir.Model | None, device: str) -> PfvmError:
    """The pfvm error for a failed run: the feeds fit the signature, so their values (or sizes) do not fit a node."""
    text = str(error)
    match = _RUNNING.search(text)
    if match:
        where = _described(model, match["op"], match["name"])
        why = _clean(match["why"])
    else:
        where, why = "the model", _clean(text)
    if "NOT_IMPLEMENTED" in text or "not implemented" in text.lower():
        return UnsupportedOpError(f"{device}: {where}: {why}")
    if "Failed to allocate memory" in text or "bad_alloc" in text:
        return PfvmError(f"{device}: out of memory in {where}: {why}")
    return InputError(f"{device}: {where} failed on these inputs: {why}")


def _types(model: ir.Model | None, op_type: str, name: str) -> str:
    """ "bfloat16", or "bfloat16, int64": the element types that a node reads; "" where the node is not known."""
    nodes = [n for n in _nodes(model) if n.op_type == op_type and (n.name or "") == name] if model else []
    if model is None or not nodes:
        return ""
    index = list(_nodes(model)).index(nodes[0])
    if any(v is not None and v.dtype is None for v in nodes[0].inputs):
        from pfvm.compiler.shapes import ShapeInference

        model = model.clone()
        ShapeInference(model).infer_model()
    node = list(_nodes(model))[index]
    return ", ".join(dict.fromkeys(v.dtype.name.lower() for v in node.inputs if v is not None and v.dtype is not None))


def _described(model: ir.Model | None, op_type: str, name: str) -> str:
    """`describe_node` for what ONNX Runtime says of a node; an unnamed node is found where only one fits."""
    nodes = [n for n in _nodes(model) if n.op_type == op_type and (n.name or "") == name] if model else []
    if len(nodes) == 1:
        return describe_node(nodes[0])
    return f"{op_type} {name!r}" if name else f"an unnamed {op_type} node"


def _unknown(match: re.Match[str], model: ir.Model | None) -> str:
    groups = match.groupdict()
    domain = groups.get("domain") or "ai.onnx"
    if "op" not in groups:
        return f"the model uses domain {domain!r} without importing an opset of it"
    candidates = [n for n in _nodes(model) if n.op_type == groups["op"]] if model else []
    name = groups.get("name") or (candidates[0].name if candidates else "") or ""
    node = _described(model, groups["op"], name)
    keyword = 'custom_ops_library="FILE"'
    hint = (
        f"load its library with {flag('custom-ops-lib', 'FILE', keyword)}"
        if domain != "ai.onnx"
        else "check the op's name and the opset"
    )
    return f"{node}: no operator {groups['op']!r} in domain {domain!r}; {hint}"


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _clean(text: str) -> str:
    """ORT's reason without its code prefix, its own source locations and the C++ assertion that failed."""
    text = " ".join(_PREFIX.sub("", text.strip()).split())
    text = _ASSERTION.sub(r"\g<before>", _SOURCE.sub("", text))
    return text[:_LONGEST]
