"""Direct, ring and two-level algorithms for uneven exchanges: correct for random tables."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_classic.uneven import generate_candidates

import hub_core
from hub_core.model import (
    Collective,
    CollectiveKind,
    InputError,
    Provenance,
    StepKind,
    UnitCounts,
    UsageError,
)
from hub_core.model.count_sources import TokenRouting, parse_counts, read_counts
from hub_core.verification import verify

A2A, GATHER, SCATTER = (
    CollectiveKind.ALL_TO_ALL_V,
    CollectiveKind.ALL_GATHER_V,
    CollectiveKind.REDUCE_SCATTER_V,
)


def random_collective(kind: CollectiveKind, ranks: int, seed: int) -> Collective:
    """Draw counts of 0 to 9 units, of which about half are zero, with at least one unit."""
    generator = np.random.default_rng(seed)
    shape = (ranks, ranks) if kind is A2A else (ranks,)
    table = generator.integers(0, 10, shape) * generator.integers(0, 2, shape)
    table[(0,) * table.ndim] += 1
    counts = UnitCounts.from_table(table, kind is A2A)
    return Collective(kind, ranks, counts.total, in_place=kind is not A2A, counts=counts)


@pytest.mark.parametrize(
    ("name", "kind", "topology", "options"),
    [
        ("direct", A2A, "ring:5", {}),
        ("direct", GATHER, "switch:6", {}),
        ("direct", SCATTER, "mesh:2x3", {}),
        ("ring", GATHER, "ring:6", {}),
        ("ring", SCATTER, "switch:5", {}),
        ("bidirectional-ring", GATHER, "ring:5", {}),
        ("bidirectional-ring", SCATTER, "ring:6", {}),
        ("hierarchical", A2A, "switch:6", {"sizes": "3x2"}),
        ("hierarchical", A2A, "mesh:2x4", {"sizes": "2x4"}),
    ],
)
def test_random_tables_are_exchanged_correctly(name, kind, topology, options):
    network = hub_core.read_topology(topology)
    for seed in range(2):
        collective = random_collective(kind, network.num_npus, seed)
        result = hub_core.synthesize(collective, network, 1 << 20, name=name, options=options)
        report = verify(result.algorithm)
        assert report.ok, (seed, [str(finding) for finding in report.diagnostics])
        assert result.algorithm.collective.counts == collective.counts
        assert max(result.bounds_ns.values()) <= result.time_ns


@pytest.mark.parametrize("is_node_first", [True, False])
@pytest.mark.parametrize("is_united", [True, False])
def test_every_variant_of_two_levels_is_correct(is_node_first, is_united):
    collective = random_collective(A2A, 12, 7)
    request = hub_core.create_synthesis_request(collective, "switch:12", 1 << 20)
    groups = np.arange(12).reshape(3, 4)
    algorithms = [
        algorithm
        for details, algorithm in generate_candidates("hierarchical", request, groups, Provenance())
        if (details["levels"] == "node first") == is_node_first
        and (details["messages between nodes"] == "united") == is_united
    ]
    assert len(algorithms) == 1
    assert verify(algorithms[0]).ok
    # Messages between nodes join ranks of one local index; united ones are fewer.
    steps = algorithms[0].steps
    between = steps.is_kind(StepKind.SEND) & (steps.rank // 4 != steps.peer // 4)
    assert np.all(steps.rank[between] % 4 == steps.peer[between] % 4)
    pairs = np.count_nonzero(
        collective.counts.table * (np.arange(12)[:, None] // 4 != np.arange(12) // 4)
    )
    assert (int(between.sum()) < pairs) == is_united


def test_pairs_without_units_send_nothing():
    counts = UnitCounts.from_table([[0, 0, 5], [0, 3, 0], [0, 0, 0]], True)
    collective = Collective(A2A, 3, 8, counts=counts)
    algorithm = hub_core.synthesize(collective, "switch:3", 800, name="direct").algorithm
    steps = algorithm.steps
    assert [StepKind(int(kind)) for kind in steps.kind] == [
        StepKind.SEND,
        StepKind.COPY,
        StepKind.RECV,
    ]


def test_two_levels_need_two_nodes():
    collective = random_collective(A2A, 4, 0)
    with pytest.raises(UsageError, match="two levels need equal nodes of two ranks or more"):
        hub_core.synthesize(collective, "switch:4", 1 << 20, name="hierarchical")
    with pytest.raises(UsageError, match="is not a division of 4 ranks"):
        hub_core.synthesize(
            collective, "switch:4", 1 << 20, name="hierarchical", options={"sizes": "3x2"}
        )


def test_other_synthesizers_refuse_uneven_collectives_in_one_line():
    with pytest.raises(InputError, match="pairwise does not support all-to-all-v"):
        hub_core.synthesize(random_collective(A2A, 4, 0), "ring:4", 1 << 20, name="pairwise")


def test_generated_counts_depend_only_on_their_text():
    for text in ("uniform:3", "zipf:1.2,seed=1", "experts:8,top=2,tokens=50,replicas=1"):
        counts = parse_counts(text, A2A, 4)
        assert counts == parse_counts(text, A2A, 4)
        per_rank = parse_counts(text, GATHER, 4)
        assert not per_rank.is_per_pair
    zipf = parse_counts("zipf:1.2,seed=1,units=100", A2A, 4)
    assert zipf.table.sum(axis=1).tolist() == [100] * 4
    assert zipf != parse_counts("zipf:1.2,seed=2,units=100", A2A, 4)
    assert parse_counts("table.csv", A2A, 4) is None


def test_tokens_are_sent_once_per_expert_and_those_of_replicas_stay():
    routing = TokenRouting(16, top=4, tokens=64, skew=1.5, seed=3)
    tokens = routing.count_tokens(4)
    assert tokens.sum(axis=1).tolist() == [256] * 4
    assert tokens.max() <= 64
    units = routing.count_units(4)
    assert units.sum(axis=1).tolist() == [256] * 4
    assert units[0, 1] == tokens[0, 4:8].sum()
    replicated = TokenRouting(16, 4, 64, 1.5, 3, replicas=4).count_units(4)
    assert replicated.sum() == units.sum()
    assert np.trace(replicated) > np.trace(units)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf", "zipf needs a number, as zipf:1.2"),
        ("zipf:x", "zipf is 'x', expected a number"),
        ("zipf:1.2,top=3", "'top=3' is not expected, but seed=NUMBER, units=NUMBER"),
        ("experts:6", "6 experts, expected a multiple of the 4 ranks"),
        ("experts:8,top=9", "top is 9, expected 1..8"),
        ("uniform:0", "uniform is 0, expected 1.."),
        ("experts:65536,tokens=16777216", "are too many"),
    ],
)
def test_invalid_generator_forms_are_refused_in_one_line(text, message):
    with pytest.raises(UsageError) as error:
        parse_counts(text, A2A, 4)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "kind", "table"),
    [
        (b"1,2\n3,4\n", A2A, [[1, 2], [3, 4]]),
        (b"\xef\xbb\xbf1, 2\r\n\r\n3, 4\r\n", A2A, [[1, 2], [3, 4]]),
        (b"[[1, 2], [3, 4]]", A2A, [[1, 2], [3, 4]]),
        (b"5,6", GATHER, [5, 6]),
        (b"5\n6\n", GATHER, [5, 6]),
        (b"[5, 6]", SCATTER, [5, 6]),
    ],
)
def test_tables_are_read_from_csv_and_json(content, kind, table):
    assert read_counts(content, "t", kind, 2).table.tolist() == table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,x\n3,4\n", "t.csv:1: column 2: 'x' is no integer"),
        (b"1,2\n3\n", "t.csv: the row of rank 1 has 1 counts, expected 2"),
        (b"1,2\n3,-4\n", "t.csv: rank 1 to rank 1: -4 is negative"),
        (b"[[1, 2], [3,", "t.csv: neither a JSON list nor CSV lines of integers"),
        (b"", "t.csv: the table is no list or empty"),
        (b"\xff\xfe", "t.csv: neither a JSON list nor CSV"),
        (b"1,2,3\n1,2,3\n1,2,3\n", "t.csv: the table is for 3 ranks, expected 2"),
    ],
)
def test_invalid_tables_are_refused_with_their_position(content, message):
    with pytest.raises(InputError) as error:
        read_counts(content, "t.csv", A2A, 2)
    assert message in str(error.value)
    assert error.value.diagnostics[0].code == "invalid-counts"


def test_a_text_that_is_neither_a_file_nor_a_generator_is_refused():
    with pytest.raises(UsageError, match="neither a file nor a generator of counts"):
        hub_core.resolve_counts("zipff:1.2", A2A, 4)
