"""Damaged and random bytes end in a HubError or in a valid algorithm, never in another exception."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.chakra import encode_metadata, varint
from hub_core.cli.jobs.workload_survey import survey
from hub_core.model.diagnostics import HubError
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

pytestmark = pytest.mark.once

RING = [
    artifact.content() for artifact in write(ring_all_reduce(3), ChakraWriteOptions()).artifacts
]


def check_only_refused(content: bytes) -> None:
    """Read the bytes in the place of rank 0 of a ring, and alone; any error but a HubError passes through."""
    parts = [SourcePart("x.0.et", lambda: content, 0)]
    parts += [SourcePart(f"x.{rank}.et", lambda rank=rank: RING[rank], rank) for rank in (1, 2)]
    for look in (lambda source: chakra_algorithm(source, ChakraReadOptions()), survey):
        for source in (Source("x", tuple(parts)), Source("x", tuple(parts[:1]))):
            with contextlib.suppress(HubError):
                look(source)


def test_a_trace_cut_anywhere_is_refused() -> None:
    for length in range(len(RING[0])):
        parts = [
            SourcePart(f"x.{rank}.et", lambda c=c: c, rank)
            for rank, c in enumerate([RING[0][:length], *RING[1:]])
        ]
        with pytest.raises(HubError):
            chakra_algorithm(Source("x", tuple(parts)), ChakraReadOptions())


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes(content: bytes) -> None:
    check_only_refused(content)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
@settings(max_examples=300)
def test_random_records_behind_valid_metadata(bodies: list[bytes]) -> None:
    check_only_refused(
        encode_metadata("0.0.4", ()) + b"".join(varint(len(body)) + body for body in bodies)
    )


@given(st.integers(0, len(RING[0]) - 1), st.integers(1, 255))
@settings(max_examples=1000)
def test_a_changed_byte(position: int, change: int) -> None:
    changed = bytearray(RING[0])
    changed[position] ^= change
    check_only_refused(bytes(changed))


@given(
    st.lists(
        st.tuples(st.integers(0, len(RING[0])), st.binary(max_size=6), st.integers(0, 6)),
        max_size=4,
    )
)
@settings(max_examples=500)
def test_bytes_put_in_and_taken_out(edits: list[tuple[int, bytes, int]]) -> None:
    content = RING[0]
    for position, added, removed in edits:
        content = content[:position] + added + content[position + removed :]
    check_only_refused(content)


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    with pytest.raises(HubError):
        chakra_algorithm(
            Source.of_bytes("x.0.et", encode_metadata("0.0.4", ()) + varint(2**34) + b"\x08\x01"),
            ChakraReadOptions(),
        )
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
