"""The mapping of step types to plain steps."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core.model import Algorithm, Buffer, InputError, StepKind

I, O, S, U = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH, Buffer.UNKNOWN  # noqa: E741


def _rows(algorithm: Algorithm, rank: int) -> list[tuple[object, ...]]:
    """(kind, peer, src, dst, count) of the steps of a rank."""
    steps = algorithm.steps
    return [
        (
            StepKind(steps.kind[row]).name,
            int(steps.peer[row]),
            (Buffer(steps.src_buffer[row]), int(steps.src_offset[row])),
            (Buffer(steps.dst_buffer[row]), int(steps.dst_offset[row])),
            int(steps.count[row]),
        )
        for row in range(steps.rank_indptr[rank], steps.rank_indptr[rank + 1])
    ]


def _edges(indptr: np.ndarray, indices: np.ndarray) -> list[tuple[int, int]]:
    return list(
        zip(
            indices.tolist(),
            np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)).tolist(),
            strict=True,
        )
    )


def _middle(reader, xml, step: dict[str, object], **options: str) -> list[tuple[object, ...]]:
    """Rows of rank 1, which receives from rank 0 and sends to rank 2."""
    gpus = [xml.gpu(), xml.gpu(xml.block(step, recv=0, send=2), s=2), xml.gpu()]
    return _rows(reader(xml.algo(*gpus), **options), 1)


def test_s_and_r_keep_only_their_local_side(reader, xml) -> None:
    algorithm = reader(xml.pair(xml.step("s", "i1", "o0", cnt=2), xml.step("r", "i1", "o0", cnt=2)))
    assert _rows(algorithm, 0) == [("SEND", 1, (I, 1), (U, 0), 2)]
    assert _rows(algorithm, 1) == [("RECV", 0, (U, 0), (O, 0), 2)]


def test_rcs_receives_and_sends_what_it_stored(reader, xml) -> None:
    rows = _middle(reader, xml, xml.step("rcs", "i1", "o0"))
    assert rows == [("RECV", 0, (U, 0), (O, 0), 1), ("SEND", 2, (O, 0), (U, 0), 1)]


def test_rrc_adds_the_local_source(reader, xml) -> None:
    assert _middle(reader, xml, xml.step("rrc", "i1", "o0")) == [
        ("RECV_REDUCE", 0, (I, 1), (O, 0), 1)
    ]


def test_rrcs_adds_the_local_source_stores_and_sends(reader, xml) -> None:
    rows = _middle(reader, xml, xml.step("rrcs", "i1", "o0"))
    assert rows == [("RECV_REDUCE", 0, (I, 1), (O, 0), 1), ("SEND", 2, (O, 0), (U, 0), 1)]


def test_rrs_uses_a_slot_behind_the_declared_scratch(reader, xml) -> None:
    rows = _middle(reader, xml, xml.step("rrs", "i1", "o0"))
    assert rows == [("RECV_REDUCE", 0, (I, 1), (S, 2), 1), ("SEND", 2, (S, 2), (U, 0), 1)]


@pytest.mark.parametrize(
    ("type", "destination"), [("rrc", (O, 0)), ("rrcs", (O, 0)), ("rrs", (S, 2))]
)
def test_dsl_reading_adds_the_local_destination(
    reader, xml, type: str, destination: tuple[Buffer, int]
) -> None:
    rows = _middle(reader, xml, xml.step(type, "i1", "o0"), reading="dsl")
    assert rows[0] == ("RECV_REDUCE", 0, (O, 0), destination, 1)


def test_cpy_and_re_are_local(reader, xml) -> None:
    algorithm = reader(
        xml.local([xml.step("cpy", "i1", "s2", cnt=3), xml.step("re", "i4", "s2", cnt=2)])
    )
    assert _rows(algorithm, 0) == [
        ("COPY", -1, (I, 1), (S, 2), 3),
        ("REDUCE", -1, (I, 4), (S, 2), 2),
    ]


def test_each_thread_block_with_rrs_has_one_slot_for_its_largest(reader, xml) -> None:
    blocks = [
        xml.block(xml.step("rrs", cnt=1), xml.step("rrs", cnt=3), recv=0, send=2),
        xml.block(xml.step("cpy")),
        xml.block(xml.step("rrs", cnt=2), recv=2, send=0),
    ]
    algorithm = reader(xml.algo(xml.gpu(s=4), xml.gpu(*blocks, s=2), xml.gpu()))
    assert algorithm.scratch_units.tolist() == [4, 2 + 3 + 2, 0]
    slots = [row[3] for row in _rows(algorithm, 1) if row[0] == "RECV_REDUCE"]
    assert slots == [(S, 2), (S, 2), (S, 5)]
    assert algorithm.extensions["msccl"]["s_chunks"] == [4, 2, 0]


def test_scratch_out_of_bounds_beside_a_slot_cannot_be_represented(reader, xml) -> None:
    blocks = [
        xml.block(xml.step("rrs"), recv=0, send=2),
        xml.block(xml.step("cpy", "s1", "o0", cnt=2)),
    ]
    assert reader.refusal(xml.algo(xml.gpu(), xml.gpu(*blocks, s=2), xml.gpu())) == [
        "9: scratch-range: thread block 1, step 0: reaches beyond the s_chunks of 2"
    ]


def test_rows_know_channel_lane_and_line(reader, xml) -> None:
    blocks = [xml.block(xml.step("cpy")), xml.block(xml.step("rcs"), recv=0, send=2, chan=3)]
    steps = reader(xml.algo(xml.gpu(), xml.gpu(*blocks), xml.gpu(), nchannels=4)).steps
    assert steps.lane.tolist() == [0, 1, 1]
    assert steps.channel.tolist() == [0, 3, 3]
    assert steps.source_line.tolist() == [6, 9, 9]
    assert steps.duration_ns.tolist() == [-1, -1, -1]


def test_program_order_is_control_and_fused_halves_are_data(reader, xml) -> None:
    block = xml.block(xml.step("rcs", dst="o0"), xml.step("rcs", dst="o1"), recv=0, send=2)
    steps = reader(xml.algo(xml.gpu(), xml.gpu(block), xml.gpu())).steps
    assert _edges(steps.control_indptr, steps.control_indices) == [(1, 2)]
    assert _edges(steps.data_indptr, steps.data_indices) == [(0, 1), (2, 3)]


def test_receive_without_send_is_read_for_verification_to_judge(reader, xml) -> None:
    assert len(reader(xml.algo(xml.gpu(xml.block(xml.step("r"), recv=1)), xml.gpu())).steps) == 1


def test_result_is_read_only(reader, xml) -> None:
    with pytest.raises(ValueError, match="read-only"):
        reader(xml.local([xml.step("cpy")])).steps.count[0] = 2


def test_reading_twice_gives_equal_algorithms(reader, xml) -> None:
    text = xml.local([xml.step("cpy", flag=True)], [xml.step("cpy", wait=(0, 0))])
    assert reader(text).differences(reader(text)) == []


def test_cycle_of_dependencies_is_refused(reader, xml) -> None:
    text = xml.local(
        [xml.step("cpy", wait=(1, 0), flag=True)], [xml.step("cpy", wait=(0, 0), flag=True)]
    )
    assert reader.refusal(text)[0].startswith("4: cyclic-dependencies: ")


def test_input_error_is_the_only_kind_of_refusal_for_files(reader, xml) -> None:
    with pytest.raises(InputError):
        reader(xml.local([xml.step("sx")]))
