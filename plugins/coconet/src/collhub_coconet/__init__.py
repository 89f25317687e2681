"""Programs of computations and collectives: typed, transformed, and shown to be equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_coconet.documents.json_document import program_from_json, program_to_json
    from collhub_coconet.documents.text import statements, text
    from collhub_coconet.execution.comparison import Comparison, compare
    from collhub_coconet.program.building import ProgramBuilder, Value
    from collhub_coconet.program.functions import (
        all_gather,
        all_gather_v,
        all_reduce,
        all_to_all,
        all_to_all_v,
        arg_max,
        batch_matmul,
        broadcast,
        cast,
        concat,
        conv,
        dropout,
        equal,
        erf,
        exp,
        gather,
        index_of,
        largest,
        log,
        matmul,
        norm,
        part,
        permute,
        reduce,
        reduce_scatter,
        reduce_scatter_v,
        reshape,
        row_reduce,
        scatter,
        select,
        send,
        slice_of,
        sqrt,
        tanh,
        top_k,
        total,
        transpose,
        update,
    )
    from collhub_coconet.program.operations import (
        LOCAL,
        REPLICATED,
        Argument,
        Binding,
        ElementType,
        Kind,
        Layout,
        Operation,
        Placement,
        Reduction,
        TensorType,
        at_root,
        on_mesh,
        partial,
        sliced,
    )
    from collhub_coconet.program.program import Chain, Program, Stage
    from collhub_coconet.transformations.buckets import coalesce, coalesce_by_size
    from collhub_coconet.transformations.costs import Costs, costs
    from collhub_coconet.transformations.grouping import fuse, overlap
    from collhub_coconet.transformations.legality import (
        LegalityRecord,
        RefusedMoveError,
        Rewrite,
        remove_dead,
    )
    from collhub_coconet.transformations.moves import Move, legal_moves
    from collhub_coconet.transformations.reorder import movable, reorder
    from collhub_coconet.transformations.slicing import as_slice, split, split_at_root

__all__ = [
    "LOCAL",
    "REPLICATED",
    "Argument",
    "Binding",
    "Chain",
    "Comparison",
    "Costs",
    "ElementType",
    "Kind",
    "Layout",
    "LegalityRecord",
    "Move",
    "Operation",
    "Placement",
    "Program",
    "ProgramBuilder",
    "Reduction",
    "RefusedMoveError",
    "Rewrite",
    "Stage",
    "TensorType",
    "Value",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "arg_max",
    "as_slice",
    "at_root",
    "batch_matmul",
    "broadcast",
    "cast",
    "coalesce",
    "coalesce_by_size",
    "compare",
    "concat",
    "conv",
    "costs",
    "dropout",
    "equal",
    "erf",
    "exp",
    "fuse",
    "gather",
    "index_of",
    "largest",
    "legal_moves",
    "log",
    "matmul",
    "movable",
    "norm",
    "on_mesh",
    "overlap",
    "part",
    "partial", "permute",
    "program_from_json",
    "program_to_json",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "remove_dead",
    "reorder",
    "reshape",
    "row_reduce",
    "scatter",
    "select",
    "send",
    "slice_of",
    "sliced",
    "split",
    "split_at_root",
    "sqrt",
    "statements",
    "tanh",
    "text",
    "top_k",
    "total",
    "transpose",
    "update",
]  # fmt: skip

# Imported on first use: the hub lists the plugin without numpy.
__getattr__ = names_from(
    __name__,
    {
        "collhub_coconet.documents.json_document": "program_from_json program_to_json",
        "collhub_coconet.documents.text": "statements text",
        "collhub_coconet.execution.comparison": "Comparison compare",
        "collhub_coconet.program.building": "ProgramBuilder Value",
        "collhub_coconet.program.functions": (
            "all_gather all_gather_v all_reduce all_to_all all_to_all_v arg_max batch_matmul "
            "broadcast cast concat conv dropout equal erf exp gather index_of largest log matmul "
            "norm part permute reduce reduce_scatter reduce_scatter_v reshape row_reduce scatter "
            "select send slice_of sqrt tanh top_k total transpose update"
        ),
        "collhub_coconet.program.program": "Chain Program Stage",
        "collhub_coconet.program.operations": (
            "Argument Binding ElementType Kind LOCAL Layout Operation Placement REPLICATED "
            "Reduction TensorType at_root on_mesh partial sliced"
        ),
        "collhub_coconet.transformations.costs": "Costs costs",
        "collhub_coconet.transformations.legality": (
            "LegalityRecord RefusedMoveError Rewrite remove_dead"
        ),
        "collhub_coconet.transformations.moves": "Move legal_moves",
        "collhub_coconet.transformations.buckets": "coalesce coalesce_by_size",
        "collhub_coconet.transformations.grouping": "fuse overlap",
        "collhub_coconet.transformations.reorder": "movable reorder",
        "collhub_coconet.transformations.slicing": "as_slice split split_at_root",
    },
)
