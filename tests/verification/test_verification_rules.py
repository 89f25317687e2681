"""Each rule of verification on the smallest algorithm that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hub_core.columns import topological_levels
from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.counts import UnitCounts
from hub_core.model.diagnostics import CAP, Findings, Severity, UsageError
from hub_core.model.kinds import UNEVEN_KINDS, Buffer, CollectiveKind, StepKind
from hub_core.model.messages import match_messages
from hub_core.model.steps import StepTable, StepTableBuilder
from hub_core.testing import CustomSteps, flooding_exchange
from hub_core.testing.samples import all_samples, ring_all_reduce
from hub_core.verification import (
    ModeReport,
    OrderGraph,
    VerifyReport,
    contents,
    fifo,
    in_largest_units,
    parse_expectation,
    reachability,
    step_program,
    unordered_in,
    values,
    verify,
)
from hub_core.verification.step_order import find_cycle, happens_before, sequential_positions

SEND, RECV, RECV_REDUCE, COPY, REDUCE, COMPUTE = StepKind
IN, OUT, TMP, UNKNOWN = Buffer


def custom(
    build: Callable[[CustomSteps], object],
    ranks: int = 2,
    units: int = 4,
    expected: Contributions | None = None,
) -> Algorithm:
    """A custom algorithm with INPUT, OUTPUT and SCRATCH of `units` units at every rank."""
    steps = CustomSteps(ranks, units, expected)
    build(steps)
    return replace(steps.algorithm(), provenance=Provenance(source_name="a.xml"))


def codes(report: VerifyReport) -> list[str]:
    return [found.code for found in report.diagnostics if found.severity is Severity.ERROR]


def out_of_place(report: VerifyReport) -> ModeReport:
    return report.modes["out_of_place"]


# ---- matching and bounds -------------------------------------------------------------------------


def test_send_without_receive_is_named_with_file_line_rank_and_step() -> None:
    report = verify(custom(lambda b: b.send(0, 1, source_line=7)))
    found = report.diagnostics[0]
    assert (found.code, found.location.file, found.location.line) == ("unmatched-send", "a.xml", 7)
    assert (found.location.rank, found.location.step) == (0, 0)


def test_receive_without_send_is_refused() -> None:
    assert codes(verify(custom(lambda b: b.receive(0, 1)))) == ["unmatched-receive"]


def test_messages_of_different_channels_do_not_match() -> None:
    report = verify(custom(lambda b: (b.send(0, 1, channel=0), b.receive(1, 0, channel=1))))
    assert codes(report) == ["unmatched-send", "unmatched-receive"]


def test_kth_send_matches_kth_receive() -> None:
    expected = Contributions(
        *(np.asarray(column, np.int64) for column in ([1, 1], [0, 1], [0, 0], [2, 3]))
    )
    algorithm = custom(
        lambda b: (b.send(0, 1, 2), b.send(0, 1, 3), b.receive(1, 0, 0), b.receive(1, 0, 1)),
        expected=expected,
    )
    assert verify(algorithm).ok


def test_a_surplus_send_leaves_the_earlier_pairs_intact() -> None:
    steps = custom(
        lambda b: (b.send(0, 1), b.send(0, 1), b.send(1, 0), b.receive(0, 1), b.receive(1, 0))
    ).steps
    messages = match_messages(steps, Findings())
    assert (messages.send.tolist(), messages.receive.tolist()) == ([0, 3], [4, 2])
    assert (messages.lonely_sends.tolist(), messages.lonely_receives.tolist()) == ([1], [])


def test_unequal_counts_of_a_message_are_named() -> None:
    report = verify(custom(lambda b: (b.send(0, 1, count=2), b.receive(1, 0, count=1))))
    assert codes(report) == ["count-mismatch"]
    assert "1 units are expected, 2 are sent" in report.diagnostics[0].message


@pytest.mark.parametrize("peer", [-1, 2, 1000])
def test_peer_outside_the_ranks_is_refused(peer: int) -> None:
    algorithm = custom(lambda b: b.send(0, 1))
    # Files may hold such steps; the builder refuses them.
    steps = replace(algorithm.steps, peer=np.full(1, peer, np.int32))
    assert codes(verify(replace(algorithm, steps=steps))) == ["peer-range"]


def test_message_to_oneself_is_refused() -> None:
    assert set(codes(verify(custom(lambda b: (b.send(0, 0), b.receive(0, 0)))))) == {"self-message"}


@pytest.mark.parametrize(
    ("offset", "count"), [(4, 1), (3, 2), (-1, 1), (2**62, 1), (0, 2**62), (2**62, 2**62)]
)
def test_region_outside_its_buffer_is_refused(offset: int, count: int) -> None:
    algorithm = custom(
        lambda b: b.add(0, COPY, src_buffer=IN, src_offset=offset, dst_buffer=OUT, count=count)
    )
    assert "out-of-bounds" in codes(verify(algorithm))


@pytest.mark.parametrize(("kind", "side"), [(RECV, "src"), (SEND, "dst"), (COMPUTE, "src")])
def test_the_side_that_a_step_does_not_use_is_not_checked(kind: StepKind, side: str) -> None:
    def build(builder: CustomSteps) -> None:
        builder.send(0, 1)
        builder.receive(1, 0)
        builder.add(0, COMPUTE, count=1)

    algorithm = custom(build)
    row = np.flatnonzero(algorithm.steps.kind == kind)
    buffer, offset = (
        getattr(algorithm.steps, f"{side}_{name}").copy() for name in ("buffer", "offset")
    )
    buffer[row], offset[row] = IN, 1000
    columns = {f"{side}_buffer": buffer, f"{side}_offset": offset}
    report = verify(replace(algorithm, steps=replace(algorithm.steps, **columns)))
    assert "out-of-bounds" not in codes(report)


def test_an_empty_step_outside_its_buffer_is_reported_once() -> None:
    algorithm = custom(lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1))
    columns = {"count": np.zeros(1, np.int64), "src_offset": np.full(1, 9, np.int64)}
    algorithm = replace(algorithm, steps=replace(algorithm.steps, **columns))
    assert codes(verify(algorithm)) == ["empty-step"]


@pytest.mark.parametrize("count", [0, -5])
def test_step_without_units_is_refused(count: int) -> None:
    assert codes(
        verify(custom(lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=count)))
    ) == ["empty-step"]


def test_findings_of_one_code_are_capped_and_the_rest_is_counted() -> None:
    report = verify(custom(lambda b: [b.send(0, 1) for _ in range(50)]))
    named = [found for found in report.diagnostics if found.code == "unmatched-send"]
    assert len(named) == CAP + 1
    assert f"{50 - CAP} more" in named[-1].message


# ---- deadlock ------------------------------------------------------------------------------------


def crossed(builder: CustomSteps) -> None:
    """Two ranks that each wait for the other's message before they send."""
    for rank in (0, 1):
        first = builder.receive(rank, 1 - rank)
        builder.send(rank, 1 - rank, data=[first])


def test_deadlock_names_the_steps_of_a_cycle() -> None:
    report = verify(custom(crossed))
    assert codes(report)[0] == "deadlock"
    assert all(
        f"rank {rank}, step {step}" in report.diagnostics[0].message
        for rank in (0, 1)
        for step in (0, 1)
    )
    assert out_of_place(report).verdict.startswith("wrong")


def test_what_waits_behind_a_deadlock_is_said_per_rank() -> None:
    algorithm = custom(lambda b: (crossed(b), b.send(1, 2, data=[3]), b.receive(2, 1)), ranks=3)
    blocked = [found for found in verify(algorithm).diagnostics if found.code == "blocked"]
    assert [found.location.rank for found in blocked] == [2]


def test_a_cycle_has_only_steps_that_never_run() -> None:
    # The first and the last node run; 1, 2 and 3 wait for each other, and 4 for 1.
    parents, children = np.asarray([1, 2, 3, 1]), np.asarray([2, 3, 1, 4])
    order = topological_levels(6, parents, children)
    assert find_cycle(parents, children, order) == [1, 2, 3]


def test_the_cause_of_a_wait_is_a_step_that_never_runs() -> None:
    def build(builder: CustomSteps) -> None:
        # The first step of the order runs, and is a parent of the blocked step too.
        ran = builder.add(2, COPY, src_buffer=IN, dst_buffer=TMP, count=1)
        crossed(builder)
        builder.send(0, 2, channel=1, data=[ran + 2])
        builder.receive(2, 0, channel=1, data=[ran])

    report = verify(custom(build, 3))
    (found,) = [
        one for one in report.diagnostics if one.code == "blocked" and one.location.rank == 2
    ]
    assert "waits for rank 0" in found.message


def test_a_message_of_a_higher_rank_is_available_in_the_next_round() -> None:
    def build(builder: CustomSteps) -> None:
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=TMP, count=1)
        builder.receive(0, 1, data=[first])
        builder.send(1, 0)
        builder.add(1, COPY, src_buffer=IN, dst_buffer=TMP, count=1)

    steps = custom(build).steps
    relation = happens_before(steps)
    assert sequential_positions(relation).tolist() == [0, 3, 1, 2]


def test_narrow_and_deep_graphs_get_the_same_levels_as_wide_ones() -> None:
    length, width = 3000, 3
    node = np.arange(length * width)
    parents = np.concatenate([node[:-width], node[: -width - 1]])
    children = np.concatenate([node[:-width] + width, node[: -width - 1] + width + 1])
    order = topological_levels(len(node), parents, children)
    level = np.repeat(np.arange(len(order.level_indptr) - 1), np.diff(order.level_indptr))
    expected = np.zeros(len(node), int)
    for child in range(width, len(node)):
        expected[child] = 1 + max(
            expected[child - width], expected[child - width - 1] if child > width else 0
        )
    assert np.array_equal(level, expected[order.nodes])
    assert np.array_equal(order.nodes[order.position], node)


# ---- bounded buffers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "capacity", "is_safe"), [(2, 2, True), (3, 2, False), (8, 8, True), (9, 8, False)]
)
def test_more_sends_before_a_receive_than_fit_deadlock(
    messages: int, capacity: int, is_safe: bool
) -> None:
    report = verify(flooding_exchange(messages), fifo_capacity=capacity)
    assert ("fifo-deadlock" in codes(report)) != is_safe
    assert verify(flooding_exchange(messages)).diagnostics[0].code != "fifo-deadlock"


def test_fifo_units_split_a_step_into_transfers() -> None:
    assert "fifo-deadlock" in codes(verify(flooding_exchange(1, 8), fifo_capacity=2, fifo_units=3))
    assert "fifo-deadlock" not in codes(
        verify(flooding_exchange(1, 8), fifo_capacity=2, fifo_units=4)
    )


@pytest.mark.parametrize(
    ("of_receive", "of_send", "is_safe"),
    [
        ((0, 5), (0, 5), False),
        ((0, -1), (0, -1), True),
        ((0, 5), (0, 6), True),
        ((0, 5), (1, 5), True),
    ],
)
def test_fused_receive_and_send_forward_piece_by_piece(
    of_receive: tuple[int, int], of_send: tuple[int, int], is_safe: bool
) -> None:
    """Rank 0 sends 8 units to rank 1 before it takes them back, with room for 2 transfers each way.

    A fused rank 1 stops at its third forward, with 2 more transfers on the way: at most 5 pieces.
    As two steps it takes in all pieces before it forwards the first one. The steps of rank 1 are
    fused if both have one (lane, source line).
    """

    def build(builder: CustomSteps) -> None:
        sent = builder.send(0, 1, count=8)
        builder.receive(0, 1, count=8, control=[sent])
        (lane, line), (send_lane, send_line) = of_receive, of_send
        taken = builder.receive(1, 0, count=8, lane=lane, source_line=line)
        place = {"src_buffer": OUT, "count": 8, "lane": send_lane, "source_line": send_line}
        builder.add(1, SEND, peer=0, data=[taken], **place)

    report = verify(custom(build, units=8), fifo_capacity=2, fifo_units=1)
    assert ("fifo-deadlock" not in codes(report)) == is_safe


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (None, "with room for 2 transfers a connection these steps wait for each other"),
        (3, "with room for 2 transfers of 3 units a connection these steps wait for each other"),
    ],
)
def test_fifo_deadlock_states_the_room_of_a_connection(units: int | None, text: str) -> None:
    report = verify(flooding_exchange(9, 8), fifo_capacity=2, fifo_units=units)
    message = next(one.message for one in report.diagnostics if one.code == "fifo-deadlock")
    assert message.startswith(text)


def test_fifo_deadlock_is_located_at_the_first_step_of_the_cycle() -> None:
    found = verify(flooding_exchange(3), fifo_capacity=1).diagnostics[0]
    assert found.code == "fifo-deadlock"
    place = f"rank {found.location.rank}, step {found.location.step}"
    assert f"wait for each other: {place} (" in found.message


def test_buffers_of_one_transfer_of_one_unit_are_enough_for_a_message() -> None:
    message = custom(lambda b: (b.send(0, 1), b.receive(1, 0)))
    assert "fifo-deadlock" not in codes(verify(message, fifo_capacity=1, fifo_units=1))


def test_more_transfers_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = custom(lambda b: (b.send(0, 1, count=4), b.receive(1, 0, count=4)))
    assert verify(algorithm, fifo_capacity=1, fifo_units=1).ok
    monkeypatch.setattr(fifo, "MAX_TRANSFERS", 5)
    report = verify(algorithm, fifo_capacity=1, fifo_units=1)
    assert codes(report) == ["too-large"]
    assert report.diagnostics[0].message.startswith(
        "8 transfers are too many to check for deadlock (limit 5)"
    )


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_must_be_positive(capacity: int) -> None:
    with pytest.raises(UsageError):
        verify(flooding_exchange(1), fifo_capacity=capacity)


# ---- races ---------------------------------------------------------------------------------------


def test_two_writes_without_order_race() -> None:
    algorithm = custom(
        lambda b: [b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1) for _ in range(2)]
    )
    assert out_of_place(verify(algorithm)).verdict == "race"


def test_program_order_alone_orders_nothing() -> None:
    def build(builder: CustomSteps, ordered: bool) -> None:
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=TMP, count=1, lane=0)
        builder.add(
            0,
            COPY,
            src_buffer=TMP,
            dst_buffer=OUT,
            count=1,
            lane=0,
            control=[first] if ordered else [],
        )

    assert out_of_place(verify(custom(lambda b: build(b, ordered=False)))).verdict == "race"
    assert out_of_place(verify(custom(lambda b: build(b, ordered=True)))).verdict == "ok"


def test_reads_of_one_unit_do_not_race() -> None:
    algorithm = custom(
        lambda b: [
            b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, dst_offset=k, count=1) for k in range(4)
        ]
    )
    assert verify(algorithm).ok


def test_a_message_and_its_answer_order_a_read_before_a_write() -> None:
    """Rank 0 overwrites what it sent once the answer is there: no dependency is needed."""

    def build(builder: CustomSteps) -> None:
        builder.send(0, 1)
        taken = builder.receive(1, 0)
        builder.send(1, 0, data=[taken])
        builder.add(0, RECV, peer=1, dst_buffer=IN, count=1)

    assert verify(custom(build)).ok


def test_in_place_aliases_are_one_location() -> None:
    algorithm = custom(lambda b: (b.send(0, 1), b.receive(1, 0), b.send(1, 0), b.receive(0, 1)))
    report = verify(algorithm)
    assert "race" in report.modes["in_place"].verdict
    assert report.modes["out_of_place"].verdict == "ok"


def test_a_step_does_not_race_with_itself() -> None:
    algorithm = custom(
        lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=IN, dst_offset=1, count=3)
    )
    assert verify(algorithm).ok


def test_regions_of_any_size_are_compared_at_their_borders() -> None:
    big = 2**40
    algorithm = custom(
        lambda b: (
            b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=big),
            b.add(0, COPY, src_buffer=IN, dst_buffer=TMP, dst_offset=1, count=big // 2),
        ),
        units=2 * big,
    )
    assert codes(verify(algorithm)) == ["too-large"]
    assert out_of_place(verify(algorithm)).verdict == "wrong"
    racy = custom(
        lambda b: [b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=k) for k in (1, big)],
        units=2 * big,
    )
    assert out_of_place(verify(racy)).verdict == "wrong+race"


def random_messages(
    seed: int, messages: int, in_lanes: bool, *, has_control: bool = False
) -> StepTable:
    """Messages between 3 ranks, dependencies at random; `in_lanes`: 2 ordered lanes a rank.

    `has_control`: a third of the dependencies are data dependencies, the others order steps only.
    """
    random = np.random.default_rng(seed)
    builder = CustomSteps(3)
    made: list[list[int]] = [[], [], []]
    last: dict[tuple[int, int], int] = {}
    for _ in range(messages):
        source, target = random.permutation(3)[:2].tolist()
        for rank, step, peer in ((source, builder.send, target), (target, builder.receive, source)):
            known, lane = made[rank], int(random.integers(0, 2))
            parents = set(
                random.choice(
                    known, min(len(known), int(random.integers(0, 3))), replace=False
                ).tolist()
                if known
                else []
            )
            parents |= {last[rank, lane]} if in_lanes and (rank, lane) in last else set()
            data = sorted(parents)
            control = [parent for parent in data if has_control and random.random() < 2 / 3]
            data = [parent for parent in data if parent not in control]
            last[rank, lane] = step(rank, peer, data=data, control=control, lane=lane)
            known.append(last[rank, lane])
    return builder.build()


def find_closure(steps: StepTable) -> np.ndarray:
    """Return whether row i happens before row j, by all paths: bool[rows, rows]."""
    relation = happens_before(steps)
    reach = np.zeros((len(steps), len(steps)), np.bool_)
    reach[relation.parents, relation.children] = True
    for k in range(len(steps)):
        reach |= np.outer(reach[:, k], reach[k])
    return reach


@pytest.mark.parametrize(
    ("seed", "messages", "in_lanes"),
    [*((k, 40, False) for k in range(20)), *((k, 150, True) for k in range(3))],
)
def test_unordered_pairs_equal_the_closure(
    seed: int, messages: int, in_lanes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs of a random graph, for every stage: bits without lanes, clocks with them."""
    monkeypatch.setattr(reachability, "_CLOCK_BYTES", 4 * 3 * 2 * messages)
    monkeypatch.setattr(reachability, "_PARENTS_AT_ONCE", 2)
    # Of nodes with more parents than that, the edges are searched.
    monkeypatch.setattr(reachability, "_PROBED_PARENTS", seed % 3)
    steps = random_messages(seed, messages, in_lanes)
    relation = happens_before(steps)
    reach = find_closure(steps)
    earlier, later = (side.ravel() for side in np.nonzero(~np.eye(len(steps), dtype=np.bool_)))
    graph = OrderGraph(steps, relation)
    assert np.array_equal(
        unordered_in(graph, earlier, later), np.flatnonzero(~reach[earlier, later])
    )
    # Only pairs of late steps: the marks then start after the first level.
    late = np.flatnonzero(
        np.minimum(relation.order.position[earlier], relation.order.position[later])
        > len(steps) // 2
    )
    earlier, later = earlier[late], later[late]
    assert np.array_equal(
        unordered_in(graph, earlier, later), np.flatnonzero(~reach[earlier, later])
    )


@pytest.mark.parametrize("seed", range(10))
def test_pairs_within_small_flows_are_decided_there_first(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some pairs have only paths through other components; they are decided by later searches."""
    steps = random_messages(seed, 60, in_lanes=False, has_control=True)
    reach = find_closure(steps)
    graph = OrderGraph(steps, happens_before(steps))
    flow = graph.flow[graph.position]
    earlier, later = np.nonzero((flow[:, None] == flow) & ~np.eye(len(steps), dtype=np.bool_))
    monkeypatch.setattr(reachability, "_PAIRS_OF_SMALL_FLOW", len(steps) ** 2)
    expected = np.flatnonzero(~reach[earlier, later])
    assert 0 < len(expected) < len(earlier)
    assert np.array_equal(unordered_in(graph, earlier, later), expected)


def test_pairs_within_small_flows_need_no_chains() -> None:
    steps = random_messages(0, 40, in_lanes=False)
    graph = OrderGraph(steps, happens_before(steps))
    earlier, later = np.nonzero(find_closure(steps)[:30])
    keep = np.sort(np.random.default_rng(0).permutation(len(earlier))[:250])
    assert len(unordered_in(graph, earlier[keep], later[keep])) == 0
    assert not {"program_chain", "flow_chain", "only_child"} & set(vars(graph))


# ---- contents ------------------------------------------------------------------------------------


def test_missing_doubled_and_foreign_contributions_are_named() -> None:
    ring = ring_all_reduce(4)
    kind = ring.steps.kind.copy()
    kind[np.flatnonzero(kind == RECV_REDUCE)[0]] = RECV
    report = verify(replace(ring, steps=replace(ring.steps, kind=kind)))
    wrong = [found.message for found in report.diagnostics if found.code == "wrong-output"]
    assert (
        "OUTPUT[3] lacks INPUT[3] of rank 0 after its last write, "
        "this receive from rank 3 into OUTPUT[3]" in wrong
    )
    units = ring.steps.src_offset.copy()
    units[0] = 1
    report = verify(replace(ring, steps=replace(ring.steps, src_offset=units)))
    wrong = [found.message for found in report.diagnostics if found.code == "wrong-output"]
    assert any("lacks" in message and "holds as foreign" in message for message in wrong)


def test_doubled_contribution_is_named() -> None:
    def build(builder: CustomSteps) -> None:
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
        builder.add(0, REDUCE, src_buffer=IN, dst_buffer=OUT, count=1, data=[first])

    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, 0, 0)))
    report = verify(custom(build, expected=expected))
    found = report.diagnostics[0]
    assert found.message.startswith(
        "OUTPUT[0] holds more than once INPUT[0] of rank 0 after its last write, this reduction"
    )
    assert (found.location.rank, found.location.step) == (0, 1)


def test_a_foreign_contribution_is_not_doubled() -> None:
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, 0, 0)))

    def build(builder: CustomSteps) -> None:
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
        builder.add(0, REDUCE, src_buffer=IN, src_offset=1, dst_buffer=OUT, count=1, data=[first])

    message = verify(custom(build, expected=expected)).diagnostics[0].message
    assert message.startswith("OUTPUT[0] holds as foreign INPUT[1] of rank 0 after its last write")


@pytest.mark.parametrize(("exact_cells", "method"), [(1 << 20, "exact"), (0, "fingerprint")])
def test_a_sum_over_all_ranks_with_unequal_inputs(
    exact_cells: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MAX_EXACT_CELLS", exact_cells)
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, -1, 0)))
    contract = CustomContract(
        np.asarray([2, 1]), np.asarray([1, 1]), np.ones(2, np.bool_), expected
    )
    builder = StepTableBuilder(2)
    first = builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
    builder.add(1, SEND, peer=0, src_buffer=IN, count=1)
    columns = {"src_buffer": OUT, "dst_buffer": OUT, "count": 1}
    builder.add(0, RECV_REDUCE, peer=1, data=[first], **columns)
    collective = Collective(CollectiveKind.CUSTOM, 2, 2, contract=contract)
    report = verify(Algorithm(collective, builder.build(), np.zeros(2, np.int64)))
    assert (report.ok, report.method) == (True, method)


def test_read_of_undefined_unit_is_a_finding_and_poisons_the_result() -> None:
    report = verify(ring_all_reduce(3))
    assert report.modes["out_of_place"].verdict == "wrong"
    algorithm = custom(lambda b: b.add(0, COPY, src_buffer=TMP, dst_buffer=OUT, count=1))
    assert codes(verify(algorithm)) == ["undefined-read"]


def test_read_of_the_first_cell_of_all_is_noticed() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=1)
    report = verify(Algorithm(collective, builder.build(), np.zeros(2, np.int64)))
    found = next(one for one in report.diagnostics if one.code == "undefined-read")
    assert "reads INPUT[0], which is undefined" in found.message


def test_undefined_reads_beyond_the_listed_ones_are_counted() -> None:
    def build(builder: CustomSteps) -> None:
        for unit in range(CAP + 3):
            builder.add(0, COPY, src_buffer=TMP, src_offset=unit, dst_buffer=OUT, count=1)

    report = verify(custom(build, units=CAP + 3))
    assert codes(report).count("undefined-read") == CAP
    assert any(one.message == "and 3 more findings of this kind" for one in report.diagnostics)


@pytest.mark.parametrize("at_once", [1, 5, 64])
@pytest.mark.parametrize("exact_cells", [values.MAX_EXACT_CELLS, 0])
def test_contents_do_not_depend_on_the_operations_at_once(
    at_once: int, exact_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_all_reduce(5)
    kind = ring.steps.kind.copy()
    kind[np.flatnonzero(kind == RECV_REDUCE)[-1]] = RECV
    wrong = replace(ring, steps=replace(ring.steps, kind=kind))
    monkeypatch.setattr(values, "MAX_EXACT_CELLS", exact_cells)
    expected = [verify(one).diagnostics for one in (ring, wrong)]
    monkeypatch.setattr(step_program, "_OPERATIONS_AT_ONCE", at_once)
    assert [verify(one).diagnostics for one in (ring, wrong)] == expected
    assert expected[0] == ()
    assert expected[1]


def test_contents_of_too_many_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_WORK", 1)
    finding = verify(ring_all_reduce(3)).diagnostics[0]
    assert finding.code == "too-large"
    assert finding.message.startswith("too large to check contents: ")


def test_wrong_outputs_beyond_the_listed_ones_are_counted() -> None:
    units = np.arange(CAP + 3)
    expected = Contributions(np.zeros_like(units), units, np.zeros_like(units), units)
    report = verify(custom(lambda b: None, units=CAP + 3, expected=expected))
    assert codes(report).count("wrong-output") == CAP
    assert any(one.message == "and 3 more findings of this kind" for one in report.diagnostics)


def test_rows_of_one_unit_are_the_contributions_of_one_reduction() -> None:
    columns = ([0, 0], [0, 0], [0, 1], [0, 0])
    expected = Contributions(*(np.asarray(column, np.int64) for column in columns))

    def build(builder: CustomSteps) -> None:
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
        builder.send(1, 0)
        columns = {"src_buffer": OUT, "dst_buffer": OUT, "count": 1}
        builder.add(0, RECV_REDUCE, peer=1, data=[first], **columns)

    report = verify(custom(build, expected=expected))
    assert (report.ok, report.method) == (True, "exact")


def test_expected_contribution_that_no_input_has_is_reported() -> None:
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, 1, 9)))
    copy = custom(
        lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1), expected=expected
    )
    found = verify(copy).diagnostics[0]
    assert found.code == "wrong-output"
    assert "should hold 1 contributions that no INPUT has" in found.message


def test_output_that_is_never_written_is_undefined() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0)
    report = verify(
        Algorithm(
            collective, StepTable.from_columns(2, {"rank": [], "kind": []}), np.zeros(2, np.int64)
        )
    )
    assert [str(found) for found in report.diagnostics] == [
        "rank 0: OUTPUT[0] is undefined; no step writes it",
        "rank 1: OUTPUT[0] is undefined; no step writes it",
    ]


def test_custom_without_expectation_is_judged_but_for_its_result() -> None:
    report = verify(custom(lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)))
    assert report.ok
    assert report.method == "none"
    assert [found.code for found in report.diagnostics] == ["contents-not-judged"]


def test_timing_only_algorithm_is_checked_for_matching_and_deadlock_only() -> None:
    algorithm = custom(
        lambda b: (
            b.add(0, SEND, peer=1, count=5),
            b.add(1, RECV, peer=0, count=5),
            b.add(1, COMPUTE),
        )
    )
    report = verify(algorithm)
    assert report.ok
    assert [found.code for found in report.diagnostics] == ["timing-only"]
    assert not verify(custom(lambda b: b.add(0, SEND, peer=1, count=5))).ok


def test_expected_replaces_the_postcondition() -> None:
    sample = all_samples(3)["shift-to-next"]
    assert verify(sample, expected=parse_expectation("o[r]=i[r-1]", sample.collective)).ok
    assert not verify(sample, expected=parse_expectation("o[r]=i[r+1]", sample.collective)).ok


def test_requirement_on_a_unit_that_the_output_lacks_is_a_finding() -> None:
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 9, 0, 0)))
    assert codes(verify(custom(lambda b: None, expected=expected))) == ["output-too-small"]


@pytest.mark.parametrize("source_rank", [0, -1])
@pytest.mark.parametrize("exact_cells", [values.MAX_EXACT_CELLS, 0])
def test_requirement_of_a_contribution_that_nobody_has_is_a_finding(
    source_rank: int, exact_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MAX_EXACT_CELLS", exact_cells)
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, source_rank, 9)))
    algorithm = custom(
        lambda b: b.add(0, COPY, src_buffer=IN, src_offset=3, dst_buffer=OUT, count=1),
        1,
        expected=expected,
    )
    assert codes(verify(algorithm)) == ["wrong-output"]


@pytest.mark.parametrize(
    ("rank", "unit", "expected"),
    [
        (0, 0, [0]),
        (0, 1, [1]),
        (0, 2, [-1]),
        (0, -1, [-1]),
        (1, 0, [2]),
        (1, 1, [-1]),
        (2, 2, [5]),
        (2, 3, [-1]),
        (3, 0, [-1]),
        (9, 0, [-1]),
        (-1, 0, [0, 2, 3]),
        (-1, 1, [1, -1, 4]),
    ],
)
def test_contributions_are_numbered_by_rank_and_unit(
    rank: int, unit: int, expected: list[int]
) -> None:
    index = values.InputIndex(np.asarray([2, 1, 3]), np.asarray([0, 2, 3]), 6)
    one, zero = np.asarray([unit]), np.zeros(1, np.int64)
    _, contributions = index.expand(Contributions(zero, zero, np.asarray([rank]), one))
    assert contributions.tolist() == expected


@pytest.mark.parametrize(
    ("rank", "offset", "size"), [(0, 4, 4), (1, 9, 4), (0, -1, 4), (2, 0, 0), (-1, 0, 0)]
)
def test_requirement_outside_the_output_states_its_size(rank: int, offset: int, size: int) -> None:
    expected = Contributions(*(np.asarray([value], np.int64) for value in (rank, offset, 0, 0)))
    (found,) = verify(custom(lambda b: None, expected=expected)).diagnostics
    assert found.message == f"OUTPUT[{offset}] must hold a result, but OUTPUT has {size} units"


def test_common_divisor_of_all_sizes_is_taken_out() -> None:
    scale = 2**40
    ring = ring_all_reduce(4)
    steps = replace(
        ring.steps,
        src_offset=ring.steps.src_offset * scale,
        dst_offset=ring.steps.dst_offset * scale,
        count=ring.steps.count * scale,
    )
    collective = Collective(
        CollectiveKind.ALL_REDUCE, 4, 4 * scale, in_place=True, out_of_place=False
    )
    report = verify(Algorithm(collective, steps, np.zeros(4, np.int64)))
    assert report.ok
    assert report.method == "exact"


def test_common_divisor_is_taken_out_of_the_sizes_of_a_custom_collective() -> None:
    scale = 2**30
    copy = custom(
        lambda b: b.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=scale), units=4 * scale
    )
    assert verify(copy).ok


def test_of_too_many_blocks_only_the_one_of_a_defect_is_built() -> None:
    """2^50 + 1 units would be 10^8 blocks, which take more memory than there is."""
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 2**50 + 1)
    builder = StepTableBuilder(2)
    builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=3)
    report = verify(Algorithm(collective, builder.build(), np.zeros(2, np.int64)))
    assert set(codes(report)) == {"wrong-output"}


def test_memories_beyond_any_address_do_not_wrap_around() -> None:
    builder = StepTableBuilder(4)
    builder.add(0, COPY, src_buffer=IN, dst_buffer=TMP, count=1)
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 2**62)
    assert codes(verify(Algorithm(collective, builder.build(), np.full(4, 2**62, np.int64)))) == [
        "too-large"
    ]


def test_common_divisor_keeps_the_shares_of_the_ranks_whole() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=2)
    report = verify(
        Algorithm(
            Collective(CollectiveKind.ALL_TO_ALL, 2, 2), builder.build(), np.zeros(2, np.int64)
        )
    )
    assert "wrong-output" in codes(report)


@pytest.mark.parametrize("name", all_samples(4))
def test_fingerprints_say_the_same_as_exact_multisets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = all_samples(4)[name]
    kind = sample.steps.kind.copy()
    kind[np.flatnonzero(sample.steps.receives)[-1]] = COMPUTE
    offset = sample.steps.src_offset.copy()
    offset[np.flatnonzero(sample.steps.sends)[-1]] = 0
    mutants = [sample, replace(sample, steps=replace(sample.steps, src_offset=offset))]
    exact = [verify(mutant) for mutant in mutants]
    monkeypatch.setattr(values, "MAX_EXACT_CELLS", 0)
    fingerprint = [verify(mutant) for mutant in mutants]
    assert [report.method for report in exact + fingerprint] == ["exact"] * 2 + ["fingerprint"] * 2
    assert [report.diagnostics for report in exact] == [
        report.diagnostics for report in fingerprint
    ]
    assert 0 < fingerprint[0].error_probability < 1e-15
    assert exact[0].error_probability == 0


def test_sixty_four_doublings_do_not_pass_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^64 copies of a foreign contribution are 0 modulo 2^64; the saturating count tells."""

    def build(builder: CustomSteps) -> None:
        last = builder.add(0, COPY, src_buffer=IN, src_offset=1, dst_buffer=TMP, count=1)
        for _ in range(64):
            last = builder.add(0, REDUCE, src_buffer=TMP, dst_buffer=TMP, count=1, data=[last])
        first = builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=1)
        builder.add(0, REDUCE, src_buffer=TMP, dst_buffer=OUT, count=1, data=[first, last])

    monkeypatch.setattr(values, "MAX_EXACT_CELLS", 0)
    expected = Contributions(*(np.asarray([value], np.int64) for value in (0, 0, 0, 0)))
    assert codes(verify(custom(build, expected=expected))) == ["wrong-output"]


# ---- report --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13])
def test_samples_verify_in_every_claimed_mode(ranks: int) -> None:
    assert {
        name: verify(sample).ok for name, sample in all_samples(ranks).items()
    } == dict.fromkeys(all_samples(ranks), True)


def test_samples_cover_every_kind_and_both_modes() -> None:
    collectives = [sample.collective for sample in all_samples(4).values()]
    kinds = set(CollectiveKind) - set(UNEVEN_KINDS)
    assert {collective.kind for collective in collectives} == kinds
    assert any(collective.in_place for collective in collectives)
    assert any(collective.out_of_place for collective in collectives)


def test_unclaimed_mode_is_judged_but_does_not_count() -> None:
    report = verify(ring_all_reduce(3))
    assert report.ok
    assert not report.modes["out_of_place"].is_claimed
    assert report.modes["out_of_place"].verdict == "wrong"
    assert report.diagnostics == ()


def test_claimed_modes_are_told_apart_in_messages() -> None:
    sample = all_samples(3)["direct-all-to-all"]
    report = verify(replace(sample, collective=replace(sample.collective, in_place=True)))
    assert report.diagnostics
    assert all(found.message.startswith("in place: ") for found in report.diagnostics)


def test_buffers_without_units_hold_what_they_promise() -> None:
    none = np.zeros(0, np.int64)
    nothing = Contributions(none, none, none, none)
    contract = CustomContract(
        np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.bool_), nothing
    )
    collective = Collective(CollectiveKind.CUSTOM, 2, 1, contract=contract)
    empty = Algorithm(collective, StepTableBuilder(2).build(), np.zeros(2, np.int64))
    assert verify(empty).ok


def test_report_is_the_same_every_time() -> None:
    broken = replace(
        ring_all_reduce(5),
        steps=replace(ring_all_reduce(5).steps, channel=np.arange(80, dtype=np.int32) // 7),
    )
    assert verify(broken).diagnostics == verify(broken).diagnostics


# ---- expectations --------------------------------------------------------------------------------


def rows(expected: Contributions) -> set[tuple[int, ...]]:
    columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    return set(zip(*(column.tolist() for column in columns), strict=True))


PLAIN = custom(lambda b: None, ranks=3, units=3).collective


@pytest.mark.parametrize(
    ("text", "kind", "root"),
    [
        ("broadcast root 0", CollectiveKind.BROADCAST, 0),
        ("reduce root 2", CollectiveKind.REDUCE, 2),
        ("gather root 1", CollectiveKind.GATHER, 1),
        ("scatter root 0", CollectiveKind.SCATTER, 0),
        ("all-gather", CollectiveKind.ALL_GATHER, None),
        ("allreduce", CollectiveKind.ALL_REDUCE, None),
        ("reduce_scatter", CollectiveKind.REDUCE_SCATTER, None),
        (" All to All ", CollectiveKind.ALL_TO_ALL, None),
    ],
)
def test_expectation_by_name_is_that_collective(
    text: str, kind: CollectiveKind, root: int | None
) -> None:
    meant = Collective(kind, 3, 3, root).postcondition()
    assert meant is not None
    assert rows(parse_expectation(text, PLAIN)) == rows(meant)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("o[r]=i[r+1]", {(0, 1), (1, 2)}),
        ("o[r] = i[r-1]", {(1, 0), (2, 1)}),
        ("o[1]=o[2]=i[0]", {(1, 0), (2, 0)}),
        ("o[r]=i[r]", {(0, 0), (1, 1), (2, 2)}),
        ("o[0]=i[2]; o[2]=i[0]", {(0, 2), (2, 0)}),
        ("o[r]=i[0]", {(0, 0), (1, 0), (2, 0)}),
    ],
)
def test_assignment_copies_whole_buffers(text: str, pairs: set[tuple[int, int]]) -> None:
    found = rows(parse_expectation(text, PLAIN))
    assert found == {(to, unit, origin, unit) for to, origin in pairs for unit in range(3)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "broadcast",
        "all-gather root 0",
        "sort",
        "o[r]",
        "i[r]=o[r]",
        "o[r]=i[r*2]",
        "o[x]=i[0]",
        "o[0]=",
        "broadcast root 9",
    ],
)
def test_other_texts_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError):
        parse_expectation(text, PLAIN)


@pytest.mark.parametrize(
    ("buffer", "offset", "unit"),
    [(OUT, 3, "OUTPUT[3]"), (TMP, 0, "SCRATCH[0]"), (TMP, 3, "SCRATCH[3]")],
)
def test_an_undefined_read_names_the_buffer_that_holds_the_address(
    buffer: Buffer, offset: int, unit: str
) -> None:
    # In memory, the first unit of SCRATCH follows the last unit of OUTPUT.
    report = verify(
        custom(
            lambda b: b.add(0, COPY, src_buffer=buffer, src_offset=offset, dst_buffer=OUT, count=1)
        )
    )
    message = next(each.message for each in report.diagnostics if each.code == "undefined-read")
    assert f"reads {unit}, which is undefined" in message


def test_counts_of_an_uneven_collective_are_in_the_largest_units_too() -> None:
    counts = UnitCounts.from_table([2, 4], False)
    collective = Collective(CollectiveKind.ALL_GATHER_V, 2, 6, counts=counts)
    steps = StepTableBuilder(2).build()
    algorithm = Algorithm(collective, steps, np.zeros(2, np.int64), Provenance("test"))
    larger = in_largest_units(algorithm).collective
    assert larger.unit_count == 3
    assert larger.counts == UnitCounts.from_table([1, 2], False)
