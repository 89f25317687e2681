"""Small sizes take what one latency a hop and the bytes on the fullest link allow.

The times are those that prototypes reached, replayed by a simulator of their own in picoseconds
(1 KiB and more, `serialization`, 50 GB/s and 500 ns or the machine's own). The hub's simulator
drops fractions of nanoseconds and takes one for an addition, hence the hundredth.
"""

from __future__ import annotations

import pytest

import hub_core
from hub_core import Collective, CollectiveKind, parse_topology, verify
from hub_core.plugin_api import SynthesisResult

KIB, MIB = 1 << 10, 1 << 20
WHOLE = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)

# Topology, bytes, nanoseconds.
ALL_REDUCE = [
    ("switch:8", KIB, 1164),
    ("switch:16", KIB, 1328),
    ("fat-tree:4", KIB, 3594),
    ("dgx-a100:2", KIB, 3457),
    ("hypercube:4", KIB, 2082),
    ("fc:8", KIB, 520),
    ("dgx1v", KIB, 1082),
    ("mesh:8x8", KIB, 7287),
    ("ring:8", KIB, 2082),
    ("torus:4x4", KIB, 2082),
]
ALL_GATHER = [
    ("switch:8", KIB, 1020),
    ("switch:16", KIB, 1020),
    ("fat-tree:4", KIB, 3037),
    ("dgx-a100:2", KIB, 3029),
    ("hypercube:4", KIB, 2005),
    ("fc:8", KIB, 503),
    ("dgx1v", KIB, 1010),
    ("mesh:8x8", KIB, 7004),
    ("ring:8", KIB, 2010),
    ("torus:4x4", KIB, 2005),
]
ALL_TO_ALL = [
    ("switch:8", KIB, 1016),
    ("switch:8", 64 * KIB, 2304),
    ("switch:8", MIB, 19995),
    ("switch:16", KIB, 1016),
    ("switch:16", 64 * KIB, 2296),
    ("fat-tree:4", KIB, 3018),
    ("fat-tree:4", 64 * KIB, 4458),
    ("fat-tree:4", MIB, 24300),
    ("dgx-a100:2", KIB, 3020),
    ("dgx-a100:2", 64 * KIB, 4820),
    ("dgx-a100:2", MIB, 27600),
    ("hypercube:4", KIB, 2014),
    ("fc:8", KIB, 503),
    ("dgx1v", KIB, 1023),
    ("mesh:8x8", KIB, 7022),
    ("ring:8", KIB, 2018),
    ("torus:4x4", KIB, 2013),
]
BROADCAST = [
    ("switch:8", KIB, 1164),
    ("switch:16", KIB, 1328),
    ("switch:16", 64 * KIB, 3420),
    ("switch:16", MIB, 24900),
    ("switch:16", 16 * MIB, 345000),
    ("fat-tree:4", KIB, 3348),
    ("dgx-a100:2", KIB, 3215),
    ("hypercube:4", KIB, 2021),
    ("fc:8", KIB, 520),
    ("dgx1v", KIB, 1042),
    ("mesh:8x8", KIB, 7025),
    ("ring:8", KIB, 2021),
    ("torus:4x4", KIB, 2021),
]


def made(kind: CollectiveKind, text: str, size: int) -> SynthesisResult:
    topology = parse_topology(text)
    ranks = topology.num_npus
    root = 0 if kind is CollectiveKind.BROADCAST else None
    collective = Collective(kind, ranks, 1 if kind in WHOLE else ranks, root, in_place=True)
    return hub_core.synthesize(collective, topology, size, name="tacos")


def check(kind: CollectiveKind, text: str, size: int, expected_ns: int) -> None:
    result = made(kind, text, size)
    assert verify(result.algorithm).ok
    assert result.time_ns <= 1.01 * expected_ns


@pytest.mark.parametrize(("text", "size", "expected_ns"), ALL_REDUCE)
def test_all_reduce_collects_in_one_phase(text: str, size: int, expected_ns: int) -> None:
    check(CollectiveKind.ALL_REDUCE, text, size, expected_ns)


@pytest.mark.parametrize(("text", "size", "expected_ns"), ALL_GATHER)
def test_all_gather_waits_for_no_window(text: str, size: int, expected_ns: int) -> None:
    check(CollectiveKind.ALL_GATHER, text, size, expected_ns)


@pytest.mark.parametrize(("text", "size", "expected_ns"), ALL_TO_ALL)
def test_all_to_all_waits_for_no_window(text: str, size: int, expected_ns: int) -> None:
    check(CollectiveKind.ALL_TO_ALL, text, size, expected_ns)


@pytest.mark.parametrize(("text", "size", "expected_ns"), BROADCAST)
def test_broadcast_is_flat_or_in_pieces(text: str, size: int, expected_ns: int) -> None:
    check(CollectiveKind.BROADCAST, text, size, expected_ns)


def test_one_shot_is_named() -> None:
    assert made(CollectiveKind.ALL_REDUCE, "switch:8", KIB).statistics["form"] == "one-shot"


def test_chunks_are_not_so_small_that_simulators_forget_them() -> None:
    # Chunks of a byte would arrive in the very nanosecond in which they are sent.
    result = made(CollectiveKind.BROADCAST, "switch:8", KIB)
    chunk_bytes = result.statistics["chunk bytes"]
    assert isinstance(chunk_bytes, int)
    assert chunk_bytes >= 50
