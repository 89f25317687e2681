"""Counts of uneven collectives: construction, buffers, contents, files, verification, bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.documents.algorithms import read, write
from hub_core.model import (
    ALL_RANKS,
    UNEVEN_KINDS,
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    StepKind,
    StepTableBuilder,
    UnitCounts,
    UsageError,
)
from hub_core.model.count_sources import parse_counts, read_counts
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import NoOptions, Source
from hub_core.verification import verify

TABLE = [[1, 2, 0], [0, 0, 5], [3, 1, 1]]


def exchange(table: list[list[int]]) -> Algorithm:
    """Build the direct all-to-all-v of a table; data that stay on their rank are copied."""
    counts = UnitCounts.from_table(table, True)
    sent, received = counts.first_units()
    builder = StepTableBuilder(len(table))
    for source, row in enumerate(table):
        for target, count in enumerate(row):
            start, end = int(sent[source, target]), int(received[source, target])
            data = {"src_buffer": Buffer.INPUT, "src_offset": start}
            place = {"dst_buffer": Buffer.OUTPUT, "dst_offset": end, "count": count}
            if source == target and count:
                builder.add(source, StepKind.COPY, **data, **place)
            elif count:
                builder.add(source, StepKind.SEND, peer=target, **data, count=count)
                builder.add(target, StepKind.RECV, peer=source, **place)
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, len(table), counts.total, counts=counts)
    return Algorithm(collective, builder.build(), np.zeros(len(table), np.int64))


@pytest.mark.parametrize(
    ("table", "is_per_pair", "text"),
    [
        ([[1, 2], [3]], True, "t.csv: the row of rank 1 has 1 counts, expected 2"),
        ([[1, -2], [3, 4]], True, "t.csv: rank 0 to rank 1: -2 is negative, expected units of 0"),
        ([4, -1], False, "t.csv: rank 1: -1 is negative"),
        ([[1, 2.5], [3, 4]], True, "rank 0 to rank 1: '2.5' is no integer"),
        ([[True, 1], [3, 4]], True, "rank 0 to rank 0: 'True' is no integer"),
        ([[0, 0], [0, 0]], True, "the counts sum to 0 units, expected 1..2^62"),
        ([2**62, 1], False, "expected 1..2^62"),
        ([1 << 20_000, 1], False, "the counts sum to about 2^20000 units, expected 1..2^62"),
        ([-1 << 20_000, 1], False, "t.csv: rank 0: about -2^20000 is negative"),
        ([], True, "the table is no list or empty, expected a list of n rows of n integers"),
        ([1, 2], True, "the row of rank 0 is no list"),
        ([[1, 2], [3, 4]], False, "the table has rows, expected a list of n integers"),
    ],
)
def test_tables_that_are_no_counts_are_refused_with_position_and_expected_value(
    table, is_per_pair, text
):
    with pytest.raises(InputError) as error:
        UnitCounts.from_table(table, is_per_pair, "t.csv")
    finding = error.value.diagnostics[0]
    assert (finding.code, text in finding.message) == ("invalid-counts", True), finding.message
    assert finding.cure


@pytest.mark.parametrize(
    ("kind", "table", "units", "text"),
    [
        ("all-to-all-v", TABLE, 12, "the counts sum to 13 units, expected unit_count 12"),
        ("all-gather-v", TABLE, 13, "expected one count per rank"),
        ("all-to-all-v", [1, 2, 3], 6, "expected one count per ordered pair of ranks"),
        ("all-gather-v", [1, 2], 3, "the table of counts is for 2 ranks"),
        ("all-to-all", TABLE, 13, "a table of counts belongs to uneven collectives"),
    ],
)
def test_counts_that_contradict_the_collective_are_refused(kind, table, units, text):
    counts = UnitCounts.from_table(table, isinstance(table[0], list))
    with pytest.raises(InputError) as error:
        Collective(CollectiveKind(kind), 3, units if kind != "all-to-all" else 12, counts=counts)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[[0, 1], [9, 0]]", "t: an integer has too many digits, expected units of 0..2^62"),
        (b"0,1\n9,0\n", f"t:2: column 1: '{'9' * 40}' has too many digits"),
        (b"0,1_0\n9,0\n", "t:1: column 2: '1_0' is no integer"),
        ("0,1\n\u0669,0\n".encode(), "t:2: column 1: '\u0669' is no integer"),
    ],
)
def test_a_file_with_an_integer_of_thousands_of_digits_is_refused_in_one_line(content, text):
    """Python converts integers of at most 4 300 digits."""
    content = content.replace(b"9", b"9" * 5000)
    with pytest.raises(InputError) as error:
        read_counts(content, "t", CollectiveKind.ALL_TO_ALL_V, 2)
    finding = error.value.diagnostics[0]
    assert (finding.code, text in finding.message) == ("invalid-counts", True), finding.message
    assert len(finding.message) < 120


def test_equal_tables_are_equal_and_hash_equally_and_cannot_be_changed():
    counts = UnitCounts.from_table(TABLE, True)
    assert counts == UnitCounts.from_table(np.asarray(TABLE), True)
    assert hash(counts) == hash(UnitCounts.from_table(TABLE, True))
    assert counts != counts.transposed()
    assert counts.transposed().transposed() == counts
    with pytest.raises(ValueError, match="read-only"):
        counts.table[0, 0] = 7


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_buffers_and_contents_follow_from_prefix_sums(data):
    kind, ranks = data.draw(st.sampled_from(UNEVEN_KINDS)), data.draw(st.integers(1, 5))
    is_per_pair = kind.traits.has_counts_per_pair
    shape = (ranks, ranks) if is_per_pair else (ranks,)
    size = ranks * ranks if is_per_pair else ranks
    values = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    values[-1] += not any(values)
    table = np.asarray(values).reshape(shape)
    counts = UnitCounts.from_table(table, is_per_pair)
    collective = Collective(kind, ranks, counts.total, counts=counts)
    rows = collective.postcondition()
    actual = zip(rows.rank, rows.offset, rows.source_rank, rows.source_unit, strict=True)
    # The definition, unit by unit.
    expected = []
    for rank in range(ranks):
        offset = 0
        for source in range(ranks):
            if kind is CollectiveKind.ALL_TO_ALL_V:
                units = [
                    (source, int(table[source, :rank].sum()) + k)
                    for k in range(table[source, rank])
                ]
            elif kind is CollectiveKind.ALL_GATHER_V:
                units = [(source, k) for k in range(table[source])]
            else:
                first = int(table[:rank].sum())
                units = [(ALL_RANKS, first + k) for k in range(table[rank])] if not source else []
            expected += [(rank, offset + k, *unit) for k, unit in enumerate(units)]
            offset += len(units)
        assert collective.output_units()[rank] == offset
    assert [tuple(map(int, row)) for row in actual] == expected


def test_a_shift_is_a_permutation_of_neighbours():
    """Every rank sends one unit, K positions later, and receives one."""
    kind = CollectiveKind.ALL_TO_ALL_V
    counts = parse_counts("shift:2", kind, 5)
    assert counts is not None
    sender, receiver = np.nonzero(counts.table)
    assert counts.total == 5
    assert receiver.tolist() == ((sender + 2) % 5).tolist()
    assert verify(exchange(counts.table.tolist())).ok
    with pytest.raises(UsageError, match=r"shift is 5, expected 1\.\.4"):
        parse_counts("shift:5", kind, 5)
    with pytest.raises(UsageError, match="shift needs a number, as shift:1"):
        parse_counts("shift", kind, 5)
    with pytest.raises(UsageError, match="all-gather-v has counts per rank"):
        parse_counts("shift:1", CollectiveKind.ALL_GATHER_V, 5)


def test_a_document_with_wrong_counts_names_file_path_and_position(tmp_path):
    document = write(exchange(TABLE), NoOptions()).artifacts[0].content()
    for old, new, text in (
        (b"[0, 0, 5]", b"[0, 0, -5]", "$.collective.counts: rank 1 to rank 2: -5 is negative"),
        (
            b"[0, 0, 5]",
            b"[0, 0]",
            "$.collective.counts: the row of rank 1 has 2 counts, expected 3",
        ),
        (b"[0, 0, 5]", b"[0, 0, 6]", "the counts sum to 14 units, expected unit_count 13"),
    ):
        assert old in document
        with pytest.raises(InputError) as error:
            read(Source.of_bytes("a.json", document.replace(old, new)), NoOptions())
        assert text in str(error.value)
        assert "a.json" in str(error.value)


def test_a_direct_exchange_is_correct_and_a_wrong_message_is_found():
    algorithm = exchange(TABLE)
    assert verify(algorithm).ok
    # One unit of rank 2 goes to rank 1 instead of staying.
    swapped = exchange([[1, 2, 0], [0, 0, 5], [3, 2, 0]])
    other = replace(swapped, collective=algorithm.collective)
    assert not verify(other).ok


@pytest.mark.needs_plugins
def test_bytes_of_messages_are_the_share_of_the_counts_in_the_total():
    algorithm = exchange(TABLE)
    result = hub_core.simulate(algorithm, "switch:3?bandwidth=1GB/s&latency=0ns", 13_000)
    bound = lower_bound_ns(
        algorithm.collective, hub_core.read_topology("switch:3?bandwidth=1GB/s&latency=0ns"), 13_000
    )
    # The largest side: rank 1 sends 5 000 bytes and rank 2 receives them.
    assert bound == 5000
    assert bound <= result.time_ns


def test_the_bound_of_an_uneven_exchange_uses_the_weights_of_a_cut():
    topology = hub_core.read_topology("ring:4?bandwidth=1GB/s&latency=0ns")
    table = [[0, 0, 8, 0], [0] * 4, [0] * 4, [0] * 4]
    counts = UnitCounts.from_table(table, True)
    collective = Collective(CollectiveKind.ALL_TO_ALL_V, 4, 8, counts=counts)
    # 8 000 bytes leave NPU 0 on two links.
    assert lower_bound_ns(collective, topology, 8000) == 4000
    gather = UnitCounts.from_table([8, 0, 0, 0], False)
    collective = Collective(CollectiveKind.ALL_GATHER_V, 4, 8, counts=gather)
    assert lower_bound_ns(collective, topology, 8000) == 4000


def test_a_writer_of_equal_parts_refuses_uneven_parts_in_one_line():
    with pytest.raises(InputError) as error:
        _ = exchange(TABLE).collective.units_per_rank
    assert str(error.value).count("\n") == 0
    assert error.value.diagnostics[0].code == "uneven-parts"
