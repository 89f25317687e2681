"""The check that data of a collective can reach all NPUs that need them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.collectives import Collective
from hub_core.model.counts import UnitCounts
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import ROOTED, STANDARD_KINDS, CollectiveKind
from hub_core.network.bounds import lower_bound_ns
from hub_core.network.links import Links
from hub_core.network.reachability import check_paths, find_unreachable_pair
from hub_core.network.topology import Topology

Pairs = list[tuple[int, int]]


def network(npus: int, pairs: Pairs, nodes: int | None = None) -> Topology:
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    links = Links.uniform(ends[:, 0], ends[:, 1], 50e9, 0.0)
    return links.topology("parts", npus, nodes or npus)


def test_pairs_and_nodes_before_the_missing_link_are_named() -> None:
    switched = network(4, [(0, 4), (4, 1), (1, 4), (4, 0), (2, 3), (3, 2), (2, 4)], 5)
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 4)
    with pytest.raises(InputError) as error:
        check_paths(collective, switched, (0, 1, 2, 3))
    assert error.value.diagnostics[0].code == "disconnected"
    assert str(error.value).startswith(
        "topology parts: NPU 0 cannot reach NPU 2: no link leaves NPUs 0,1 and switch 0;"
    )
    check_paths(Collective(CollectiveKind.ALL_REDUCE, 2, 2), switched, (1, 0))


@pytest.mark.parametrize("kind", sorted(ROOTED))
def test_a_root_needs_paths_in_one_direction(kind: CollectiveKind) -> None:
    collective = Collective(kind, 3, 3, root=1)
    out: Pairs = [(1, 0), (0, 2)]
    back = [(end, start) for start, end in out]
    good, bad = (back, out) if kind.traits.to_root else (out, back)
    check_paths(collective, network(3, good), (0, 1, 2))
    with pytest.raises(InputError, match="cannot reach NPU"):
        check_paths(collective, network(3, bad), (0, 1, 2))


def test_empty_parts_need_no_path() -> None:
    one_way = network(3, [(0, 1), (1, 2)])
    counts = UnitCounts.from_table([[1, 2, 3], [0, 0, 1], [0, 0, 2]], is_per_pair=True)
    needs = Collective(CollectiveKind.ALL_TO_ALL_V, 3, counts.total, counts=counts)
    check_paths(needs, one_way, (0, 1, 2))
    with pytest.raises(InputError, match="NPU 1 cannot reach NPU 0: no link leaves NPUs 1,2"):
        check_paths(needs, one_way, (1, 0, 2))


def test_the_first_npu_without_a_path_back_is_found() -> None:
    assert find_unreachable_pair(network(3, [(0, 1), (1, 2), (2, 1)]), (0, 2, 1)) == (2, 0)
    assert find_unreachable_pair(network(3, [(0, 1), (1, 2), (2, 0)]), (0, 2, 1)) is None


@given(
    st.sampled_from(STANDARD_KINDS),
    st.lists(st.sampled_from(list(itertools.permutations(range(4), 2))), unique=True),
    st.permutations(range(4)),
    st.integers(2, 4),
)
def test_paths_are_missing_exactly_if_the_lower_bound_is_infinite(
    kind: CollectiveKind, pairs: Pairs, order: list[int], ranks: int
) -> None:
    collective = Collective(kind, ranks, ranks, root=ranks - 1 if kind in ROOTED else None)
    topology, npus = network(4, pairs), tuple(order[:ranks])
    bound_ns = lower_bound_ns(collective, topology, 64, npus)
    try:
        check_paths(collective, topology, npus)
    except InputError:
        assert bound_ns == float("inf")
    else:
        assert bound_ns is not None
        assert bound_ns < float("inf")
