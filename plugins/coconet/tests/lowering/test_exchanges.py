"""AllToAll in flat graphs: by any algorithm, executed on real arrays, at sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attention_parallel import ulysses
from collhub_coconet import Binding, Program, overlap
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.flat_program import extract_algorithm
from flat_programs import flat_of, registry
from moe import moe

from hub_core import InputError, parse_topology, verify
from hub_core.model import NodeKind

# Of no dimension that is exchanged is the length a multiple of the ranks.
SIZES = {"E": 5, "C": 7, "H": 3, "F": 2, "A": 5, "S": 7, "D": 3}
ALGORITHMS = [
    Choice("direct"),
    Choice("pairwise", 2),
    Choice("bruck", 3),
    Choice("tacos", tiles=2),
    Choice("astra-ring"),
]


@pytest.mark.parametrize("make", [moe, ulysses])
@pytest.mark.parametrize("choice", ALGORITHMS, ids=lambda one: str(one.algorithm))
def test_exchanges_are_executed_by_any_algorithm(
    make: Callable[[], Program], choice: Choice
) -> None:
    flat = flat_of(make(), 4, choice, SIZES)
    found = execute_and_compare(make(), flat, seed=3)
    assert found.ok, found.differences


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_chain_into_an_exchange_starts_when_its_tile_is_there(num_ranks: int) -> None:
    before = moe()
    after = overlap(before, ["y", "combined"]).program
    flat = flat_of(after, num_ranks, Choice("direct", 2), SIZES)
    assert execute_and_compare(before, flat, seed=1).ok
    nodes = flat.workload.nodes
    apart = flat_of(before, num_ranks, Choice("direct", 2), SIZES).workload.nodes
    # The product is cut in tiles, one for what goes to each rank.
    is_computed, is_whole = (one.is_kind(NodeKind.COMPUTE).sum() for one in (nodes, apart))
    assert is_computed > is_whole


def test_exchange_in_a_flat_graph_is_an_all_to_all() -> None:
    flat = flat_of(moe(), 4, Choice("bruck", 2), SIZES)
    for piece in range(2):
        algorithm = extract_algorithm(flat, "dispatched", piece)
        assert str(algorithm.collective.kind) == "all-to-all"
        assert verify(algorithm).ok


def test_messages_of_an_exchange_have_the_bytes_of_the_longest_block() -> None:
    flat = flat_of(moe(), 4, Choice("direct"), {"E": 5, "C": 7, "H": 3, "F": 2})
    nodes = flat.workload.nodes
    sizes = set(nodes.bytes[nodes.is_kind(NodeKind.SEND)].tolist())
    # float32 of ceil(5 / 4) experts, ceil(7 / 4) slots and 3 channels.
    assert sizes == {4 * 2 * 2 * 3}


def test_exchange_has_an_algorithm_where_none_is_chosen() -> None:
    network = parse_topology("ring:3", registry=registry())
    flat = flatten(moe(), Binding(3, {"E": 6, "C": 6, "H": 2, "F": 2}), network)
    assert execute_and_compare(moe(), flat).ok
    with pytest.raises(InputError, match="binomial does not support all-to-all"):
        flat_of(moe(), 3, Choice("binomial"), SIZES)
