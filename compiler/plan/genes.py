"""What each axis of a value stands for: N rows, C channels, WC a weight's; Nr rows once their channels are reduced.

Products say it of their operands and results; it goes on through nodes that keep axes, and back to the inputs. Only
the text of a plan shows genes. An axis that nothing is known of has none ("").
"""

from __future__ import annotations

import onnx_ir as ir

from .mngraph import is_move
from .ops import contract, reduce
from .ops.reuse import permutation
from .ops.table import dims, rule_of
from .placement import IMMEDIATE, find_placement, move, placement_of

Gene = tuple[str, ...]


def name_axes(model: ir.Model) -> None:
    """Sets the genes of all placed values, in place: forwards from the products, then back to what feeds them."""
    genes: dict[ir.Value, Gene] = {}
    nodes = list(model.graph)
    for node in nodes:
        _forward(node, genes)
    for node in reversed(nodes):
        _backward(node, genes)
    for value, gene in genes.items():
        if find_placement(value) is not None and placement_of(value).location != IMMEDIATE:
            move(value, gene=gene)


def _forward(node: ir.Node, genes: dict[ir.Value, Gene]) -> None:
    kind = rule_of(node).kind
    source = node.inputs[0] if node.inputs else None
    if kind in ("contract", "convolve"):
        _product(node, genes)
    elif source is None or not node.outputs:
        return
    elif kind == "window" and source in genes:
        _set(node.outputs[0], genes[source], genes)
    elif kind == "reduce" and source in genes:
        gene = _reduced(node, genes[source])
        if len(gene) == len(dims(node.outputs[0])):
            genes.setdefault(node.outputs[0], gene)
    elif kind == "reuse" and source in genes:
        _set(node.outputs[0], _viewed(node, genes[source], dims(source), dims(node.outputs[0])), genes)
    elif kind == "elementwise" or is_move(node):
        _agree(node, genes)


def _backward(node: ir.Node, genes: dict[ir.Value, Gene]) -> None:
    kind = rule_of(node).kind
    source = node.inputs[0] if node.inputs else None
    if source is None or not node.outputs:
        return
    out = node.outputs[0]
    if kind == "reuse" and out in genes:
        perm = permutation(node)
        if perm is not None:
            back: Gene = tuple(genes[out][perm.index(i)] for i in range(len(perm)))
        else:
            back = _kept(genes[out], dims(out), dims(source))
        _set(source, back, genes)
    elif kind == "elementwise" or is_move(node):
        _agree(node, genes)


def _product(node: ir.Node, genes: dict[ir.Value, Gene]) -> None:
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        if i and (value.is_initializer() or value.is_graph_input()):
            genes.setdefault(value, ("WC",) * len(dims(value)))
        elif i == 0:
            column = contract.product(node).data_column if contract.is_local(node) else min(1, len(dims(value)) - 1)
            genes.setdefault(value, _rows_and_column(len(dims(value)), column))
    out = node.outputs[0]
    column = len(dims(out)) - 1 if contract.is_local(node) else min(1, len(dims(out)) - 1)
    genes.setdefault(out, _rows_and_column(len(dims(out)), column))


def _rows_and_column(rank: int, column: int) -> Gene:
    first = 1 if column == 0 else 0
    return tuple("C" if i == column else "N" if i == first else "" for i in range(rank))


def _reduced(node: ir.Node, gene: Gene) -> Gene:
    axes = reduce.reduced_axes(node)
    if reduce.is_in_place(node):
        return gene
    lost = "C" in (gene[axis] for axis in axes)
    named = tuple("Nr" if lost and word == "N" else word for word in gene)
    if reduce.keeps_axes(node):
        return tuple("" if i in axes else word for i, word in enumerate(named))
    return tuple(word for i, word in enumerate(named) if i not in axes)


def _viewed(node: ir.Node, gene: Gene, old: tuple[int, ...], new: tuple[int, ...]) -> Gene:
    perm = permutation(node)
    return tuple(gene[i] for i in perm) if perm is not None else _kept(gene, old, new)


def _kept(gene: Gene, old: tuple[int, ...], new: tuple[int, ...]) -> Gene:
    """Through a reshape: the leading axes that stay."""
    kept = 0
    while kept < min(len(old), len(new)) and old[kept] == new[kept]:
        kept += 1
    return (*gene[:kept], *("",) * (len(new) - kept))


def _agree(node: ir.Node, genes: dict[ir.Value, Gene]) -> None:
    """Operands and results of one shape have one gene."""
    values = [value for value in (*node.outputs, *node.inputs) if value is not None]
    for known in values:
        if known in genes:
            for value in values:
                if value not in genes and dims(value) == dims(known):
                    genes[value] = genes[known]
            return


def _set(value: ir.Value, gene: Gene, genes: dict[ir.Value, Gene]) -> None:
    if any(gene):
        genes.setdefault(value, gene)
