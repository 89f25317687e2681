"""GOAL: what the writer says and loses, what the reader takes and refuses, and both together."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_goal.plugin import GoalWriteOptions, collhub_consumers
from collhub_goal.read import read
from collhub_goal.write import write
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Diagnostic,
    InputError,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import Format, FormatWriter, NoOptions, Source
from hub_core.registry.bind_options import bind_options
from hub_core.testing import all_samples, ring_all_reduce
from hub_core.verification import verify

WRITER = next(offer for offer in collhub_consumers() if isinstance(offer, FormatWriter))


def options(**given: str | int) -> GoalWriteOptions:
    bound = bind_options(WRITER.options, given, {}, "writer goal")
    assert isinstance(bound, GoalWriteOptions)
    return bound


def written(algorithm: Algorithm, **given: str | int) -> str:
    (artifact,) = write(algorithm, options(**given)).artifacts
    return artifact.content().decode()


def read_text(text: str, reports: list[Diagnostic] | None = None) -> Algorithm:
    source = Source.of_bytes("x.goal", text.encode())
    report = (reports if reports is not None else []).append
    return read(Source(source.name, source.parts, report), NoOptions())


def one_message(**values: int) -> Algorithm:
    builder = StepTableBuilder(2)
    place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.UNKNOWN}
    builder.add(0, StepKind.SEND, peer=1, count=1, src_buffer=Buffer.INPUT)
    received = builder.add(
        1,
        StepKind.RECV_REDUCE,
        peer=0,
        count=1,
        **(place | {"dst_buffer": Buffer.OUTPUT}),
        **values,
    )
    builder.add(
        1,
        StepKind.COPY,
        count=1,
        src_buffer=Buffer.OUTPUT,
        dst_buffer=Buffer.SCRATCH,
        data=[received],
        lane=3,
    )
    return Algorithm(
        Collective(CollectiveKind.ALL_REDUCE, 2, 4), builder.build(), np.ones(2, np.int64)
    )


def test_a_reducing_receive_becomes_a_recv_and_a_calc_that_others_wait_for() -> None:
    assert written(one_message(), size=4000) == (
        "num_ranks 2\n\nrank 0 {\nl0: send 1000b to 1 tag 0\n}\n\n"
        "rank 1 {\nl0: recv 1000b from 0 tag 0\nl1: calc 1\n"
        "l2: calc 1 cpu 3\nl1 requires l0\nl2 requires l1\n}\n"
    )


def test_work_takes_its_stated_time_or_that_of_its_bytes() -> None:
    text = written(
        one_message(duration_ns=70), size=4000, copy_bandwidth="10GB/s", reduce_bandwidth="1GB/s"
    )
    assert "l1: calc 70\n" in text
    assert "l2: calc 100 cpu 3\n" in text
    assert "l1: calc 1000\n" in written(one_message(), size=4000, reduce_bandwidth="1GB/s")


def test_lanes_and_channels_become_cpus_and_nics_on_request() -> None:
    assert " cpu " not in written(one_message(), cpu="none")
    assert "send 262144b to 1 tag 0 nic 0\n" in written(one_message(), nic="channel")


def many_lanes(lanes: int, first: int = 0) -> Algorithm:
    builder = StepTableBuilder(2)
    place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT}
    for lane in range(first, first + lanes):
        builder.add(1, StepKind.COPY, count=1, lane=lane, **place)
    return Algorithm(
        Collective(CollectiveKind.ALL_REDUCE, 2, 4), builder.build(), np.zeros(2, np.int64)
    )


def cpus(text: str) -> list[int]:
    return [int(line.split(" cpu ")[1]) for line in text.splitlines() if " cpu " in line]


def test_255_lanes_are_255_cpus() -> None:
    algorithm = many_lanes(255)
    assert cpus(written(algorithm)) == [*range(255)]
    assert "lane" not in {loss.feature for loss in write(algorithm, options()).losses}


def test_lanes_that_8_bits_cannot_tell_apart_share_cpus_and_this_is_said() -> None:
    algorithm = many_lanes(300)
    assert cpus(written(algorithm)) == [*range(255), *range(45)]
    (loss,) = [loss for loss in write(algorithm, options()).losses if loss.feature == "lane"]
    assert loss.where == "45 steps"
    assert "distinguishes 255 cpus" in loss.consequence


def test_few_lanes_with_large_numbers_keep_cpus_of_their_own() -> None:
    assert cpus(written(many_lanes(3, first=1000))) == [0, 1, 2]


def test_channels_that_8_bits_cannot_tell_apart_share_nics_and_this_is_said() -> None:
    builder = StepTableBuilder(2)
    for channel in range(256):
        builder.add(0, StepKind.SEND, peer=1, channel=channel, count=1, src_buffer=Buffer.INPUT)
        builder.add(1, StepKind.RECV, peer=0, channel=channel, count=1, dst_buffer=Buffer.OUTPUT)
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 256)
    algorithm = Algorithm(collective, builder.build(), np.zeros(2, np.int64))
    result = write(algorithm, options(nic="channel"))
    sends = [line for line in written(algorithm, nic="channel").splitlines() if " send " in line]
    assert [int(line.split(" nic ")[1]) for line in sends] == [*range(255), 0]
    assert [loss.where for loss in result.losses if loss.feature == "nic"] == ["2 messages"]


def test_lines_may_end_as_on_windows() -> None:
    text = written(ring_all_reduce(4))
    windows = read_text(text.replace("\n", "\r\n"))
    assert not set(windows.differences(read_text(text))) - {"provenance"}
    marked = read_text("\ufeff" + text)
    assert not set(marked.differences(read_text(text))) - {"provenance"}
    with pytest.raises(InputError) as caught:
        read_text("num_ranks 1\r\nrank 0 {\r\ncalc 5\r\nsend 8 to 0\r\n}\r\n")
    assert caught.value.diagnostics[0].location.line == 4


def test_messages_of_one_pair_get_tags_of_their_own() -> None:
    text = written(ring_all_reduce(4))
    tags = [line.split(" tag ")[1] for line in text.splitlines() if " send " in line]
    assert len(tags) == len(set(tags)) == 24


@pytest.mark.parametrize("name", sorted(all_samples()))
def test_what_was_written_is_read_back_and_written_equal(name: str) -> None:
    text = written(all_samples()[name], size=1 << 16)
    once = read_text(text)
    again = read_text(written(once))
    assert verify(once).ok
    assert set(once.differences(again)) <= {"source_line", "provenance"}
    assert not set(once.differences(read_text(written(once)))) - {"source_line", "provenance"}


def test_a_timing_only_algorithm_loses_nothing() -> None:
    timing_only = read_text(written(ring_all_reduce(4)))
    assert list(write(timing_only, options()).losses) == []


def test_losses_name_what_goal_has_no_words_for() -> None:
    features = {
        loss.feature.partition(":")[0] for loss in write(ring_all_reduce(4), options()).losses
    }
    assert {"size", "steps", "collective", "channel"} <= features


def test_an_algorithm_with_a_lonely_send_is_refused() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, StepKind.SEND, peer=1, count=1, src_buffer=Buffer.INPUT)
    lonely = Algorithm(
        Collective(CollectiveKind.ALL_REDUCE, 2, 2), builder.build(), np.zeros(2, np.int64)
    )
    with pytest.raises(InputError, match="do not match"):
        write(lonely, options())


def test_blanks_comments_and_all_parts_of_a_line_are_read() -> None:
    algorithm = read_text(
        "// by hand\nnum_ranks 2\n/* two\nlines */\n"
        "rank 0 {\n\ta :send 8b  to 1 tag 5 cpu 2 nic 1\n\n// end\n}\n"
        "rank 1 { b: recv 8b from 0 tag 5\nc: calc 12 cpu 1\nc requires b\n}\n\n"
    )
    steps = algorithm.steps
    assert steps.kind.tolist() == [StepKind.SEND, StepKind.RECV, StepKind.COMPUTE]
    assert (steps.channel.tolist(), steps.lane.tolist()) == ([5, 5, 0], [2, -1, 1])
    assert (steps.count.tolist(), steps.duration_ns.tolist()) == ([8, 8, 0], [-1, -1, 12])
    assert steps.source_line.tolist() == [6, 10, 11]
    assert steps.data_indices.tolist() == [1]


def test_tags_that_are_no_int32_are_replaced_by_free_numbers() -> None:
    """ATLAHS writes such tags for the chunks of a message: number, channel, sequence, kind, group.

    The tags 0 and 2 of the file are kept, so the free numbers are 1 and 3.
    """
    reports: list[Diagnostic] = []
    tags = (0, 12_000_000_100, 2, 2**31, 12_000_000_100)
    sends = "".join(f"send 8b to 1 tag {tag}\n" for tag in tags)
    receives = sends.replace("send", "recv").replace("to 1", "from 0")
    text = f"num_ranks 2\nrank 0 {{\n{sends}}}\nrank 1 {{\n{receives}}}\n"
    assert read_text(text, reports).steps.channel.tolist() == 2 * [0, 3, 2, 1, 3]
    assert [(found.code, found.location.line) for found in reports] == [("large-tag", 4)]


def test_irequires_means_to_wait_for_what_the_other_waits_for() -> None:
    reports: list[Diagnostic] = []
    text = (
        "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 2\nc: calc 3\nd: calc 4\n"
        "b requires a\nc irequires b\nd irequires c\n}\n"
    )
    steps = read_text(text, reports).steps
    assert np.diff(steps.data_indptr).tolist() == [0, 1, 1, 1]
    assert steps.data_indices.tolist() == [0, 0, 0]
    assert [found.code for found in reports] == ["irequires"]


def test_the_longest_chain_of_irequires_is_read() -> None:
    """Of 1001 operations, each waits for the start of its predecessor: 1000 hops."""
    lines = "".join(f"o{number}: calc 1\n" for number in range(1001))
    waits = "".join(f"o{number} irequires o{number - 1}\n" for number in range(1, 1001))
    steps = read_text(f"num_ranks 1\nrank 0 {{\n{lines}{waits}}}\n", []).steps
    assert len(steps.data_indices) == 0


def test_crossing_irequires_are_followed_once_per_pair() -> None:
    """60 levels of two operations, which wait for the start of both of the level before."""
    lines = "root: calc 1\n" + "".join(f"a{k}: calc 1\nb{k}: calc 1\n" for k in range(60))
    waits = "a0 requires root\nb0 requires root\n" + "".join(
        f"{late}{k} irequires {early}{k - 1}\n"
        for k in range(1, 60)
        for late in "ab"
        for early in "ab"
    )
    steps = read_text(f"num_ranks 1\nrank 0 {{\n{lines}{waits}}}\n", []).steps
    assert np.diff(steps.data_indptr).tolist() == [0] + [1] * 120


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("rank 0 {\n}\n", 1, "num_ranks N was expected"),
        ("num_ranks 0\n", 1, "not in 1"),
        ("num_ranks 2\nrank 1 {\n}\n", 2, "expected rank 0"),
        ("num_ranks 1\nrank 0 {\n}\nrank 1 {\n}\n", 4, r"rank 1 is not in 0\.\.0"),
        ("num_ranks 2\nrank 0 {\n}\n", 3, "1 of 2 ranks"),
        ("num_ranks 1\nrank 0 {\ncalc 5\nsend 8 to 0\n}\n", 4, "is not a statement"),
        ("num_ranks 1\nrank 0 {\ncalc 5 // no\n}\n", 3, "is not a statement"),
        ("num_ranks 1\nrank 0 {\ncalc 5}\n", 3, "next one"),
        ("num_ranks 1\nrank 0 {\ncalc 5 tag 1\n}\n", 3, "no tag"),
        ("num_ranks 1\nrank 0 {\nrecv 8b from -1\n}\n", 3, "any rank"),
        ("num_ranks 1\nrank 0 {\nrecv 8b from 0 tag -1\n}\n", 3, "any tag"),
        ("num_ranks 1\nrank 0 {\nsend 8b to 1\n}\n", 3, "no rank of 0..0"),
        ("num_ranks 1\nrank 0 {\nsend 8b to 0 cpu 1 tag 1\n}\n", 3, "in this order"),
        ("num_ranks 1\nrank 0 {\na: calc 1\n\na: calc 2\na requires a\n}\n", 5, "occurs twice"),
        ("num_ranks 1\nrank 0 {\na: calc 1\na requires b\n}\n", 4, "label b"),
        ("num_ranks 1\nrank 0 {\ncalc: calc 1\ncalc requires calc\n}\n", 3, "keyword"),
        (
            "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}\n",
            3,
            "cycle",
        ),
        ("num_ranks 1\nrank 0 {\n}\n}\n", 4, "was expected"),
        ("num_ranks 1\n/* rank 0 {\n}\n", 2, "not closed"),
        (
            "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na irequires b\nb irequires a\n}\n",
            3,
            "irequires",
        ),
    ],
)
def test_bad_files_are_refused_with_their_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_text(text)
    place = caught.value.diagnostics[0].location
    assert (place.file, place.line) == ("x.goal", line)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(tail: bytes) -> None:
    source = Source.of_bytes("x.goal", b"num_ranks 1\nrank 0 {\n" + tail)
    source = Source(source.name, source.parts, lambda found: None)
    try:
        read(source, NoOptions())
    except InputError as error:
        assert error.diagnostics[0].location.file == "x.goal"  # noqa: PT017


def test_the_format_is_told_by_its_suffix() -> None:
    assert isinstance(WRITER.format, Format)
    assert WRITER.format.suffixes == (".goal",)
