"""All-reduce in nested groups: correct for all sizes of levels, and near the bound on fat trees."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from collhub_classic.nested import build_nested_steps, choose_levels

import hub_core
from hub_core import Algorithm, Collective, CollectiveKind, HubError, verify
from hub_core.model import Provenance
from hub_core.plugin_api import Simulator, SynthesisResult


def make(text: str, size: int = 1 << 20, **options: str) -> SynthesisResult:
    topology = hub_core.parse_topology(text)
    ranks = topology.num_npus
    collective = Collective(CollectiveKind.ALL_REDUCE, ranks, ranks, in_place=True)
    return hub_core.synthesize(collective, topology, size, name="nested", options=options)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("sizes", [(2,), (5,), (2, 3), (3, 2, 2), (4, 1, 3), (1, 2)])
def test_every_choice_of_levels_is_a_correct_all_reduce(
    sizes: tuple[int, ...], chunks: int
) -> None:
    ranks = prod(sizes)
    steps = build_nested_steps(sizes, chunks)
    collective = Collective(
        CollectiveKind.ALL_REDUCE, ranks, ranks * chunks, in_place=True, out_of_place=True
    )
    report = verify(Algorithm(collective, steps, np.zeros(ranks, np.int64), Provenance("test")))
    assert report.ok
    # Two messages per partner of every level, phase and chunk.
    assert int(steps.sends.sum()) == 2 * chunks * ranks * sum(size - 1 for size in sizes)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("fat-tree:4", [2, 2, 4]),
        ("leaf-spine:6,4,2", [4, 6]),
        ("dgx-h100:4", [8, 4]),
        ("rail:3x8", [8, 3]),
        ("switch:8", [8]),
        # Levels above 32 are divided; primes are not.
        ("switch:64", [8, 8]),
        ("switch:37", [37]),
    ],
)
def test_levels_are_those_of_the_network(text: str, sizes: list[int]) -> None:
    assert choose_levels(hub_core.parse_topology(text), "auto") == sizes


def test_chunks_overlap_in_the_switches_of_a_fat_tree() -> None:
    if not hub_core.discover().all(Simulator):
        pytest.skip("no simulator is installed")
    result = make("fat-tree:4", 1 << 26)
    assert result.statistics["sizes"] == "2x2x4"
    assert int(result.statistics["chunks"]) > 1
    assert result.ratio_to_bound is not None
    assert result.ratio_to_bound < 1.03


@pytest.mark.parametrize(
    ("text", "size", "options", "message"),
    [
        ("switch:8", 1 << 20, {"sizes": "3x3"}, "option sizes: 3x3 is not 8 ranks"),
        ("switch:8", 1 << 20, {"sizes": "4by2"}, "option sizes: 4by2 is not 8 ranks"),
        ("switch:8", 7, {}, "7 bytes cannot be cut in 8 parts"),
        ("switch:8", 15, {"chunks": "2"}, "15 bytes cannot be cut in 16 parts"),
    ],
)
def test_unsuitable_options_are_one_line(
    text: str, size: int, options: dict[str, str], message: str
) -> None:
    with pytest.raises(HubError, match=message):
        make(text, size, **options)
