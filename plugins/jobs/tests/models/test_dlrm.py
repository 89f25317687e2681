"""The generator of recommendation models: totals, exchanges, and what overlaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from collhub_models.dlrm import generate
from collhub_models.plugin import DlrmOptions

from hub_core import UsageError
from hub_core.model import JobCollective

SMALL = DlrmOptions(
    ranks=4, tables=8, dimension=16, pooling=4, batch=64, bottom="13-32", top="32-1"
)
# 8 tables and the output of the bottom MLP: 36 pairs beside its 16 elements.
BOTTOM, TOP = (13, 32, 16), (52, 32, 1)


def products(widths: tuple[int, ...]) -> int:
    return sum(one * other for one, other in pairwise(widths))


def test_gradients_of_both_mlps_are_reduced() -> None:
    nodes = generate(SMALL).nodes
    sizes = nodes.bytes[(nodes.collective == JobCollective.ALL_REDUCE) & (nodes.rank == 3)]
    assert sizes.tolist() == [4 * (products(TOP) + 33), 4 * (products(BOTTOM) + 48)]


def test_embeddings_are_exchanged_forward_and_backward() -> None:
    nodes = generate(SMALL).nodes
    sizes = nodes.bytes[(nodes.collective == JobCollective.ALL_TO_ALL) & (nodes.rank == 0)]
    # 64 samples of 2 tables of 16 elements of 4 bytes.
    assert sizes.tolist() == [64 * 2 * 16 * 4] * 2


def test_operations_of_mlps_are_six_a_weight_and_sample() -> None:
    job = generate(SMALL)
    total = sum(
        int(operations)
        for operations, name in zip(job.nodes.operations, job.nodes.name, strict=True)
        if operations > 0 and job.names[name].endswith(("top", "bottom"))
    )
    assert total == 6 * 64 * (products(TOP) + products(BOTTOM))


def test_bottom_mlp_does_not_wait_for_the_exchange() -> None:
    job = generate(SMALL)
    nodes, row = job.nodes, [job.names[name] for name in job.nodes.name].index("forward bottom")
    parents = [
        *nodes.data_indices[nodes.data_indptr[row] : nodes.data_indptr[row + 1]],
        *nodes.control_indices[nodes.control_indptr[row] : nodes.control_indptr[row + 1]],
    ]
    assert [job.names[nodes.name[parent]] for parent in parents] == ["look-up"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tables": 6}, "tables 6 is no multiple of ranks 4"),
        ({"batch": 3}, "batch 3 is no multiple of ranks 4"),
        ({"top": "32-x"}, "top '32-x' is not a list of widths"),
        ({"top": "1" * 5000}, "is not a list of widths"),
        ({"bottom": ""}, "bottom '' is not a list of widths"),
    ],
)
def test_options_that_fit_no_job_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate(replace(SMALL, **wrong))
