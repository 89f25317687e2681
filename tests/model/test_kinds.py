from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hub_core.model import (
    REDUCING,
    ROOTED,
    STANDARD_KINDS,
    UNEVEN_KINDS,
    Collective,
    CollectiveKind,
    JobCollective,
    standard_kind,
    uneven_kind,
)


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_traits_say_what_the_postcondition_shows(kind):
    root = 1 if kind.traits.is_rooted else None
    collective = Collective(kind, 3, 6, root=root)
    rows = collective.postcondition()
    assert rows is not None
    sources = set(rows.source_rank.tolist())
    assert kind.traits.reduces == (sources == {-1})
    assert kind.traits.from_root == (sources == {1})
    assert kind.traits.to_root == (set(rows.rank.tolist()) == {1})
    if kind.traits.is_split:
        assert collective.units_per_rank == 2
    if kind.traits.input_is_part:
        assert np.all(collective.input_units() == 2)
    if kind.traits.output_is_part:
        assert np.all(collective.output_units() == 2)


def test_collectives_of_jobs_have_kinds_and_names():
    assert JobCollective(np.int8(-1)) is JobCollective.UNKNOWN
    assert JobCollective.UNKNOWN.kind is JobCollective.BARRIER.kind is None
    assert JobCollective.REDUCE_SCATTER_BLOCK.kind is CollectiveKind.REDUCE_SCATTER
    names = [(job.label, job.noun) for job in (JobCollective.ALL_REDUCE, JobCollective.UNKNOWN)]
    assert names == [("all-reduce", "all-reduce"), ("unknown", "unknown collective")]
    # Tables by the number of a collective have UNKNOWN, -1, as their last entry.
    assert [list(JobCollective)[job] for job in JobCollective] == list(JobCollective)


def test_sets_of_kinds_follow_the_traits():
    assert {kind for kind in CollectiveKind if kind.traits.is_rooted} == ROOTED
    assert {kind for kind in CollectiveKind if kind.traits.reduces} == REDUCING


def test_standard_kinds_are_those_without_a_table():
    tables = {CollectiveKind.CUSTOM, *UNEVEN_KINDS}
    assert set(STANDARD_KINDS) == set(CollectiveKind) - tables
    assert all(str(kind).endswith("-v") and kind.traits.is_split for kind in UNEVEN_KINDS)


@pytest.mark.parametrize("name", ["all-to-all-v", "all_to_all_v", "alltoallv", "AllToAllV"])
def test_uneven_kinds_are_known_in_every_usual_spelling_and_are_no_standard_kinds(name):
    assert uneven_kind(name) is CollectiveKind.ALL_TO_ALL_V
    assert standard_kind(name) is None
    assert uneven_kind("all-to-all") is None


def test_kinds_need_no_numpy():
    script = "import sys, hub_core.model.kinds; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_collectives_are_known_in_every_usual_spelling(kind: CollectiveKind) -> None:
    words = kind.split("-")
    spellings = [
        "-".join(words),
        "_".join(words),
        "".join(words),
        "".join(word.capitalize() for word in words),
        "_".join(words).upper(),
        "_".join(words) + "_perf",
    ]
    assert [standard_kind(name) for name in spellings] == [kind] * len(spellings)


def test_names_of_mpi_and_nccl_are_known_and_others_are_not() -> None:
    assert standard_kind("bcast") is CollectiveKind.BROADCAST
    assert standard_kind("alltoall") is CollectiveKind.ALL_TO_ALL
    assert standard_kind("custom") is None
    assert standard_kind("all-reduces") is None
