"""Making the model-local functions that stand for fused nodes.

One function per name, opset form and set of optional inputs. The body is standard ONNX, so Netron shows one node and
every runtime that knows functions can run it; a backend may map the name to a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .rewriter import SEALED_DOMAIN


def build(
    name: str,
    inputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    attributes: Sequence[str],
    opset: int,
    doc: str,
    outputs: Sequence[ir.Value] | None = None,
) -> ir.Function:
    """A function of domain pfvm; `attributes` are names that every call gives.

    Its outputs are the last node's where `outputs` does not name others.
    """
    results = nodes[-1].outputs if outputs is None else outputs
    graph = ir.Graph(inputs, results, nodes=nodes, opset_imports={"": opset}, name=name, doc_string=doc)
    parameters = [ir.Attr(attribute, ir.AttributeType.UNDEFINED, None) for attribute in attributes]
    return ir.Function(SEALED_DOMAIN, name, graph=graph, attributes=parameters)
