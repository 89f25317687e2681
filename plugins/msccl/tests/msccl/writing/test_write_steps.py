"""Which steps the writer makes: fused, unfused, cut, separated; and what it refuses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from collhub_msccl.plugin import ReadOptions, WriteOptions
from collhub_msccl.reading.read_xml import read, read_program
from collhub_msccl.thread_block_program import ThreadBlockProgram
from collhub_msccl.writing.execution_times import compute_block_figures
from collhub_msccl.writing.write_xml import write

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Contributions,
    HubError,
    InputError,
    ReduceOp,
    StepKind,
    StepTable,
    StepTableBuilder,
    UsageError,
)
from hub_core.plugin_api import Source, WriteResult
from hub_core.testing import (
    CustomSteps,
    all_samples,
    direct_all_to_all,
    direct_gather,
    ring_all_gather,
    ring_all_reduce,
)
from hub_core.verification import verify

pytestmark = pytest.mark.once

INPUT, OUTPUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
Place = tuple[Buffer, int]


class PlacedSteps:
    """Steps of a custom collective, eight units a buffer, without stated result."""

    def __init__(
        self, num_ranks: int = 2, in_place: bool = False, out_of_place: bool = True
    ) -> None:
        self.steps = CustomSteps(num_ranks, 8, in_place=in_place, out_of_place=out_of_place)

    def add(
        self,
        rank: int,
        kind: StepKind,
        source: Place | None,
        target: Place | None,
        count: int = 1,
        **values: object,
    ) -> int:
        for side, place in (("src", source), ("dst", target)):
            if place:
                values |= {f"{side}_buffer": place[0], f"{side}_offset": place[1]}
        return self.steps.add(rank, kind, count=count, **values)  # type: ignore[arg-type]

    def algorithm(self, scratch: int = 8) -> Algorithm:
        return self.steps.algorithm(scratch)


def _result(
    algorithm: Algorithm, runtime: str = "msccl", **options: Any
) -> tuple[str, WriteResult]:
    if runtime != "msccl" and algorithm.collective.kind is CollectiveKind.CUSTOM:
        options.setdefault("collective", "allreduce")
    result = write(algorithm, WriteOptions(runtime, **options))
    (artifact,) = result.artifacts
    return artifact.content().decode(), result


def _text(algorithm: Algorithm, runtime: str = "msccl", **options: Any) -> str:
    return _result(algorithm, runtime, **options)[0]


def _types(text: str) -> list[str]:
    return re.findall(r'type="(\w+)"', text)


def _header(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text.splitlines()[0]))


def _program(text: str) -> ThreadBlockProgram:
    return read_program(Source.of_bytes("x.xml", text.encode()))[1]


def _back(text: str) -> Algorithm:
    return read(Source.of_bytes("x.xml", text.encode()), ReadOptions())


def _forwarding(reduces: bool, target: Place, is_read_again: bool = False) -> Algorithm:
    """Rank 0 sends to 1, which adds its input perhaps, and sends on to 2."""
    draft = PlacedSteps(3)
    draft.add(0, StepKind.SEND, (INPUT, 0), None, peer=1)
    kind = StepKind.RECV_REDUCE if reduces else StepKind.RECV
    received = draft.add(1, kind, (INPUT, 0) if reduces else None, target, peer=0)
    draft.add(1, StepKind.SEND, target, None, peer=2, data=[received])
    if is_read_again:
        draft.add(1, StepKind.COPY, target, (OUTPUT, 7), data=[received])
    draft.add(2, StepKind.RECV, None, (OUTPUT, 0), peer=1)
    return draft.algorithm()


@pytest.mark.parametrize(
    ("algorithm", "middle"),
    [
        (_forwarding(False, (OUTPUT, 0)), ["rcs"]),
        (_forwarding(True, (OUTPUT, 0)), ["rrcs"]),
        (_forwarding(True, (SCRATCH, 3)), ["rrs"]),
        (_forwarding(True, (SCRATCH, 3), is_read_again=True), ["rrcs", "cpy"]),
    ],
)
def test_receive_and_send_of_the_same_units_are_one_step(
    algorithm: Algorithm, middle: list[str]
) -> None:
    assert _types(_text(algorithm)) == ["s", *middle, "r"]


@pytest.mark.parametrize(
    ("algorithm", "middle"),
    [
        (_forwarding(False, (OUTPUT, 0)), ["r", "s"]),
        (_forwarding(True, (OUTPUT, 0)), ["r", "re", "s"]),
        (_forwarding(True, (INPUT, 0)), ["r", "re", "s"]),
        (_forwarding(True, (SCRATCH, 3)), ["r", "re", "s"]),
    ],
)
def test_rccl_gets_no_fused_step(algorithm: Algorithm, middle: list[str]) -> None:
    assert _types(_text(algorithm, "rccl")) == ["s", *middle, "r"]


def test_slot_of_a_sum_that_is_only_sent_on_is_no_scratch() -> None:
    assert set(re.findall(r's_chunks="(\d+)"', _text(_forwarding(True, (SCRATCH, 3))))) == {"0"}


def test_send_that_waits_for_a_change_of_what_was_received_stays_apart(loaders: ModuleType) -> None:
    draft = PlacedSteps(3)
    draft.add(0, StepKind.SEND, (INPUT, 0), None, peer=1)
    received = draft.add(1, StepKind.RECV, None, (OUTPUT, 0), peer=0)
    changed = draft.add(1, StepKind.REDUCE, (INPUT, 1), (OUTPUT, 0), data=[received])
    draft.add(1, StepKind.SEND, (OUTPUT, 0), None, peer=2, data=[received, changed])
    draft.add(2, StepKind.RECV, None, (OUTPUT, 0), peer=1)
    text = _text(draft.algorithm())
    assert "rcs" not in _types(text)
    assert loaders.run(text, False, 2).cells[2, "o", 0] == Counter({(0, 0): 1, (1, 1): 1})


@pytest.mark.parametrize(
    ("in_place", "out_of_place", "types"),
    [(False, True, "r re"), (True, False, "r re"), (True, True, "r re cpy")],
)
def test_sum_in_another_place_is_unfused_for_the_modes_that_are_claimed(
    loaders: ModuleType, in_place: bool, out_of_place: bool, types: str
) -> None:
    draft = PlacedSteps(2, in_place, out_of_place)
    draft.add(0, StepKind.SEND, (INPUT, 0), None, peer=1)
    draft.add(1, StepKind.RECV_REDUCE, (INPUT, 0), (OUTPUT, 0), peer=0)
    text = _text(draft.algorithm(), "rccl")
    assert _types(text)[1:] == types.split()
    for mode in [True] * in_place + [False] * out_of_place:
        machine = loaders.run(text, mode, 2)
        assert machine.cells[machine.cell(1, "o", 0)] == Counter({(0, 0): 1, (1, 0): 1})


def test_sum_that_overlaps_its_operand_is_unfused_through_a_slot(loaders: ModuleType) -> None:
    draft = PlacedSteps(2)
    draft.add(0, StepKind.SEND, (INPUT, 0), None, count=2, peer=1)
    draft.add(1, StepKind.RECV_REDUCE, (INPUT, 0), (INPUT, 1), count=2, peer=0)
    text = _text(draft.algorithm(), "rccl")
    assert _types(text)[1:] == ["r", "re", "cpy"]
    cells = loaders.run(text, False, 2).cells
    assert cells[1, "i", 1] == Counter({(0, 0): 1, (1, 0): 1})
    assert cells[1, "i", 2] == Counter({(0, 1): 1, (1, 1): 1})


def _reductions(counts: list[int], source: Buffer = INPUT, offset: int = 2) -> Algorithm:
    draft, last = PlacedSteps(1), []
    last = [draft.add(0, StepKind.COPY, (INPUT, 0), (SCRATCH, 0), count=2)]
    for count in counts:
        last = [
            draft.add(0, StepKind.REDUCE, (source, offset), (SCRATCH, 0), count=count, data=last)
        ]
    return draft.algorithm()


@pytest.mark.parametrize(
    ("counts", "separated"), [([1, 1], 0), ([2, 1], 1), ([1, 2], 1), ([1] * 16, 0), ([1] * 20, 1)]
)
def test_neighbouring_reductions_are_separated_where_the_runtimes_would_misread_them(
    loaders: ModuleType, counts: list[int], separated: int
) -> None:
    text = _text(_reductions(counts))
    assert text.count('hasdep="1"') == separated
    cells = loaders.run(text, False, 2).cells
    assert [cells[0, "s", unit][0, 2 + unit] for unit in (0, 1)] == [
        len(counts),
        sum(count > 1 for count in counts),
    ]


@pytest.mark.parametrize(("offset", "separated"), [(1, 1), (2, 0)])
def test_reductions_are_separated_where_an_operand_overlaps_the_result(
    offset: int, separated: int
) -> None:
    text = _text(_reductions([2, 2], SCRATCH, offset))
    assert text.count('hasdep="1"') == separated


def _gathered_sum(ranks: int, has_lanes: bool = False) -> Algorithm:
    """Every other rank sends a unit to rank 0, which adds them as they come."""
    draft, last = PlacedSteps(ranks), []
    for rank in range(1, ranks):
        lanes = {"lane": rank} if has_lanes else {}
        draft.add(rank, StepKind.SEND, (INPUT, 0), None, peer=0, **lanes)
        received = draft.add(0, StepKind.RECV, None, (SCRATCH, rank), peer=rank, **lanes)
        local = {"lane": 0} if has_lanes else {}
        data = [*last, received]
        last = [draft.add(0, StepKind.REDUCE, (SCRATCH, rank), (INPUT, 0), data=data, **local)]
    return draft.algorithm(scratch=ranks)


@pytest.mark.parametrize(("ranks", "passes"), [(3, 1), (17, 1), (18, 2)])
def test_waits_of_a_run_of_reductions_stand_before_its_first(
    loaders: ModuleType, ranks: int, passes: int
) -> None:
    text = _text(_gathered_sum(ranks))
    (run,) = re.findall(r"(?:re )+", " ".join(_types(text)) + " ")
    assert len(run.split()) == ranks - 1
    # A pass has place for 16 operands.
    assert compute_block_figures(_program(text)).executed == 2 * (ranks - 1) + passes
    assert loaders.run(text, False, 2).cells[0, "i", 0] == Counter(
        {(rank, 0): 1 for rank in range(ranks)}
    )


@pytest.mark.parametrize(("max_steps", "passes"), [(9, 1), (5, 5)])
def test_reductions_wait_one_by_one_where_a_pass_needs_more_steps_than_there_may_be(
    max_steps: int, passes: int
) -> None:
    text = _text(_gathered_sum(6, has_lanes=True), max_steps=max_steps)
    figures = compute_block_figures(_program(text))
    # The thread blocks of the source stay: one for each of five peers, one for the sum.
    assert (figures.blocks, figures.executed) == (6, 10 + passes)


def _late_operands(arrivals: list[int], reader: int) -> Algorithm:
    """Lane 0 of rank 0 adds one message of each other rank, in the order of the ranks.

    `arrivals`: number of local copies that each of them makes before it sends. `reader`: the rank
    whose message lane 9 of rank 0 overwrites as soon as it has been added; 0 for none.
    """
    draft = PlacedSteps(len(arrivals) + 1)
    received, sums = [], []
    for rank, copies in enumerate(arrivals, 1):
        before: list[int] = []
        for place in range(copies):
            copied = draft.add(
                rank, StepKind.COPY, (INPUT, 0), (SCRATCH, 10 + place), data=before, lane=1
            )
            before = [copied]
        draft.add(rank, StepKind.SEND, (INPUT, 0), None, peer=0, data=before, lane=1)
        received.append(draft.add(0, StepKind.RECV, None, (SCRATCH, rank), peer=rank, lane=rank))
    for rank in range(1, len(arrivals) + 1):
        data = [*sums[-1:], received[rank - 1]]
        sums.append(draft.add(0, StepKind.REDUCE, (SCRATCH, rank), (INPUT, 0), data=data, lane=0))
    if reader:
        last = [sums[reader - 1]]
        for _ in range(len(arrivals)):
            copied = draft.add(0, StepKind.COPY, (INPUT, 1), (SCRATCH, reader), data=last, lane=9)
            last = [copied]
    return draft.algorithm(scratch=40)


@pytest.mark.parametrize(
    ("arrivals", "reader", "time", "passes"),
    [
        # All operands are there: one pass, of three operands.
        ([0, 0, 0], 0, 1 + 3, 1),
        # The last operand is sent at 5: a pass of all three would end at 6 + 3.
        ([0, 0, 5], 0, 6 + 1, 2),
        # The first operand is the last to come: a pass waits for nothing else.
        ([5, 0, 0], 0, 6 + 3, 1),
        # The block that waits for the first sum goes on for three units at 1 + 1.
        ([0, 0, 0], 1, 2 + 3, 2),
        # The block that waits for the last sum is not delayed by a pass.
        ([0, 0, 0], 3, 4 + 3, 1),
    ],
)
def test_a_pass_of_stated_thread_blocks_delays_nothing(
    arrivals: list[int], reader: int, time: int, passes: int
) -> None:
    figures = compute_block_figures(_program(_text(_late_operands(arrivals, reader))))
    moves = 2 * len(arrivals) + sum(arrivals) + (len(arrivals) if reader else 0)
    assert (figures.makespan, figures.executed) == (time, moves + passes)


def _staged(is_in_turn: bool) -> Algorithm:
    """Two units reach rank 1 through scratch of their own, one after the other or at once."""
    draft = PlacedSteps(2)
    last: list[int] = []
    for unit in range(2):
        draft.add(0, StepKind.SEND, (INPUT, unit), None, peer=1, channel=unit)
        received = draft.add(
            1,
            StepKind.RECV,
            None,
            (SCRATCH, 3 * unit),
            peer=0,
            channel=unit,
            data=last if is_in_turn else [],
        )
        last = [draft.add(1, StepKind.COPY, (SCRATCH, 3 * unit), (OUTPUT, unit), data=[received])]
    return draft.algorithm()


@pytest.mark.parametrize(("is_in_turn", "units"), [(True, 1), (False, 2)])
def test_scratch_is_used_again_once_it_is_done_with(is_in_turn: bool, units: int) -> None:
    text = _text(_staged(is_in_turn))
    assert max(int(found) for found in re.findall(r's_chunks="(\d+)"', text)) == units
    assert verify(_back(text)).modes["out_of_place"].verdict == "ok"


def test_several_dependencies_are_nops_before_the_step() -> None:
    draft = PlacedSteps(2)
    parents = []
    for channel in range(3):
        draft.add(0, StepKind.SEND, (INPUT, channel), None, peer=1, channel=channel)
        parents.append(
            draft.add(1, StepKind.RECV, None, (OUTPUT, channel), peer=0, channel=channel)
        )
    draft.add(1, StepKind.SEND, (OUTPUT, 0), None, count=3, peer=0, data=parents)
    draft.add(0, StepKind.RECV, None, (OUTPUT, 0), count=3, peer=1)
    text = _text(draft.algorithm())
    assert _types(text).count("nop") == 2
    assert text.count('hasdep="1"') == 3
    assert len(_back(text).steps.data_indices) == 3


def test_long_messages_are_cut_at_the_same_places_on_both_ends() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 3, 151, 0, in_place=True, out_of_place=False)
    builder = StepTableBuilder(3)
    for start, count in ((0, 1), (1, 150)):
        region = {"count": count}
        builder.add(0, StepKind.SEND, peer=1, src_buffer=OUTPUT, src_offset=start, **region)
        received = builder.add(
            1, StepKind.RECV, peer=0, dst_buffer=OUTPUT, dst_offset=start, **region
        )
        builder.add(
            1, StepKind.SEND, peer=2, src_buffer=OUTPUT, src_offset=start, data=[received], **region
        )
        builder.add(2, StepKind.RECV, peer=1, dst_buffer=OUTPUT, dst_offset=start, **region)
    text = _text(Algorithm(collective, builder.build(), np.zeros(3, np.int64)), "executor")
    assert Counter(_types(text)) == {"s": 4, "rcs": 4, "r": 4}
    assert set(re.findall(r'cnt="(\d+)"', text)) == {"1", "71", "8"}
    assert verify(_back(text)).ok


def test_units_that_are_finer_than_needed_are_joined_and_that_is_said() -> None:
    fine = ring_all_gather(4)
    steps = replace(
        fine.steps,
        **{
            name: getattr(fine.steps, name) * 1000 for name in ("src_offset", "dst_offset", "count")
        },
    )
    text, result = _result(
        replace(fine, steps=steps, collective=replace(fine.collective, unit_count=4000)), "executor"
    )
    assert _header(text)["nchunksperloop"] == "4"
    assert any("unit_count" in loss.feature for loss in result.losses)


@pytest.mark.once
@pytest.mark.parametrize(("runtime", "ranks"), [("msccl", 140), ("executor", 48), ("rccl", 48)])
def test_long_thread_blocks_are_cut_to_the_limit(
    loaders: ModuleType, runtime: str, ranks: int
) -> None:
    text = _text(ring_all_reduce(ranks), runtime)
    assert loaders.refusals(text, runtime) == []
    assert verify(_back(text)).ok


def test_stated_limits_replace_those_of_the_default_build(loaders: ModuleType) -> None:
    ring = ring_all_reduce(16)
    blocks = {steps: _text(ring, "executor", max_steps=steps).count("<tb ") for steps in (8, 64)}
    assert blocks[64] == 16
    assert blocks[8] >= 64
    assert verify(_back(_text(ring, "executor", max_steps=8))).ok


def test_more_peers_than_thread_blocks_of_a_channel_are_spread_over_channels(
    loaders: ModuleType,
) -> None:
    text = _text(direct_all_to_all(40), "executor")
    assert 2 <= int(_header(text)["nchannels"]) <= 4
    assert loaders.refusals(text, "executor") == []


def test_unrelated_thread_blocks_are_joined_where_there_would_be_too_many(
    loaders: ModuleType,
) -> None:
    text = _text(direct_all_to_all(60), "rccl")
    assert loaders.refusals(text, "rccl") == []
    assert verify(_back(text)).ok


@pytest.mark.parametrize(
    ("algorithm", "runtime", "options", "reason"),
    [
        (
            direct_all_to_all(70),
            "rccl",
            {},
            r"rank \d+ needs at least \d+ thread blocks, more than the 64 that it accepts",
        ),
        (direct_all_to_all(40), "executor", {"max_channels": 1}, "more than the 1 channels"),
        (all_samples(4)["shift-to-next"], "rccl", {}, "it has no custom collective"),
        (
            all_samples(4)["ring-all-reduce"],
            "msccl",
            {"mode": "out-of-place"},
            "does not claim to be usable out of place",
        ),
        (
            all_samples(4)["ring-all-reduce"],
            "msccl",
            {"min_bytes": 9, "max_bytes": 8},
            "no size is at least 9 and at most 8",
        ),
        (
            all_samples(4)["ring-all-reduce"],
            "msccl",
            {"collective": "alltoallw"},
            "knows no 'alltoallw'",
        ),
    ],
)
def test_what_a_runtime_cannot_do_is_refused_by_name(
    algorithm: Algorithm, runtime: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((InputError, UsageError), match=reason):
        write(algorithm, WriteOptions(runtime, **options))


def _with(algorithm: Algorithm, **columns: object) -> Algorithm:
    steps: StepTable = algorithm.steps
    return replace(algorithm, steps=replace(steps, **columns))  # type: ignore[arg-type]


def test_custom_collective_is_written_for_the_runtime_that_has_one() -> None:
    shift = all_samples(4)["shift-to-next"]
    (artifact,) = write(shift, WriteOptions()).artifacts
    header = _header(artifact.content().decode())
    assert (header["coll"], "outofplace" in header) == ("custom", False)
    # Under another name, it is for the runtime that is usual for the others.
    (artifact,) = write(shift, WriteOptions(collective="alltoallv")).artifacts
    assert "outofplace" in _header(artifact.content().decode())


@pytest.mark.parametrize("runtime", ["executor", "rccl"])
def test_advice_on_custom_collectives_names_a_runtime_and_no_other_collective(runtime: str) -> None:
    with pytest.raises(InputError, match="it has no custom collective") as caught:
        write(all_samples(4)["shift-to-next"], WriteOptions(runtime))
    assert caught.value.diagnostics[0].cure == (
        "-O runtime=msccl writes it for microsoft/msccl, which has one"
    )


def test_timing_only_and_opaque_work_are_refused() -> None:
    ring = ring_all_reduce(4)
    unknown = np.full(len(ring.steps), Buffer.UNKNOWN, np.uint8)
    with pytest.raises(InputError, match="do not specify the units that they access"):
        write(_with(ring, src_buffer=unknown, dst_buffer=unknown.copy()), WriteOptions())
    draft = PlacedSteps(1)
    draft.add(0, StepKind.COMPUTE, None, None)
    with pytest.raises(InputError, match="opaque work"):
        write(draft.algorithm(), WriteOptions("msccl"))


def test_lonely_message_is_refused_with_its_place() -> None:
    draft = PlacedSteps(2)
    draft.add(0, StepKind.SEND, (INPUT, 0), None, peer=1)
    with pytest.raises(HubError, match="rank 0, step 0"):
        write(draft.algorithm(), WriteOptions("msccl"))


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ("msccl", {"coll": "reduce_scatter", "inplace": "1", "maxBytes": "134217728"}),
        (
            "executor",
            {
                "coll": "reducescatter",
                "inplace": "1",
                "outofplace": "1",
                "minBytes": "0",
                "maxBytes": "0",
            },
        ),
        (
            "rccl",
            {
                "coll": "reducescatter",
                "inplace": "1",
                "outofplace": "1",
                "minBytes": "0",
                "maxBytes": "0",
            },
        ),
    ],
)
def test_header_is_spelled_for_the_runtime(runtime: str, expected: dict[str, str]) -> None:
    header = _header(_text(all_samples(4)["ring-reduce-scatter"], runtime))
    assert {name: header[name] for name in expected} == expected
    assert ("outofplace" in header) == (runtime != "msccl")


def test_both_modes_are_two_files_for_msccl_and_a_loss_says_so() -> None:
    both = ring_all_gather(4)
    text, result = _result(both)
    assert (_header(text)["inplace"], [loss.feature for loss in result.losses]) == (
        "1",
        ["out_of_place"],
    )
    text, result = _result(both, mode="out-of-place")
    assert (_header(text)["inplace"], [loss.feature for loss in result.losses]) == (
        "0",
        ["in_place"],
    )


def test_sizes_are_inclusive_at_the_upper_end_for_all_but_msccl() -> None:
    ring = ring_all_reduce(4)
    sizes = {"min_bytes": 1024, "max_bytes": 4096}
    assert _header(_text(ring, "msccl", **sizes))["maxBytes"] == "4097"
    assert _header(_text(ring, "executor", **sizes))["maxBytes"] == "4096"


@pytest.mark.parametrize(("proto", "limit"), [("Simple", str(3 << 20)), ("LL", "0")])
def test_size_is_limited_where_connections_would_fill_up(proto: str, limit: str) -> None:
    """Two ranks send three units before they receive.

    Two transfers fit a connection of Simple, so one must take two units.
    """
    steps = CustomSteps(2, 3)
    for rank in range(2):
        steps.send(rank, 1 - rank, count=3, lane=0)
        steps.receive(rank, 1 - rank, count=3, lane=0)
        # One unit alone keeps the three from being taken as one.
        steps.add(rank, StepKind.COPY, src_buffer=INPUT, dst_buffer=SCRATCH, count=1, lane=1)
    text, result = _result(steps.algorithm(scratch_units=1), "executor", proto=proto)
    assert _header(text)["maxBytes"] == limit
    assert ("extensions: maxBytes" in {loss.feature for loss in result.losses}) == (
        proto == "Simple"
    )


def test_collective_without_a_name_in_msccl_is_custom_and_that_is_said() -> None:
    text, result = _result(direct_gather(4))
    assert _header(text)["coll"] == "custom"
    assert {"kind", "contract"} <= {loss.feature for loss in result.losses}


def test_what_the_file_cannot_say_is_listed() -> None:
    ring = ring_all_reduce(4)
    collective = replace(ring.collective, reduce_op=ReduceOp.MAX)
    timed = np.where(ring.steps.sends, -1, 5).astype(np.int64)
    changed = replace(
        _with(ring, duration_ns=timed),
        collective=collective,
        collective_bytes=4096,
        extensions={"x": 1},
    )
    _, result = _result(changed, "executor")
    assert {loss.feature for loss in result.losses} == {
        "reduce_op",
        "durations",
        "collective bytes",
        "extensions",
    }
    expected = Contributions(*(np.zeros(1, np.int64) for _ in range(4)))
    draft = PlacedSteps(1).algorithm()
    contract = draft.collective.contract
    assert contract is not None
    stated = replace(
        draft, collective=replace(draft.collective, contract=replace(contract, expected=expected))
    )
    assert [loss.feature for loss in _result(stated)[1].losses] == ["contract"]


def test_name_is_cleaned_and_never_that_of_a_built_in_algorithm() -> None:
    assert _header(_text(ring_all_reduce(4), name='a "b" <c>&'))["name"] == "a__b___c__"
    assert _header(_text(direct_all_to_all(4), name="2D"))["name"] == "2D_file"
    assert len(_header(_text(ring_all_reduce(4), name="x" * 300))["name"]) == 63


def test_the_same_algorithm_gives_the_same_bytes() -> None:
    for algorithm in all_samples(8).values():
        for runtime in ("msccl", "executor", "rccl"):
            assert _text(algorithm, runtime) == _text(algorithm, runtime)
