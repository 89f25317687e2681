"""Levelled programs: one level at both ends, no deadlock, the eager run's contents, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from collhub_execution import (
    REDUCTIONS,
    LevelledProgram,
    LevelledRequest,
    RecordKind,
    all_outputs,
    block_counts,
    fill_rank,
    find_moves,
    is_well_levelled,
    levelled_program,
    run_order,
    simulate_rendezvous,
)
from collhub_execution.record_expansion import place_slots
from eager_runs import BACKGROUND, IN, OUT, TMP, UNITS, custom, eager, eager_runs
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import Algorithm, InputError, ReduceOp, StepKind, StepTableBuilder
from hub_core.testing import all_samples, halving_doubling_all_reduce, ring_all_reduce

SEND, RECV, RECV_REDUCE, COPY, REDUCE, COMPUTE = StepKind


def exchange(
    source: tuple[int, int], target: tuple[int, int], *, data: bool = False, kind: StepKind = RECV
) -> Algorithm:
    """Two ranks that both send `source` and then, waiting for that, receive into `target`."""
    builder = StepTableBuilder(2)
    for rank in range(2):
        sent = builder.add(
            rank, SEND, peer=1 - rank, src_buffer=source[0], src_offset=source[1], count=1
        )
        waits = {"data" if data else "control": [sent]}
        read = {"src_buffer": target[0], "src_offset": target[1]} if kind is RECV_REDUCE else {}
        builder.add(
            rank,
            kind,
            peer=1 - rank,
            dst_buffer=target[0],
            dst_offset=target[1],
            count=1,
            **read,
            **waits,
        )  # type: ignore[arg-type]
    return custom(2, builder)


def run(
    algorithm: Algorithm, program: LevelledProgram, inputs: list[npt.NDArray[np.int64]]
) -> list[npt.NDArray[np.int64]]:
    """OUTPUT of every rank after the records have run one by one, in the order of `run_order`."""
    request = LevelledRequest(algorithm, program, tuple(inputs), ReduceOp.SUM, BACKGROUND)
    memory = np.empty(request.flat_size, np.int64)
    for rank in range(program.num_ranks):
        fill_rank(memory, request, rank)
    moves = find_moves(program, request.elements)
    for record in run_order(algorithm, program).records.tolist():
        length = int(moves.length[record])
        read = memory[moves.source[record] :][:length]
        written = memory[moves.destination[record] :][:length]
        if moves.reduces[record]:
            REDUCTIONS[ReduceOp.SUM](written, read, out=written)
        else:
            written[:] = read
    return [output.copy() for output in all_outputs(memory, request)]  # type: ignore[misc]


@pytest.mark.once
@given(eager_runs(), st.booleans(), st.integers(0, 99))
def test_what_runs_with_buffers_runs_without(
    made: tuple[Algorithm, list[int]], in_place: bool, seed: int
) -> None:
    algorithm, order = made
    program = levelled_program(algorithm, in_place)
    assert is_well_levelled(program)
    simulated = simulate_rendezvous(algorithm, program, seed)
    assert np.array_equal(np.sort(simulated), np.flatnonzero(program.kind != RecordKind.SEND))
    inputs = [np.arange(UNITS) * 7 + 100**rank for rank in range(algorithm.num_ranks)]
    wanted = eager(algorithm, order, in_place, inputs)
    assert [output.tolist() for output in run(algorithm, program, inputs)] == wanted


@pytest.mark.once
@given(eager_runs())
def test_records_keep_their_order_within_a_rank_and_both_ends_of_a_pair_agree(
    made: tuple[Algorithm, list[int]],
) -> None:
    program = levelled_program(made[0], in_place=False)
    send, receive = program.message_ends()
    for source in range(program.num_ranks):
        for destination in range(program.num_ranks):
            mine = (program.rank[send] == source) & (program.rank[receive] == destination)
            assert np.array_equal(np.argsort(send[mine]), np.argsort(receive[mine]))
    assert np.all(program.level[send] >= 1)


@given(st.data())
def test_slots_that_live_at_one_time_share_nothing(data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.tuples(*[st.integers(0, n) for n in (2, 4, 3)], st.integers(1, 3)),
            min_size=1,
            max_size=12,
        )
    )
    rank, first, life, count = (np.asarray(column, np.int64) for column in zip(*rows, strict=True))
    occupied = np.asarray([2, 0, 5])
    offset, sizes = place_slots(rank, first, first + life, count, occupied)
    for i in range(len(rows)):
        assert occupied[rank[i]] <= offset[i] <= sizes[rank[i]] - count[i]
        for j in range(i):
            together = (
                rank[i] == rank[j]
                and first[i] <= first[j] + life[j]
                and first[j] <= first[i] + life[i]
            )
            assert (
                not together
                or offset[i] + count[i] <= offset[j]
                or offset[j] + count[j] <= offset[i]
            )


# ---- levels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(all_samples(8)))
def test_samples_are_well_levelled(name: str) -> None:
    algorithm = all_samples(8)[name]
    program = levelled_program(algorithm, in_place=not algorithm.collective.out_of_place)
    assert is_well_levelled(program)
    assert program.num_messages == np.count_nonzero(algorithm.steps.sends)
    assert len(simulate_rendezvous(algorithm, program, seed=1)) == len(
        run_order(algorithm, program).records
    )


def test_ring_all_reduce_has_one_level_a_round() -> None:
    program = levelled_program(ring_all_reduce(8), in_place=True)
    assert (program.num_levels - 1, np.count_nonzero(program.kind == RecordKind.REDUCE)) == (
        2 * 7,
        8 * 7,
    )
    assert program.layout.size[:, TMP].tolist() == [1] * 8


def test_halving_and_doubling_has_one_level_a_round() -> None:
    assert levelled_program(halving_doubling_all_reduce(8), in_place=True).num_levels - 1 == 2 * 3


@pytest.mark.parametrize("data", [False, True])
def test_ranks_that_send_and_then_receive_elsewhere_exchange_in_one_level(data: bool) -> None:
    program = levelled_program(exchange((IN, 0), (OUT, 0), data=data), in_place=False)
    assert program.level.tolist() == [1] * 4
    assert program.layout.size[:, TMP].tolist() == [UNITS] * 2


@pytest.mark.parametrize(("kind", "result"), [(RECV, [20, 10]), (RECV_REDUCE, [30, 30])])
def test_ranks_that_swap_the_same_unit_stage_it_in_scratch(
    kind: StepKind, result: list[int]
) -> None:
    algorithm = exchange((OUT, 0), (OUT, 0), kind=kind)
    program = levelled_program(algorithm, in_place=True)
    assert program.layout.size[:, TMP].tolist() == [UNITS + 1] * 2
    outputs = run(algorithm, program, [np.full(UNITS, 10), np.full(UNITS, 20)])
    assert [int(output[0]) for output in outputs] == result


def test_a_reducing_receive_into_another_unit_needs_no_scratch() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, SEND, peer=1, src_buffer=IN, count=1)
    builder.add(1, RECV_REDUCE, peer=0, src_buffer=IN, dst_buffer=OUT, count=1)
    algorithm = custom(2, builder, scratch=0)
    program = levelled_program(algorithm, in_place=False)
    assert program.layout.size[:, TMP].tolist() == [0, 0]
    assert run(algorithm, program, [np.full(UNITS, 1), np.full(UNITS, 2)])[1][0] == 3


@pytest.mark.parametrize(
    ("kind", "result"),
    [(COPY, [0, 0, 1]), (REDUCE, [0, 1, 3]), (RECV_REDUCE, [0, 100, 102])],
    ids=lambda value: str(value),
)
def test_a_step_reads_before_it_writes_where_both_overlap(
    kind: StepKind, result: list[int]
) -> None:
    builder = StepTableBuilder(2)
    if kind is RECV_REDUCE:
        builder.add(1, SEND, peer=0, src_buffer=IN, count=2)
    builder.add(
        0,
        kind,
        peer=1 if kind is RECV_REDUCE else -1,
        src_buffer=OUT,
        dst_buffer=OUT,
        dst_offset=1,
        count=2,
    )
    algorithm = custom(2, builder)
    outputs = run(
        algorithm,
        levelled_program(algorithm, in_place=True),
        [np.arange(3), np.asarray([100, 101, 102])],
    )
    assert outputs[0].tolist() == result


def test_copies_of_units_onto_themselves_vanish_in_place() -> None:
    builder = StepTableBuilder(1)
    builder.add(0, COPY, src_buffer=IN, dst_buffer=OUT, count=UNITS)
    assert [len(levelled_program(custom(1, builder), mode)) for mode in (False, True)] == [1, 0]


def test_opaque_work_passes_its_dependencies_on() -> None:
    builder = StepTableBuilder(3)
    arrived = [builder.add(1, RECV, peer=0, dst_buffer=TMP, count=1)]
    builder.add(0, SEND, peer=1, src_buffer=IN, count=1)
    work = builder.add(1, COMPUTE, data=arrived)
    builder.add(1, SEND, peer=2, src_buffer=TMP, src_offset=1, count=1, data=[work])
    builder.add(2, RECV, peer=1, dst_buffer=OUT, count=1)
    assert levelled_program(custom(3, builder), in_place=False).level.tolist() == [1, 1, 2, 2]


@pytest.mark.once
@given(eager_runs())
def test_blocks_are_known_without_levelling(made: tuple[Algorithm, list[int]]) -> None:
    counts, levelled = block_counts(made[0]), levelled_program(made[0], in_place=False).blocks
    assert counts.full_buffer == levelled.full_buffer
    assert counts.inputs.tolist() == levelled.inputs.tolist()


def test_common_divisors_of_all_offsets_are_taken_out() -> None:
    algorithm = ring_all_reduce(4)
    steps = algorithm.steps
    columns = {
        name: getattr(steps, name)
        for name in ("rank", "kind", "peer", "channel", "src_buffer", "dst_buffer")
    }
    columns |= {name: getattr(steps, name) * 6 for name in ("src_offset", "dst_offset", "count")}
    parents, children = steps.edges()
    larger = replace(
        algorithm,
        collective=replace(algorithm.collective, unit_count=24),
        steps=type(steps).from_columns(4, columns, (parents, children)),
    )
    one, other = (levelled_program(each, in_place=True) for each in (algorithm, larger))
    assert (other.block_units, other.unit_count) == (6, 4)
    assert np.array_equal(one.src_offset, other.src_offset)


def test_an_algorithm_without_steps_is_an_empty_program() -> None:
    program = levelled_program(custom(2, StepTableBuilder(2)), in_place=False)
    assert (len(program), program.num_levels, program.num_messages) == (0, 0, 0)
    assert len(run_order(custom(2, StepTableBuilder(2)), program).records) == 0


# ---- refusals ------------------------------------------------------------------------------------


def _codes(error: pytest.ExceptionInfo[InputError]) -> set[str]:
    return {found.code for found in error.value.diagnostics}


def test_timing_only_algorithms_are_refused() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, SEND, peer=1, count=1)
    builder.add(1, RECV, peer=0, count=1)
    with pytest.raises(InputError, match="timing-only"):
        levelled_program(custom(2, builder), in_place=False)


@pytest.mark.parametrize(
    ("count", "offset", "code"), [(2, 0, "count-mismatch"), (1, 3, "out-of-bounds")]
)
def test_messages_that_do_not_fit_are_refused(count: int, offset: int, code: str) -> None:
    builder = StepTableBuilder(2)
    builder.add(0, SEND, peer=1, src_buffer=IN, count=1)
    builder.add(1, RECV, peer=0, dst_buffer=OUT, dst_offset=offset, count=count)
    with pytest.raises(InputError) as error:
        levelled_program(custom(2, builder), in_place=False)
    assert code in _codes(error)


def test_a_receive_without_send_is_refused() -> None:
    builder = StepTableBuilder(2)
    builder.add(1, RECV, peer=0, dst_buffer=OUT, count=1)
    with pytest.raises(InputError, match="rank 1, step 0: nothing at rank 0"):
        levelled_program(custom(2, builder), in_place=False)


def test_a_race_is_refused_unless_it_is_allowed() -> None:
    builder = StepTableBuilder(2)
    for source in (IN, OUT):
        builder.add(0, SEND, peer=1, src_buffer=IN, channel=source, count=1)
        builder.add(1, RECV, peer=0, dst_buffer=OUT, channel=source, count=1)
    with pytest.raises(InputError, match="nothing orders this receive") as error:
        levelled_program(custom(2, builder), in_place=False)
    assert _codes(error) == {"race"}
    assert (
        levelled_program(custom(2, builder), in_place=False, allow_races=True).num_levels - 1 == 2
    )


def test_a_deadlock_names_where_every_rank_stands() -> None:
    builder = StepTableBuilder(3)
    for rank in range(3):
        arrived = builder.add(rank, RECV, peer=(rank - 1) % 3, dst_buffer=OUT, count=1)
        builder.add(rank, SEND, peer=(rank + 1) % 3, src_buffer=OUT, count=1, data=[arrived])
    with pytest.raises(InputError, match="these steps wait for each other") as error:
        levelled_program(custom(3, builder), in_place=False)
    waiting = [found for found in error.value.diagnostics if found.code == "blocked"]
    assert [(found.location.rank, found.location.step) for found in waiting] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
