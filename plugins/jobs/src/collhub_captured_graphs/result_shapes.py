"""Check results of nodes against their operands: a contradicting shape is refused, not typed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from collhub_captured_graphs.graph import CapturedGraph, GraphNode
from collhub_captured_graphs.operators import LIST_PREFIX, OperatorCall, find_operator, is_pointwise

_Shape = tuple[int, ...]

_VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "t",
        "transpose",
        "permute",
        "alias",
        "detach",
        "clone",
        "contiguous",
    ]
)
_NORMS = frozenset(
    [
        "native_layer_norm",
        "layer_norm",
        "rms_norm",
        "_fused_rms_norm",
        "_softmax",
        "softmax",
        "_log_softmax",
        "log_softmax",
    ]
)


def find_contradiction(graph: CapturedGraph, node: GraphNode) -> str | None:
    """Describe the shape that a node's operands imply, if its first result has another one.

    The text is such as `the shape [2, 3]`; for a view with another number of elements such as
    `6 elements of x [2, 3]`; for operands that contradict each other such as `the shapes [2]
    and [3], which do not fit`. None without a contradiction.

    Checked are views (number of elements only), pointwise operators (broadcasting), matrix
    products, normalizations and attention. All other operators, operators of lists, and nodes
    without a first result or without operands give None.
    """
    operator = find_operator(node.operator)
    if operator is None or not node.results or node.results[0] is None:
        return None
    if node.operator.startswith(LIST_PREFIX) or not node.reads:
        return None
    call = OperatorCall(node, graph.tensors)
    name = node.operator.split(".")[1]
    found = node.results[0].shape
    if name in _VIEWS:
        sizes = graph.tensors[node.reads[0]].shape
        is_equal = prod(sizes) == prod(found)
        return None if is_equal else f"{prod(sizes)} elements of {node.reads[0]} {list(sizes)}"
    # A rule returns None for a call that it cannot check.
    rule: Callable[[OperatorCall], _Shape | None] | None = None
    if is_pointwise(operator):
        rule = _broadcast
    elif name in _NORMS:
        rule = _keep_shape
    elif name in ("mm", "addmm", "bmm", "baddbmm"):
        rule = _multiply
    elif name.startswith(("scaled_dot", "_scaled_dot")):
        rule = _attend
    try:
        expected = None if rule is None else rule(call)
    except ValueError:
        shapes = [list(graph.tensors[one].shape) for one in node.reads]
        return f"the shapes {' and '.join(map(str, shapes))}, which do not fit"
    return None if expected in (None, found) else f"the shape {list(expected or ())}"


def _broadcast(call: OperatorCall) -> _Shape:
    # Imported here: the list of plugins needs no numpy.
    import numpy as np

    return np.broadcast_shapes(*(call.tensors[name].shape for name in call.node.reads))


def _keep_shape(call: OperatorCall) -> _Shape | None:
    operand = call.operand("input", "self")
    return None if operand is None else operand.shape


def _multiply(call: OperatorCall) -> _Shape | None:
    """Compute the shape of a product of matrices, or of batches of matrices.

    None if a factor is no tensor argument. Batch dimensions (all before the last two) are
    not broadcast: raise `ValueError` if they or the inner sizes differ, or for a factor with fewer
    than two dimensions.
    """
    x = call.operand("mat1", "batch1", "self")
    w = call.operand("mat2", "batch2")
    if x is None or w is None:
        return None
    if min(len(x.shape), len(w.shape)) < 2:
        raise ValueError
    if x.shape[:-2] != w.shape[:-2] or x.shape[-1:] != w.shape[-2:-1]:
        raise ValueError
    return (*x.shape[:-1], w.shape[-1])


def _attend(call: OperatorCall) -> _Shape | None:
    """Compute the shape of the result of attention: the query's, with the head size of the value.

    The last three dimensions are heads, rows and head size; numbers of heads are not
    compared. None for gradients, for absent operands, and if the dimensions before these
    differ between query and value (broadcast). Raise `ValueError` if the head sizes of
    query and key, or the numbers of keys and values differ, or if one of the three has fewer
    than two dimensions.
    """
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or call.operand("grad_out", "grad_out_"):
        return None
    if min(len(operand.shape) for operand in (query, key, value)) < 2:
        raise ValueError
    if query.shape[:-3] != value.shape[:-3]:
        return None
    if query.shape[-1:] != key.shape[-1:] or key.shape[-2:-1] != value.shape[-2:-1]:
        raise ValueError
    return (*query.shape[:-1], value.shape[-1])
