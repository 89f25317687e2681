"""Rules of refused transformations: one per condition of `collhub transform --pass`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_similar_rules

_REFUSALS = (
    (
        "refused-target",
        "No operation has the name, or it has another kind than the transformation changes.",
        "`split` of a MatMul",
    ),
    (
        "refused-dimension",
        "The tensor lacks the dimension, or has one element along it.",
        "`-O dimension=2` for a matrix",
    ),
    ("refused-root", "The root is negative.", "`-O root=-1`"),
    (
        "refused-commutative",
        "The reduction depends on the order of the ranks, so that it cannot be divided.",
        "`split` of an AllReduce with a reduction that is not commutative",
    ),
    (
        "refused-several",
        "A stage, a bucket or a chain needs two members.",
        "`fuse` of one operation",
    ),
    (
        "refused-whole-stages",
        "A member is in a stage that has other operations, too.",
        "`overlap` of one of the fused operations",
    ),
    (
        "refused-no-cycle",
        "The members would wait for operations outside of them, which wait for the members.",
        "`fuse` of x and z where y reads x, and z reads y",
    ),
    (
        "refused-stages",
        "The new program has a stage that is no kernel or bucket, or stages that wait for each "
        "other.",
        "a split of an operation within a stage",
    ),
    (
        "refused-nesting",
        "The new program has no valid layout on a mesh of several axes.",
        "a dimension that is sliced along two axes",
    ),
    (
        "refused-order",
        "The program has an overlapped chain, after which no transformation is possible.",
        "`fuse` after `overlap`",
    ),
    (
        "refused-pointwise",
        "A member is no pointwise operation, norm or sum and no communication.",
        "`fuse` with a MatMul",
    ),
    (
        "refused-one-space",
        "The members have different shapes, layouts or groups.",
        "`fuse` of operations on matrices of different sizes",
    ),
    (
        "refused-one-communication",
        "The members have communications that are not one AllReduce, one ReduceScatter with its "
        "AllGathers (also by counts), or one Send.",
        "`fuse` of two AllReduces",
    ),
    (
        "refused-slices-only",
        "A member reads or gathers other data than the slice or rows of the ReduceScatter.",
        "`fuse` of a ReduceScatter with an operation on a replicated tensor",
    ),
    (
        "refused-collective",
        "A member of a bucket is no AllReduce, ReduceScatter, AllGather or uneven collective.",
        "`coalesce` of a MatMul",
    ),
    (
        "refused-one-class",
        "The members of a bucket differ in kind, reduction, group, axis, element type or counts.",
        "`coalesce` of an AllReduce in float32 and one in float16",
    ),
    (
        "refused-independent",
        "A member of a bucket depends on another member.",
        "`coalesce` of an AllReduce and one of its result",
    ),
    (
        "refused-one-chain",
        "A member is in an overlapped chain already.",
        "`overlap` of an operation that another chain has",
    ),
    (
        "refused-consumes",
        "A member of a chain does not read the member before it.",
        "`overlap` of operations in the wrong order",
    ),
    (
        "refused-chunkable",
        "A member cannot work chunk by chunk, or two neighbours have no common dimension of "
        "chunks.",
        "`overlap` with a norm, which needs all chunks",
    ),
    (
        "refused-row-blocks",
        "An uneven collective reads its rows in other blocks than the collective before it in the "
        "chain delivers.",
        "`overlap` of a dispatch and a combine whose counts are not transposed",
    ),
    (
        "refused-no-other-order",
        "The chain and the rest of the program have no common order of execution.",
        "`overlap` of two operations with a reader between them",
    ),
    (
        "refused-uses-gather",
        "No member reads the AllGather.",
        "`reorder` of operations before the AllGather",
    ),
    (
        "refused-closed",
        "An operation outside of the members is on a path from the AllGather to a member.",
        "`reorder` of the first and the last of three operations",
    ),
    (
        "refused-commutes",
        "A member does not give the same result on slices.",
        "`reorder` of a MatMul along the dimension of its sum",
    ),
    (
        "refused-no-local-operand",
        "A member has an operand that differs between the ranks, and has no slice.",
        "`reorder` of a sum with a local tensor",
    ),
    (
        "refused-replicated-state",
        "The name is none of a replicated state.",
        "`as-slice` of an input",
    ),
    (
        "refused-not-needed-whole",
        "Every rank reads the whole state after the program.",
        "`as-slice` of a state with `whole_after`",
    ),
    (
        "refused-one-dimension",
        "The uses of a state slice it along no dimension, or along several.",
        "`as-slice` of a state that is sliced by rows and by columns",
    ),
    (
        "refused-one-axis",
        "An AllGather goes over several axes of the mesh, or the uses of a state slice it along "
        "several.",
        "`as-slice` of a state that is sliced along `dp` and `tp`",
    ),
    (
        "refused-sliced-use",
        "An operation reads the whole state, or its slice is an output.",
        "`as-slice` of a state that a MatMul reads",
    ),
    (
        "refused-gathered-value",
        "The new value of a state is no AllGather of a slice.",
        "`as-slice` of a state that an Update sets to a replicated value",
    ),
)


def list_transformation_rules() -> Sequence[Rule]:
    """Return the rules `refused-CONDITION` of all conditions of transformations."""
    return declare_similar_rules(
        "requests: transformations of tensor programs",
        _REFUSALS,
        cause="The transformation would change the result of the program, or has no members.",
        cure="Change the members or the target as the message says.",
    )
