"""Table of aten operators: arithmetic work, memory traffic, and the slices that they preserve.

The table has the operators of transformer training steps (job-evidence, section 7, of PyTorch
2.14), before and after decomposition. `find_operator` returns None for all other operators, about
which nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from collhub_captured_graphs.graph import (
    ArgumentValue,
    CapturedGraph,
    GraphNode,
    Reference,
    Tensor,
)

LIST_PREFIX = "aten._foreach_"
"""Beginning of the names of operators that are applied to every entry of a list."""

_COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_reduce_",
        "all_reduce_coalesced",
        "all_reduce_coalesced_",
        "all_gather_into_tensor",
        "all_gather_into_tensor_out",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "all_to_all_single",
        "broadcast",
        "broadcast_",
        "isend",
        "irecv",
        "batch_p2p_ops",
    }
)
_COLLECTIVE_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


def is_collective(operator: str) -> bool:
    """Return whether an operator such as `_c10d_functional.all_reduce.default` communicates.

    Its namespace and its name without overload must be those of a collective; `wait_tensor` is
    none.
    """
    namespace, _, name = operator.partition(".")
    return namespace in _COLLECTIVE_NAMESPACES and name.split(".")[0] in _COLLECTIVES


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Call of an operator, with the tensors among its arguments."""

    node: GraphNode
    tensors: Mapping[str, Tensor]

    @property
    def result(self) -> Tensor:
        """First result. Raises `StopIteration` for a call without one."""
        return next(iter(self.node.tensors))

    def argument(self, *names: str) -> ArgumentValue:
        """Return the first of the named arguments that is present; None if none is."""
        return next(
            (self.node.arguments[name] for name in names if name in self.node.arguments), None
        )

    def operand(self, *names: str) -> Tensor | None:
        """Return the tensor of the first named argument that is present.

        None if no argument is present, or if the first one is no tensor.
        """
        value = self.argument(*names)
        return self.tensors[value.name] if isinstance(value, Reference) else None

    def dimensions(self, operand: Tensor, *names: str) -> frozenset[int]:
        """Return the dimensions of an operand that an argument lists, counted from 0.

        The first of `names` that is present is read, as a number or a tuple; entries that are no
        integers, also bools, are ignored. Numbers count modulo the number of dimensions, so that
        negative ones count from the end. All dimensions if the argument is absent or has no
        integer. An operand without dimensions counts as one with dimension 0.
        """
        value = self.argument(*names)
        rank = max(len(operand.shape), 1)
        numbers = value if isinstance(value, tuple) else (value,)
        chosen = [number for number in numbers if type(number) is int]
        return frozenset(number % rank for number in chosen) if chosen else frozenset(range(rank))


Work = Callable[[OperatorCall], int]
"""Number of arithmetic operations of a call; a multiplication and an addition count as two."""

Slices = Callable[[OperatorCall], frozenset[str]]
"""Names of the operands that may be sliced along dimension 0: row i (for a reshape, block i) of
the first result depends only on row i of these, if all of them with that dimension are sliced."""

RowDimensions = Callable[[OperatorCall], int]
"""Number of leading dimensions along each of which the operands of `Slices` may be sliced, with
the same condition: a row is a position of all these dimensions."""


def _count_first(call: OperatorCall) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of the table. `is_view`: the result shares the memory of the operand.

    `is_random`: ranks compute different results even for equal operands. `row_results`: number of
    results, from the first, that have the rows of the operands; None for all. Other results, such
    as the gradient of a weight, depend on all rows of a rank.
    """

    work: Work
    slices: Slices
    is_view: bool = False
    is_random: bool = False
    row_dimensions: RowDimensions = _count_first
    row_results: int | None = None


@dataclass(frozen=True, slots=True)
class Layouts:
    """Costs and layout properties of one node of a graph.

    `work`: arithmetic operations; `traffic`: bytes of memory read and written; `sliceable`: values
    that may be sliced along one of the first `row_dimensions` dimensions; `row_results`: number of
    results, from the first, that are then sliced along the same dimension; `is_known`: whether the
    operator is in the table.
    """

    work: int
    traffic: int
    sliceable: frozenset[str]
    is_known: bool
    is_random: bool
    row_dimensions: int = 1
    row_results: int = 0


def describe_node(graph: CapturedGraph, node: GraphNode) -> Layouts:
    """Return the costs of a node, and which of its operands may be sliced.

    The traffic is the sum of the bytes of all distinct operands and of all results. The first rule
    that applies decides:

    1. Operator not in the table (`find_operator`): not known, random, work 0, nothing sliceable.
    2. No tensor as result: known, not random, work 0, nothing sliceable.
    3. Otherwise: known, with the work and the sliceable operands of the table. A view has work 0
       and traffic 0. For an operator on lists (`aten._foreach_...`), the work of the first result
       is scaled to the elements of all results, rounded down, and nothing is sliceable. The node is
       random if the table says so, or if the argument `dropout_p` is neither None nor 0.

    `row_dimensions` is that of the table, at least 1, and 1 if nothing is sliceable. `row_results`
    is 0 in rules 1 and 2, else that of the table, or the number of results if the table has none.
    """
    operator = find_operator(node.operator)
    tensors = [graph.tensors[name] for name in dict.fromkeys(node.reads)]
    traffic = sum(tensor.num_bytes for tensor in (*tensors, *node.tensors))
    if operator is None or not node.tensors:
        return Layouts(0, traffic, frozenset(), operator is not None, operator is None)
    call = OperatorCall(node, graph.tensors)
    work = 0 if operator.is_view else operator.work(call)
    slices = operator.slices(call)
    if node.operator.startswith(LIST_PREFIX):
        # The operator is applied to every entry of a list; rows of different entries are unrelated.
        elements = sum(tensor.num_elements for tensor in node.tensors)
        work, slices = work * elements // max(call.result.num_elements, 1), frozenset()
    traffic = 0 if operator.is_view else traffic
    row_dimensions = max(1, operator.row_dimensions(call)) if slices else 1
    row_results = len(node.results) if operator.row_results is None else operator.row_results
    # Attention with Dropout.
    is_random = operator.is_random or call.argument("dropout_p") not in (None, 0, 0.0)
    return Layouts(work, traffic, slices, True, is_random, row_dimensions, row_results)


def find_operator(name: str) -> Operator | None:
    """Return the entry of an operator such as `aten.mm.default` in the table; None if it has none.

    The overload is ignored. A list operator such as `aten._foreach_add.List` has the entry of the
    operator for one tensor.
    """
    base = ".".join(name.split(".")[:2])
    return _OPERATORS.get(base.replace(LIST_PREFIX, "aten."))


def is_pointwise(operator: Operator) -> bool:
    """Whether an operator computes elements from those at the same position, with broadcasting."""
    return operator.slices is _slice_pointwise and not operator.is_view


def _count_results(factor: int) -> Work:
    """Return a rule that counts `factor` operations per element of the first result."""
    return lambda call: factor * call.result.num_elements


def _count_operands(factor: int) -> Work:
    """Return a rule that counts `factor` operations per element of the largest operand."""
    return lambda call: (
        factor * max((call.tensors[name].num_elements for name in call.node.reads), default=0)
    )


def _count_no_work(call: OperatorCall) -> int:
    return 0


def _count_product(call: OperatorCall) -> int:
    """Count the operations of a matrix product: 2 x result elements x inner size.

    The inner size is the last dimension of the first factor, 1 for a scalar. Returns 0 if the
    first factor is not a tensor argument.
    """
    x = call.operand("mat1", "batch1", "self", "input")
    if call.operand("mat1", "batch1") is None and call.operand("input", "self") is None:
        return 0
    assert x is not None
    return 2 * call.result.num_elements * (x.shape[-1] if x.shape else 1)


def _count_convolution(call: OperatorCall) -> int:
    """Count the operations of a convolution, at two per multiplication; a bias is ignored.

    The result is 2 x elements x weights of one channel. The latter is the product of all
    sizes of the weight tensor except the first one.

    - `transposed` is True: the elements are those of the input.
    - Otherwise: the elements are those of the result.

    Returns 0 if the weight is no tensor argument, or if the input or result that is counted
    is no single tensor.
    """
    weight = call.operand("weight")
    elements: Tensor | None = call.result
    if call.argument("transposed") is True:
        elements = call.operand("input", "self")
    if weight is None or elements is None:
        return 0
    return 2 * elements.num_elements * prod(weight.shape[1:])


def _count_attention(factor: int) -> Work:
    """Return the function that counts the arithmetic operations of attention.

    The count is `factor` x elements of the query (batch x heads x queries x head size) x number of
    keys, which is the second-last dimension of the argument `key`. `factor` is 4 for the forward
    pass (two products) and 10 for the backward pass (five). The count is halved, rounded down, if
    `is_causal` is true. It is 0 if query or key is no tensor argument, or one of them has fewer
    than two dimensions.
    """

    def count(call: OperatorCall) -> int:
        query, key = call.operand("query"), call.operand("key")
        if query is None or key is None or min(len(query.shape), len(key.shape)) < 2:
            return 0
        count = factor * query.num_elements * key.shape[-2]
        return count // 2 if call.argument("is_causal") is True else count

    return count


def _slice_nothing(call: OperatorCall) -> frozenset[str]:
    return frozenset()


def _slice_pointwise(call: OperatorCall) -> frozenset[str]:
    """Return the operands whose dimension 0 corresponds to dimension 0 of the result.

    These have the same number of dimensions and the same size of dimension 0 as the result, and may
    be sliced together with it. Operands that are broadcast there, or have fewer dimensions, are not
    among them. Empty for a result without dimensions.
    """
    shape = call.result.shape
    return frozenset(
        name
        for name in call.node.reads
        if shape
        and len(call.tensors[name].shape) == len(shape)
        and call.tensors[name].shape[0] == shape[0]
    )


def _count_common(call: OperatorCall) -> int:
    """Count the leading dimensions in which all sliced operands have the size of the result.

    The sliced operands are those of `_slice_pointwise`: with as many dimensions as the result and
    the same first size. The count ends before the first dimension in which one differs; without
    such operands all dimensions count.
    """
    shape = call.result.shape
    shapes = [call.tensors[name].shape for name in _slice_pointwise(call)]
    same = [all(one[axis] == size for one in shapes) for axis, size in enumerate(shape)]
    return same.index(False) if False in same else len(same)


def _slice_first(*names: str) -> Slices:
    """Return a rule that permits slices of dimension 0 of one operand.

    The operand is the tensor of the first argument in `names` that is present. The rule
    permits no slices if this argument is no tensor, or if the operand or the result has no
    dimensions. Sizes are not compared.
    """

    def find(call: OperatorCall) -> frozenset[str]:
        operand = call.operand(*names)
        if operand is None or not operand.shape or not call.result.shape:
            return frozenset()
        return frozenset({operand.name})

    return find


def _slice_batches(*names: str) -> Slices:
    """Return a function that gives the names of the operands that may be sliced by batches.

    The function gets a call. It returns all operands of the call among `names`, if each of them has
    at least three dimensions, otherwise none. All but their last two dimensions are batches: each
    batch of the result depends only on the same batch of the operands. Arguments that are absent or
    no tensors are ignored.
    """

    def find(call: OperatorCall) -> frozenset[str]:
        operands = [operand for name in names if (operand := call.operand(name)) is not None]
        is_batch = all(len(operand.shape) >= 3 for operand in operands)
        return frozenset(operand.name for operand in operands) if is_batch else frozenset()

    return find


def _count_batches(name: str) -> RowDimensions:
    """Return a rule that counts the batch dimensions of an operand: all before the last two.

    The rule gives 1 if the argument is absent or no tensor, and 0 or -1 for an operand of two
    dimensions or one.
    """

    def count(call: OperatorCall) -> int:
        operand = call.operand(name)
        return 1 if operand is None else len(operand.shape) - 2

    return count


def _slice_rows(*names: str) -> Slices:
    """Return a rule for reductions: a function from a call to the operands that may be slices.

    The reduced operand is the first argument that is present of `self`, `input`, `grad_output`
    and `grad`. `names` are possible names of the argument with the reduced dimensions, where
    negative numbers count from the end. Without it, or if it is empty, all are reduced.

    - No operand may be a slice if the reduced one is no tensor or has fewer than two
      dimensions, or if dimension 0 is reduced.
    - Otherwise the reduced operand may be a slice. So may every operand with as many dimensions
      as the result and the same size of dimension 0.
    """

    def find(call: OperatorCall) -> frozenset[str]:
        operand = call.operand("self", "input", "grad_output", "grad")
        if operand is None or len(operand.shape) < 2 or 0 in call.dimensions(operand, *names):
            return frozenset()
        return _slice_pointwise(call) | {operand.name}

    return find


def _count_kept(*names: str) -> RowDimensions:
    """Return a rule for reductions that counts the dimensions before the lowest reduced one.

    `names`: possible names of the argument that lists the reduced dimensions
    (`OperatorCall.dimensions`). If it is absent, all are reduced, which gives 0. The rule gives 1
    if the operand is no tensor.
    """

    def count(call: OperatorCall) -> int:
        operand = call.operand("self", "input", "grad_output", "grad")
        return 1 if operand is None else min(call.dimensions(operand, *names))

    return count


def _count_unnormalized(call: OperatorCall) -> int:
    """Count the leading dimensions of the operand of a normalization that are not normalized.

    `normalized_shape` gives the number of trailing dimensions, 1 if it is no tuple. 0 if there is
    no operand; below 0 if `normalized_shape` is longer than the operand's shape.
    """
    operand, shape = call.operand("input", "self"), call.argument("normalized_shape")
    count = len(shape) if isinstance(shape, tuple) else 1
    return 0 if operand is None else len(operand.shape) - count


def _slice_normalized(*names: str) -> Slices:
    """Return a rule for normalizations: a function from a call to the names of operands.

    A rank may compute the call with slices of these operands along dimension 0 instead of the
    complete tensors. The names are those of the tensors in the arguments `names` of the call;
    absent arguments and those that are no tensors are ignored. The result is empty if the operand
    of the normalization (`input` or `self`) is absent, or if all its dimensions are normalized.
    """

    def find(call: OperatorCall) -> frozenset[str]:
        operands = [operand for name in names if (operand := call.operand(name)) is not None]
        is_row = _count_unnormalized(call) > 0
        return frozenset(operand.name for operand in operands) if is_row else frozenset()

    return find


def _slice_reshaped(call: OperatorCall) -> frozenset[str]:
    """Return the name of the operand of a reshape if it may be sliced along dimension 0.

    A slice of the operand then is a contiguous block of the result. The set is empty (no slice)
    if operand or result has no dimensions, if dimension 0 of the result has a size of at most
    1, and without an operand.
    """
    operand = call.operand("self", "input")
    if operand is None or not operand.shape or not call.result.shape:
        return frozenset()
    return frozenset({operand.name}) if call.result.shape[0] > 1 else frozenset()


def _slice_permuted(call: OperatorCall) -> frozenset[str]:
    """Return the name of the operand of a permutation if it may be sliced along dimension 0.

    It may if dimension 0 stays dimension 0: `dims` of a permutation begins with it, and a
    transposition exchanges two other dimensions (`dim0`, `dim1`, both given as integers).
    Negative numbers count from the end. Otherwise, and for a scalar or a missing operand, the
    result is empty: no operand may be sliced.
    """
    operand = call.operand("self")
    if operand is None or not operand.shape:
        return frozenset()
    rank = len(operand.shape)
    order = call.argument("dims")
    if isinstance(order, tuple):
        keeps = bool(order) and type(order[0]) is int and order[0] % rank == 0
    else:
        pair = (call.argument("dim0"), call.argument("dim1"))
        keeps = all(type(number) is int and number % rank != 0 for number in pair)
    return frozenset({operand.name}) if keeps else frozenset()


def _slice_other_dimension(*names: str) -> Slices:
    """Return the rule for operators along one dimension D, which can be sliced in dimension 0.

    `names`: possible names of the argument with D; if the argument is absent or no integer, D is 0.
    D counts in the first operand, and from the end if it is negative. The rule returns the names of
    the operands to slice in dimension 0. These are all operands if D is not 0 and all operands have
    the size of the result in dimension 0. Otherwise, also for a scalar result, a scalar first
    operand or no operands, there are none.
    """

    def find(call: OperatorCall) -> frozenset[str]:
        shape = call.result.shape
        tensors = [call.tensors[name] for name in call.node.reads]
        value = call.argument(*names)
        if not shape or not tensors or not tensors[0].shape:
            return frozenset()
        is_first = (value if type(value) is int else 0) % len(tensors[0].shape) == 0
        same = all(tensor.shape[:1] == shape[:1] for tensor in tensors)
        return frozenset() if is_first or not same else frozenset(call.node.reads)

    return find


def _name_operators(entry: Operator, names: str) -> dict[str, Operator]:
    """Map the names of aten operators, separated by blanks, to one entry."""
    return {f"aten.{name}": entry for name in names.split()}


_OPERATORS: dict[str, Operator] = {
    **_name_operators(
        Operator(_count_results(1), _slice_pointwise, row_dimensions=_count_common),
        "add add_ sub sub_ rsub mul mul_ div div_ neg neg_ pow sqrt sqrt_ rsqrt reciprocal exp log"
        " log1p abs sign square relu threshold_backward where eq ne lt le gt ge logical_and"
        " logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not maximum minimum"
        " clamp clamp_min clamp_max masked_fill _to_copy to copy copy_ lerp fmod remainder floor"
        " ceil round trunc isnan isinf isfinite cos sin erf zeros_like ones_like full_like"
        " empty_like clone contiguous tril triu",
    ),
    **_name_operators(
        Operator(_count_results(2), _slice_pointwise, row_dimensions=_count_common),
        "addcmul addcmul_ addcdiv addcdiv_",
    ),
    **_name_operators(
        Operator(_count_results(8), _slice_pointwise, row_dimensions=_count_common),
        "tanh sigmoid silu gelu tanh_backward sigmoid_backward silu_backward gelu_backward softplus"
        " hardtanh hardtanh_backward",
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_reshaped, is_view=True),
        "view _unsafe_view reshape flatten",
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_pointwise, is_view=True),
        "alias detach detach_ lift_fresh_copy view_as",
    ),
    **_name_operators(Operator(_count_no_work, _slice_permuted, is_view=True), "permute transpose"),
    **_name_operators(
        Operator(_count_no_work, _slice_nothing, is_view=True),
        "t numpy_T as_strided squeeze unsqueeze expand",
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_other_dimension("dim"), is_view=True),
        "slice select split split_with_sizes unbind chunk narrow",
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_other_dimension("dim")),
        "cat gather scatter scatter_add index_select split_with_sizes_copy slice_backward"
        " select_backward constant_pad_nd slice_scatter select_scatter",
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_nothing), "stack index index_put repeat roll"
    ),
    **_name_operators(
        Operator(_count_no_work, _slice_nothing),
        "arange full zeros ones empty scalar_tensor eye new_zeros new_full new_empty new_ones",
    ),
    **_name_operators(Operator(_count_product, _slice_first("mat1", "self", "input")), "mm addmm"),
    **_name_operators(
        Operator(_count_product, _slice_first("input", "self")), "linear matmul _scaled_mm mv"
    ),
    **_name_operators(Operator(_count_product, _slice_batches("self", "mat2")), "bmm"),
    **_name_operators(Operator(_count_product, _slice_batches("batch1", "batch2")), "baddbmm"),
    **_name_operators(Operator(_count_convolution, _slice_first("input")), "convolution conv2d"),
    **_name_operators(
        Operator(_count_operands(1), _slice_rows("dim"), row_dimensions=_count_kept("dim")),
        "sum mean amax amin max min any all argmax argmin cumsum prod logsumexp",
    ),
    **_name_operators(
        Operator(_count_operands(2), _slice_rows("dim"), row_dimensions=_count_kept("dim")),
        "var std var_mean linalg_vector_norm norm",
    ),
    **_name_operators(
        Operator(_count_operands(5), _slice_rows("dim"), row_dimensions=_count_kept("dim")),
        "_softmax softmax _log_softmax log_softmax _softmax_backward_data"
        " _log_softmax_backward_data",
    ),
    **_name_operators(
        Operator(
            _count_operands(8),
            _slice_normalized("input", "self"),
            row_dimensions=_count_unnormalized,
        ),
        "native_layer_norm layer_norm rms_norm _fused_rms_norm",
    ),
    # The gradients of weight and bias are sums of all rows.
    **_name_operators(
        Operator(
            _count_operands(14),
            _slice_normalized("grad_out", "input", "mean", "rstd"),
            row_dimensions=_count_unnormalized,
            row_results=1,
        ),
        "native_layer_norm_backward _fused_rms_norm_backward",
    ),
    **_name_operators(
        Operator(_count_operands(1), _slice_nothing),
        "nll_loss_forward nll_loss_backward nll_loss cross_entropy_loss mse_loss"
        " mse_loss_backward dot",
    ),
    **_name_operators(Operator(_count_no_work, _slice_first("indices")), "embedding"),
    **_name_operators(Operator(_count_operands(1), _slice_nothing), "embedding_dense_backward"),
    **_name_operators(
        Operator(_count_operands(4), _slice_rows("dim"), row_dimensions=_count_kept("dim")),
        "topk sort argsort",
    ),
    **_name_operators(
        Operator(
            _count_attention(4),
            _slice_batches("query", "key", "value"),
            row_dimensions=_count_batches("query"),
            # Output and logarithm of the sum; then state of random numbers and sizes.
            row_results=2,
        ),
        "scaled_dot_product_attention _scaled_dot_product_flash_attention"
        " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"
        " _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable",
    ),
    **_name_operators(
        Operator(
            _count_attention(10),
            _slice_batches("grad_out", "grad_out_", "query", "key", "value", "out", "logsumexp"),
            row_dimensions=_count_batches("query"),
            row_results=3,
        ),
        "_scaled_dot_product_flash_attention_backward"
        " _scaled_dot_product_flash_attention_for_cpu_backward"
        " _scaled_dot_product_efficient_attention_backward"
        " _scaled_dot_product_cudnn_attention_backward"
        " _scaled_dot_product_fused_attention_overrideable_backward",
    ),
    **_name_operators(
        Operator(_count_operands(12), _slice_nothing),
        "_fused_adamw _fused_adamw_ _fused_adam _fused_adam_ _fused_sgd _fused_sgd_",
    ),
    **_name_operators(
        Operator(_count_results(3), _slice_nothing, is_random=True),
        "native_dropout dropout bernoulli rand randn rand_like randn_like uniform normal",
    ),
}
