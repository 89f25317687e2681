"""Thread blocks and steps: what the runtimes take for granted is checked, with lines."""

from __future__ import annotations

import pytest

from hub_core.model import InputError


def test_document_order_of_ranks_and_thread_blocks_is_free(reader, xml) -> None:
    one, other = xml.block(xml.step("cpy", "i0"), id=1), xml.block(xml.step("cpy", "i1"), id=0)
    text = xml.algo(xml.gpu(id=1), xml.gpu(one, other, id=0))
    steps = reader(text).steps
    assert (steps.rank.tolist(), steps.lane.tolist(), steps.src_offset.tolist()) == (
        [0, 0],
        [0, 1],
        [1, 0],
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 0], "duplicate-rank: a second <gpu> has id 0"),
        ([0, 2], "rank-range: gpu id 2 is not in 0..1 (ngpus 2)"),
        ([0, -1], "rank-range: gpu id -1 is not in 0..1 (ngpus 2)"),
    ],
)
def test_rank_ids(reader, xml, ids: list[int], message: str) -> None:
    found = reader.refusal(xml.algo(*(xml.gpu(id=number) for number in ids)))
    assert f"4: {message}" in found
    assert (
        "1: missing-rank: ngpus is 2, but only 1 rank has a <gpu>; the first one missing is 1"
        in found
    )


def test_missing_rank_is_named(reader, xml) -> None:
    assert reader.refusal(xml.algo(xml.gpu(), ngpus=2)) == [
        "1: missing-rank: ngpus is 2, but only 1 rank has a <gpu>; the first one missing is 1"
    ]


def test_duplicate_thread_block_is_refused(reader, xml) -> None:
    text = xml.algo(xml.gpu(xml.block(id=0), xml.block(id=0)))
    assert reader.refusal(text) == ["5: duplicate-thread-block: a second thread block has id 0"]


@pytest.mark.parametrize("ids", [(1, 2), (0, 2), (-1, 0)])
def test_gap_between_thread_blocks_is_refused(reader, xml, ids: tuple[int, int]) -> None:
    (found,) = reader.refusal(xml.algo(xml.gpu(*(xml.block(id=number) for number in ids))))
    assert "thread-block-gap: thread block ids must be 0, 1, 2, ...: " in found


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (0, "self-peer: thread block 0: {side} 0 is its own rank"),
        (2, "peer-range: thread block 0: {side} 2 is neither -1 nor a rank of 0..1"),
        (-2, "peer-range: thread block 0: {side} -2 is neither -1 nor a rank of 0..1"),
    ],
)
@pytest.mark.parametrize("side", ["send", "recv"])
def test_peers_are_other_ranks(reader, xml, side: str, peer: int, message: str) -> None:
    text = xml.algo(xml.gpu(xml.block(**{side: peer})), xml.gpu())
    assert reader.refusal(text) == [f"3: {message.format(side=side)}"]


@pytest.mark.parametrize(
    ("type", "side"), [("s", "send"), ("rcs", "send"), ("rrs", "send"), ("rrcs", "send")]
)
def test_sending_step_needs_a_peer_to_send_to(reader, xml, type: str, side: str) -> None:
    text = xml.algo(xml.gpu(xml.block(xml.step(type), recv=1)), xml.gpu())
    assert reader.refusal(text)[0] == (
        "4: no-peer: thread block 0, step 0: a sending step, but its thread block has send -1"
    )


@pytest.mark.parametrize("type", ["r", "rcs", "rrc", "rrs", "rrcs"])
def test_receiving_step_needs_a_peer_to_receive_from(reader, xml, type: str) -> None:
    text = xml.algo(xml.gpu(xml.block(xml.step(type), send=1)), xml.gpu())
    assert reader.refusal(text) == [
        "4: no-peer: thread block 0, step 0: a receiving step, but its thread block has recv -1"
    ]


@pytest.mark.parametrize(
    ("side", "type", "verb"), [("send", "s", "sending to"), ("recv", "r", "receiving from")]
)
def test_connection_has_one_owner(reader, xml, side: str, type: str, verb: str) -> None:
    blocks = [xml.block(xml.step(type), **{side: 1}) for _ in range(2)]
    assert reader.refusal(xml.algo(xml.gpu(*blocks), xml.gpu())) == [
        f"6: shared-connection: thread block 1 is the second one that is {verb} rank 1 on channel 0"
    ]


def test_connections_of_other_channels_and_directions_are_apart(reader, xml) -> None:
    blocks = [
        xml.block(xml.step("s"), send=1),
        xml.block(xml.step("r"), recv=1),
        xml.block(xml.step("s"), send=1, chan=1),
    ]
    assert len(reader(xml.algo(xml.gpu(*blocks), xml.gpu(), nchannels=2)).steps) == 3


def test_thread_block_without_sending_steps_owns_no_connection(reader, xml) -> None:
    assert (
        len(
            reader(
                xml.algo(xml.gpu(xml.block(send=1), xml.block(xml.step("s"), send=1)), xml.gpu())
            ).steps
        )
        == 1
    )


def test_negative_channel_is_refused(reader, xml) -> None:
    assert reader.refusal(xml.algo(xml.gpu(xml.block(chan=-1)))) == [
        "3: channel-range: thread block 0: chan -1 is negative"
    ]


def test_channel_beyond_nchannels_is_said(reader, xml) -> None:
    reader(xml.algo(xml.gpu(xml.block(chan=3))))
    assert reader.warnings == ["3: channel-count"]


def test_unknown_step_type_names_the_known_ones(reader, xml) -> None:
    assert reader.refusal(xml.local([xml.step("sx")])) == [
        "4: unknown-type: thread block 0, step 0: type 'sx' is not one of s, r, rcs, rrc, rrs,"
        " rrcs, cpy, re, nop"
    ]


def test_errors_know_the_rank(xml, reader) -> None:
    text = xml.algo(
        xml.gpu(), xml.gpu(xml.block(xml.step("sx", cnt="y"))), xml.gpu(xml.block(send="z"), id="k")
    )
    with pytest.raises(InputError) as caught:
        reader(text)
    places = {
        (found.code, found.location.line, found.location.rank) for found in caught.value.diagnostics
    }
    assert {("unknown-type", 6, 1), ("not-a-number", 6, 1), ("not-a-number", 10, None)} <= places


def test_unknown_buffer_is_refused_even_on_a_nop(reader, xml) -> None:
    text = xml.local(
        [xml.step("cpy", flag=True)], [xml.step("nop", "x0", wait=(0, 0)), xml.step("cpy")]
    )
    assert reader.refusal(text) == [
        "7: unknown-srcbuf: thread block 1, step 0: srcbuf 'x' is not one of i, o, s"
    ]


def test_names_in_messages_skip_thread_blocks_without_steps(reader, xml) -> None:
    text = xml.local([], [xml.step("cpy"), xml.step("sx")], [])
    assert "thread block 1, step 1" in reader.refusal(text)[0]


@pytest.mark.parametrize("count", [0, -1])
def test_step_that_moves_nothing_is_refused(reader, xml, count: int) -> None:
    assert reader.refusal(xml.local([xml.step("cpy", cnt=count)])) == [
        f"4: count-range: thread block 0, step 0: cnt {count} moves no data, expected 1 or more"
    ]


def test_count_beyond_the_runtimes_is_read_and_said(reader, xml) -> None:
    assert reader(xml.local([xml.step("cpy", cnt=72)])).steps.count.tolist() == [72]
    assert reader.warnings == ["4: count-limit"]


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("cnt", "abc", "not-a-number: thread block 0, step 0: cnt 'abc' is not a number"),
        ("cnt", "", "not-a-number: thread block 0, step 0: cnt '' is not a number"),
        (
            "srcoff",
            "1" * 99,
            f"attribute-range: thread block 0, step 0: srcoff '{'1' * 40}'"
            " is not a number below 2^31",
        ),
        ("hasdep", "2", "attribute-range: thread block 0, step 0: hasdep 2 is not 0 or 1"),
    ],
)
def test_step_values_out_of_range(reader, xml, attribute: str, value: str, message: str) -> None:
    assert reader.refusal(xml.local([xml.step("cpy", **{attribute: value})])) == [f"4: {message}"]


def test_negative_size_is_refused(reader, xml) -> None:
    assert reader.refusal(xml.algo(xml.gpu(s=-1))) == [
        "2: attribute-range: a size of the <gpu> with id 0 is negative"
    ]


def test_references_outside_buffers_are_read_for_verification_to_judge(reader, xml) -> None:
    steps = reader(xml.local([xml.step("cpy", "i-1", "o99")])).steps
    assert (steps.src_offset.tolist(), steps.dst_offset.tolist()) == ([-1], [99])


def test_step_numbers_are_only_names(reader, xml) -> None:
    steps = reader(xml.local([xml.step("cpy", "i1", s=7), xml.step("cpy", "i0", s=3)])).steps
    assert steps.src_offset.tolist() == [1, 0]
    assert reader.warnings == ["4: step-number"]


def test_many_defects_of_a_kind_are_counted(reader, xml) -> None:
    found = reader.refusal(xml.local([xml.step("cpy", cnt=0)] * 9))
    assert len(found) == 5
    assert found[-1].endswith("(and 4 more like this)")


def test_defects_are_told_in_the_order_of_the_file(reader, xml) -> None:
    text = xml.algo(
        xml.gpu(xml.block(xml.step("s"), xml.step("cpy", cnt=0)), xml.block(recv=0, chan=-1)),
        xml.gpu(),
    )
    lines = [int(found.split(":")[0]) for found in reader.refusal(text)]
    assert lines == sorted(lines)
    assert len(lines) == 4


def test_file_without_steps_is_an_algorithm_without_steps(reader, xml) -> None:
    assert len(reader(xml.algo(xml.gpu(), xml.gpu(xml.block()))).steps) == 0
