"""Rings as NCCL graph XML: what is recognised, what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from collhub_nccl.graphs.graph_files import write
from collhub_nccl.options import NcclRingOptions
from collhub_nccl.plugin import RINGS
from graph_reader import read_rings
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    HubError,
    InputError,
    StepKind,
    StepTableBuilder,
    UsageError,
)
from hub_core.registry.bind_options import bind_options
from hub_core.testing import samples

IN, OUT = Buffer.INPUT, Buffer.OUTPUT


def text_of(algorithm: Algorithm, **options: str | int | float) -> str:
    bound = bind_options(RINGS.options, options, {}, "writer nccl-graph")
    assert isinstance(bound, NcclRingOptions)
    (artifact,) = write(algorithm, bound).artifacts
    return artifact.content().decode("ascii")


def gather_round(rings: Sequence[Sequence[int]]) -> Algorithm:
    """An all-gather whose rank shares are cut in one part for each ring.

    Every part has a channel of its own and is passed round its ring.
    """
    n, k = len(rings[0]), len(rings)
    builder = StepTableBuilder(n)
    last: dict[tuple[int, int], int] = {}
    for rank in range(n):
        copy = builder.add(
            rank, StepKind.COPY, src_buffer=IN, dst_buffer=OUT, dst_offset=rank * k, count=k
        )
        last.update({(rank, rank * k + j): copy for j in range(k)})
    for hop in range(n - 1):
        for j, ring in enumerate(rings):
            for place, rank in enumerate(ring):
                unit, peer = ring[(place - hop) % n] * k + j, ring[(place + 1) % n]
                given, message = [last[rank, unit]], {"channel": j, "count": 1}
                builder.add(
                    rank,
                    StepKind.SEND,
                    data=given,
                    control=(),
                    peer=peer,
                    src_buffer=OUT,
                    src_offset=unit,
                    **message,
                )
                last[peer, unit] = builder.add(
                    peer,
                    StepKind.RECV,
                    data=(),
                    control=(),
                    peer=rank,
                    dst_buffer=OUT,
                    dst_offset=unit,
                    **message,
                )
    collective = Collective(CollectiveKind.ALL_GATHER, n, n * k)
    return Algorithm(collective, builder.build(), np.zeros(n, np.int64))


@pytest.mark.parametrize(
    "make", [samples.ring_all_gather, samples.ring_all_reduce, samples.ring_reduce_scatter]
)
def test_ring_of_every_sample_is_read_back(make: object) -> None:
    assert callable(make)
    assert read_rings(text_of(make(5))) == [[0, 1, 2, 3, 4]]


def test_ring_of_two_ranks_is_recognised() -> None:
    assert read_rings(text_of(samples.ring_all_reduce(2))) == [[0, 1]]


@settings(max_examples=20)
@given(
    st.integers(2, 6).flatmap(lambda n: st.lists(st.permutations(range(n)), min_size=1, max_size=3))
)
def test_rings_in_any_order_of_ranks_are_read_back(orders: list[list[int]]) -> None:
    rings = [[*order[order.index(0) :], *order[: order.index(0)]] for order in orders]
    # NCCL gives all channels the same amount: a ring with twice the data has twice the channels.
    counts = Counter(map(tuple, rings))
    unit = gcd(*counts.values())
    expected = [list(ring) for ring, count in counts.items() for _ in range(count // unit)]
    assert read_rings(text_of(gather_round(rings))) == expected


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "name", ["az_allreduce_a100_ring_8_4_1_ll128", "mt_allgather_ring_8_4_2_ll128"]
)
def test_rings_of_the_corpus_are_recognised(corpus: Path, name: str) -> None:
    assert read_rings(text_of(hub_core.read(corpus / "msccl" / f"{name}.xml"))) == [list(range(8))]


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("name", "rings"),
    [
        ("ring", [[0, 1, 2, 3, 4]]),
        ("bidirectional-ring", [[0, 1, 2, 3, 4], [0, 4, 3, 2, 1]]),
        ("rings", [[0, 1, 2, 3, 4], [0, 2, 4, 1, 3], [0, 3, 1, 4, 2], [0, 4, 3, 2, 1]]),
    ],
)
def test_all_reduces_of_the_classic_synthesizers_are_rings(
    name: str, rings: list[list[int]]
) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 5, 5, in_place=True)
    result = hub_core.synthesize(collective, "fc:5", 1 << 20, name=name)
    assert read_rings(text_of(result.algorithm)) == rings


def test_devices_are_hexadecimal_and_may_be_named() -> None:
    text = text_of(samples.ring_all_gather(3), gpus="11,2,16")
    assert '<gpu dev="b"/>' in text
    assert read_rings(text) == [[11, 2, 16]]


def test_copies_give_every_ring_more_channels() -> None:
    rings = [[0, 1, 2], [0, 2, 1]]
    assert read_rings(text_of(gather_round(rings), copies=2)) == [
        rings[0],
        rings[0],
        rings[1],
        rings[1],
    ]


def test_more_channels_than_nccl_has_are_refused() -> None:
    with pytest.raises(UsageError, match="not 1 to 32 channels"):
        text_of(samples.ring_all_gather(3), copies=33)


def test_device_that_is_named_twice_or_missing_is_refused() -> None:
    with pytest.raises(UsageError, match="device 1 is listed more than once"):
        text_of(samples.ring_all_gather(3), gpus="0,1,1")
    with pytest.raises(UsageError, match="2 devices for 3 ranks"):
        text_of(samples.ring_all_gather(3), gpus="0-1")


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("all-pairs-all-reduce", "rank 0 sends part 0 to rank 1 and to rank 2"),
        ("binomial-broadcast", "rank 0 sends part 0 to rank 1 and to rank 2"),
        ("binomial-reduce", "rank 0 receives part 0 from more than one rank"),
        ("direct-all-to-all", "NCCL has no rings for all-to-all"),
        ("shift-to-next", "NCCL has no rings for custom"),
    ],
)
def test_what_is_no_set_of_rings_is_refused_with_the_reason(sample: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        text_of(samples.all_samples(4)[sample])


def test_shares_of_rings_become_numbers_of_channels() -> None:
    # Two chains that carry 3 and 1 of 4 units.
    rings = read_rings(text_of(samples.all_samples(4)["weighted-broadcast"]))
    assert sorted(Counter(map(tuple, rings)).values()) == [1, 3]


def test_shares_that_need_more_channels_than_nccl_has_are_refused() -> None:
    rings = [[0, 1, 2]] * 33 + [[0, 2, 1]] * 2
    with pytest.raises(InputError, match="shares 33, 2 of the data need 35 equal channels"):
        text_of(gather_round(rings))


def test_wrong_algorithm_does_not_become_a_ring() -> None:
    right = samples.ring_all_reduce(3)
    columns = {
        name: getattr(right.steps, name).copy()
        for name in ("rank", "kind", "peer", "src_buffer", "src_offset")
    }
    columns |= {
        name: getattr(right.steps, name).copy() for name in ("dst_buffer", "dst_offset", "count")
    }
    # The first reducing receive only overwrites.
    row = int(np.flatnonzero(columns["kind"] == StepKind.RECV_REDUCE)[0])
    columns["kind"][row], columns["src_buffer"][row], columns["src_offset"][row] = (
        StepKind.RECV,
        Buffer.UNKNOWN,
        0,
    )
    steps = type(right.steps).from_columns(3, columns, data=right.steps.edges())
    with pytest.raises(HubError):
        text_of(Algorithm(right.collective, steps, np.zeros(3, np.int64)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: '<?xml version="1.0"?>\n' + text,
        lambda text: text.replace(' pattern="4"', "\n pattern='4'"),
        lambda text: text.replace('nchannels="1"', 'nchannels="2"'),
        lambda text: text.replace('dev="1"', 'dev="0"'),
        lambda text: text.replace(' typeinter="PIX"', ""),
    ],
)
def test_reader_of_the_tests_refuses_what_nccl_misreads(damage: object) -> None:
    assert callable(damage)
    with pytest.raises((ValueError, KeyError)):
        read_rings(damage(text_of(samples.ring_all_gather(3))))
