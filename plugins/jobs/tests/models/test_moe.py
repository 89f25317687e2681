"""The generator of mixtures of experts: tokens, messages, work, and two levels of exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_models.moe import generate
from collhub_models.plugin import MoeOptions

import hub_core
from hub_core import UsageError
from hub_core.model import NodeKind, TokenRouting

SMALL = MoeOptions(
    ranks=8, node_ranks=4, experts=16, top_k=4, tokens=64, hidden=64, nodes="messages"
)
TOKEN_BYTES = 64 * 2


def sent_bytes(workload: hub_core.Workload) -> np.ndarray:
    """Bytes of all messages by (source, destination)."""
    nodes = workload.nodes
    sends = nodes.is_kind(NodeKind.SEND)
    table = np.zeros((8, 8), np.int64)
    np.add.at(table, (nodes.rank[sends], nodes.peer[sends]), nodes.bytes[sends])
    return table


def routing(options: MoeOptions) -> TokenRouting:
    return TokenRouting(
        options.experts,
        options.top_k,
        options.tokens,
        options.skew,
        options.seed,
        options.replicas,
    )


def test_a_token_is_sent_once_to_every_rank_that_has_its_experts_and_returns() -> None:
    chosen = routing(SMALL).draw(8)
    expected = np.zeros((8, 8), np.int64)
    for rank, experts in enumerate(chosen):
        for token in experts:
            for target in {int(expert) // 2 for expert in token} - {rank}:
                expected[rank, target] += TOKEN_BYTES
    assert np.array_equal(sent_bytes(generate(SMALL)), expected + expected.T)


def test_two_levels_send_a_token_once_per_node_over_the_network() -> None:
    direct, levels = (
        sent_bytes(generate(replace(SMALL, exchange=name))) for name in ("direct", "two-level")
    )
    node = np.arange(8) // 4
    between = node[:, None] != node
    # Over the network only ranks of one local index exchange tokens.
    assert np.all(
        (levels[between] > 0) <= ((np.arange(8)[:, None] - np.arange(8)) % 4 == 0)[between]
    )
    assert levels[between].sum() < direct[between].sum()
    expected = 0
    for rank, experts in enumerate(routing(SMALL).draw(8)):
        for token in experts:
            expected += len({int(expert) // 8 for expert in token} - {rank // 4})
    # Every copy of the dispatch returns in the combine.
    assert levels[between].sum() == 2 * expected * TOKEN_BYTES


def test_experts_compute_in_proportion_to_the_tokens_they_receive() -> None:
    nodes = generate(SMALL).nodes
    is_experts = nodes.is_kind(NodeKind.COMPUTE) & (nodes.name == 3)
    tokens = routing(SMALL).count_tokens(8).sum(axis=0).reshape(8, 2).sum(axis=1)
    assert nodes.operations[is_experts].tolist() == (6 * tokens * 64 * 2048).tolist()


@pytest.mark.parametrize("exchange", ["direct", "two-level"])
def test_parts_divide_tokens_and_work_without_a_remainder(exchange: str) -> None:
    whole = generate(replace(SMALL, exchange=exchange))
    parts = generate(replace(SMALL, exchange=exchange, parts=3))
    assert np.array_equal(sent_bytes(whole), sent_bytes(parts))
    assert whole.nodes.operations.clip(0).sum() == parts.nodes.operations.clip(0).sum()


def test_replicas_of_popular_experts_take_load_from_the_busiest_rank() -> None:
    skewed = replace(SMALL, skew=1.5, tokens=256)
    received = [
        sent_bytes(generate(replace(skewed, replicas=replicas))).sum(axis=0).max()
        for replicas in (0, 2)
    ]
    assert received[1] < received[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 17}, "experts 17 is no multiple of 8"),
        ({"node_ranks": 3}, "ranks 8 is no multiple of 3"),
        ({"top_k": 17}, "top_k 17 is more than the 16 experts"),
        ({"replicas": 17}, "replicas 17 is more than the 16 experts"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(changes, message) -> None:
    with pytest.raises(UsageError, match=message):
        generate(replace(SMALL, **changes))


def test_equal_options_give_equal_jobs_and_other_seeds_others() -> None:
    assert generate(SMALL).differences(generate(SMALL)) == []
    assert generate(SMALL).differences(generate(replace(SMALL, seed=1))) != []


@pytest.mark.parametrize("nodes", ["messages", "collectives"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**46, 2**62])
def test_numbers_above_64_bits_are_refused(nodes: str, size: int) -> None:
    options = replace(SMALL, nodes=nodes, hidden=size, expert_hidden=size)
    with pytest.raises(UsageError, match=r"of a node: a number of \d+ bits is above 2\^62"):
        generate(options)


def test_a_hop_of_more_than_2_to_the_62_bytes_is_refused() -> None:
    """Each pair has fewer bytes, and their sum was negative in 64 bits."""
    options = replace(SMALL, hidden=1, expert_hidden=1, element_bytes=2**61 // SMALL.tokens)
    with pytest.raises(UsageError, match="bytes of a node"):
        generate(options)
