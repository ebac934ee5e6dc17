"""Evaluating constant subgraphs by the engine that runs models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from pfvm.errors import PfvmError

from .rewriter import Rewriter
from .view import constant_tensor, renamed

RULE = "constant"
Evaluate = Callable[[ir.Model, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs a model without optimizations; handed in by the runtime, so that folding uses the engine that runs."""


def evaluate_constants(
    rw: Rewriter,
    root: ir.Graph,
    nodes: list[ir.Node],
    wanted: list[ir.Value],
    known: Mapping[ir.Value, np.ndarray],
    evaluate: Evaluate,
) -> dict[ir.Value, np.ndarray]:
    """Evaluate all wanted values in one call; when that fails, node by node, so that one bad node costs only itself."""
    inside = set(nodes)
    wanted = [v for v in wanted if v.producer() in inside]
    if not wanted:
        return {}
    try:
        return _evaluate(rw, root, nodes, wanted, known, evaluate)
    except PfvmError:
        results: dict[ir.Value, np.ndarray] = {}
        for node in nodes:
            have = {**known, **results}
            if not all(v is None or v in have or constant_tensor(v) is not None for v in node.inputs):
                continue
            outputs = [out for out in node.outputs if out.uses() or out.is_graph_output()]
            try:
                results.update(_evaluate(rw, root, [node], outputs, have, evaluate))
            except PfvmError:
                rw.reject(RULE, f"{node.op_type} cannot be evaluated", node)
        return results


def _evaluate(
    rw: Rewriter,
    root: ir.Graph,
    nodes: list[ir.Node],
    wanted: list[ir.Value],
    known: Mapping[ir.Value, np.ndarray],
    evaluate: Evaluate,
) -> dict[ir.Value, np.ndarray]:
    mapping: dict[ir.Value, ir.Value] = {}
    initializers: list[ir.Value] = []

    def operand(value: ir.Value | None) -> ir.Value | None:
        if value is None or value in mapping:
            return None if value is None else mapping[value]
        tensor = ir.tensor(known[value]) if value in known else constant_tensor(value)
        assert tensor is not None, f"{value.name} is not constant"
        copy = ir.Value(name=f"c{len(mapping)}", type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
        copy.const_value = renamed(tensor, str(copy.name))
        mapping[value] = copy
        initializers.append(copy)
        return copy

    copies = []
    for node in nodes:
        copy = ir.Node(
            node.domain,
            node.op_type,
            [operand(v) for v in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=node.name,
        )
        for old, new in zip(node.outputs, copy.outputs):
            new.name = f"v{len(mapping)}" if old.name else ""
            mapping[old] = new
        copies.append(copy)
    outputs = [mapping[v] for v in wanted]
    for old, new in zip(wanted, outputs):
        new.type, new.shape = old.type, old.shape
    graph = ir.Graph(
        [], outputs, nodes=copies, initializers=initializers, opset_imports=dict(root.opset_imports), name="fold"
    )
    results = evaluate(ir.Model(graph, ir_version=max(rw.model.ir_version, 8)), {})
    return {v: np.asarray(results[str(mapping[v].name)]) for v in wanted}
