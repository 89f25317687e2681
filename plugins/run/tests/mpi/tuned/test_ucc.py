"""Tune strings of UCC: golden text, sizes of the destination, and what is no such string."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from collhub_mpi.tuned.ucc import read, write
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import Collective, CollectiveKind, Diagnostic
from hub_core.plugin_api import NoOptions, Selection, ServedCalls, Source, SourcePart
from hub_core.testing import ring_all_reduce, selected


def _written(
    kind: CollectiveKind, times: dict[str, Sequence[int]], sizes: Sequence[int], ranks: int = 16
) -> tuple[str, list[str]]:
    collective = Collective(kind, ranks, ranks, in_place=True)
    made = ring_all_reduce(2)
    found = selected(collective, sizes, times, lambda name, size: made)
    result = write(Selection("t", ranks, 1, (found,)), NoOptions())
    (artifact,) = result.artifacts
    return artifact.content().decode(), [str(loss) for loss in result.losses]


def _read(text: str) -> tuple[list[ServedCalls], list[str]]:
    found: list[Diagnostic] = []
    served = read(Source("ucc", (SourcePart("ucc.conf", text.encode),), found.append))
    return list(served), list(map(str, found))


def test_the_string_of_the_specification() -> None:
    times = {"recursive-doubling": (1, 9), "halving-doubling": (2, 2)}
    text, losses = _written(CollectiveKind.ALL_REDUCE, times, (1024, 4096))
    assert text == (
        "# collhub tune: t\n"
        "UCC_TL_UCP_TUNE = allreduce:0-4096:[16-16]:inf:@knomial"
        "#allreduce:4096-inf:[16-16]:inf:@sra_knomial\n"
    )
    assert losses == []


def test_reduce_scatter_counts_the_part_of_one_rank() -> None:
    times = {"ring": (1, 9), "halving-doubling": (2, 2)}
    text, _ = _written(CollectiveKind.REDUCE_SCATTER, times, (1024, 4096))
    assert "reduce_scatter:0-256:[16-16]:inf:@ring#reduce_scatter:256-inf:" in text
    served, found = _read(text)
    assert found == []
    assert [(s.min_bytes, s.max_bytes) for s in served] == [(0, 4080), (4081, None)]


@given(
    st.lists(st.integers(1, 1 << 20), min_size=2, max_size=5, unique=True).map(sorted),
    st.integers(2, 9),
)
def test_parts_leave_no_gap(sizes: list[int], ranks: int) -> None:
    times = {
        name: [1 + (place % 2 == number) for place in range(len(sizes))]
        for number, name in enumerate(("ring", "halving-doubling"))
    }
    served, found = _read(_written(CollectiveKind.REDUCE_SCATTER, times, sizes, ranks)[0])
    assert found == []
    assert (served[0].min_bytes, served[-1].max_bytes) == (0, None)
    for one, behind in pairwise(served):
        assert one.max_bytes is not None
        assert one.max_bytes + 1 == behind.min_bytes


def test_a_collective_that_ucc_is_not_told_of_is_a_loss() -> None:
    text, losses = _written(CollectiveKind.ALL_TO_ALL, {"direct": (1,)}, (1024,))
    assert "UCC_TL_UCP_TUNE" not in text
    assert "no algorithm of UCC was compared and fits" in losses[0]
    assert _read(text) == ([], [])


@pytest.mark.parametrize(
    "value",
    [
        "allreduce:0-4KiB:[16-16]:inf:@knomial",
        "allreduce:0-4Q:[16-16]:inf:@knomial",
        "allreduce:0-inf:[16-16]:0:@knomial",
        "allreduce:0-4K:4K-inf:[16]:inf:@knomial",
        "allreduce,barrier:inf:@knomial",
        "allreduce:[]:inf:@knomial",
        "allreduce:0-inf:[16-16]:inf:@bruck",
        "barrier:0-inf:[16-16]:inf:@knomial",
        "allreduce:9-9:[16-16]:inf:@knomial",
        "allreduce",
    ],
)
def test_another_string_serves_nothing(value: str) -> None:
    served, found = _read(f"UCC_TL_UCP_TUNE = {value}\n")
    assert served == []
    assert len(found) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("allreduce:0-9:[8-4]:inf:@ring", "has no number of ranks; write the smaller one first"),
        ("allreduce:0-4Q:[8-8]:inf:@ring", "@algorithm: '0-4Q'; write collectives and algorithms"),
        ("allreduce:[x]:inf:@ring", "has no number of ranks: '[x]'; write for example [16]"),
        (f"allreduce:@ring:[{','.join(map(str, range(1, 1002)))}]", "exceeds 1000 choices"),
        ("allreduce:0-9:[8]:@ring#allreduce:8-inf:[2-8]:@dbt", "an earlier choice has"),
        ("allreduce:0-9:@ring#allreduce:8-inf:cuda:@dbt", "an earlier choice has"),
        ("allreduce:0-9:[8-8]:inf:@ring#allreduce:8-inf:[8-8]:inf:@dbt", "an earlier choice has"),
        ("reduce_scatter:0-9:[4-8]:inf:@ring", "; write one token for each number of ranks"),
    ],
)
def test_a_choice_that_is_refused_has_line_and_cure(value: str, reason: str) -> None:
    served, (finding,) = _read(f"# comment\nUCC_TL_UCP_TUNE = {value}\n")
    assert served == []
    assert "ucc.conf:2: " in finding
    assert reason in finding


def test_a_choice_for_several_numbers_of_ranks_names_both_ends() -> None:
    text = "UCC_TL_UCP_TUNE = allreduce:0-9:[4-8]:inf:@ring#allreduce:0-9:[2-2]:inf:@ring\n"
    served, found = _read(text)
    assert found == []
    assert [one.by for one in served] == ["ring of 4 to 8 ranks", "ring of 2 ranks"]


def test_sizes_have_the_units_of_ucx() -> None:
    text = "allreduce:0-4k:[4]:@knomial#allreduce:4KB-1M:[4]:inf:@ring#allreduce:1Mb-INF:@dbt:[4]"
    served, found = _read(f"UCC_TL_UCP_TUNE = {text}\n")
    assert found == []
    assert [(one.min_bytes, one.max_bytes) for one in served] == [
        (0, 4095), (4096, (1 << 20) - 1), (1 << 20, None),
    ]  # fmt: skip


def test_fields_are_in_any_order_and_may_be_lists() -> None:
    text = "@ring:10:[2-4,16-inf]:cuda,rocm:0-1K,2K-3K:ALLREDUCE,allgather"
    served, found = _read(f"UCC_TL_UCP_TUNE = {text}\n")
    assert found == []
    assert len(served) == 8
    assert {one.kind for one in served} == {CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER}
    assert {one.by for one in served} == {
        "ring of 2 to 4 ranks in cuda or rocm memory",
        "ring of 16 or more ranks in cuda or rocm memory",
    }


def test_a_choice_without_sizes_and_ranks_serves_all_calls() -> None:
    text = "reduce_scatter:@ring#allreduce:cuda:@ring#allreduce:host:@dbt"
    served, found = _read(f"UCC_TL_UCP_TUNE = {text}\n")
    assert found == []
    assert [(one.min_bytes, one.max_bytes, one.by) for one in served] == [
        (0, None, "ring"), (0, None, "ring in cuda memory"), (0, None, "dbt in host memory"),
    ]  # fmt: skip
