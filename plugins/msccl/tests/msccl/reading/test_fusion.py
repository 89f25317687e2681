"""Chains of `re` that runtimes execute as one transfer (section 7 of the format reference)."""

from __future__ import annotations

import numpy as np

from hub_core.model import Algorithm


def _counts(algorithm: Algorithm) -> list[int]:
    return algorithm.steps.count.tolist()


def test_last_count_of_a_chain_holds_for_all(reader, xml) -> None:
    text = xml.local(
        [xml.step("re", "s0", cnt=1), xml.step("re", "s1", cnt=3), xml.step("re", "s4", cnt=2)]
    )
    assert _counts(reader(text)) == [2, 2, 2]


def test_hasdep_ends_a_chain(reader, xml) -> None:
    text = xml.local([xml.step("re", "s0", cnt=1, flag=True), xml.step("re", "s1", cnt=3)])
    assert _counts(reader(text)) == [1, 3]


def test_dependency_begins_a_new_chain(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", flag=True)],
        [xml.step("re", "s0", cnt=1), xml.step("re", "s1", cnt=3, wait=(0, 0))],
    ]
    assert _counts(reader(xml.local(*blocks)))[1:] == [1, 3]


def test_other_destination_or_source_buffer_begins_a_new_chain(reader, xml) -> None:
    steps = [
        xml.step("re", "s0", "o0", cnt=1),
        xml.step("re", "s1", "o1", cnt=2),
        xml.step("re", "s1", "s1", cnt=3),
        xml.step("re", "i1", "s1", cnt=4),
    ]
    assert _counts(reader(xml.local(steps))) == [1, 2, 3, 4]


def test_step_in_between_ends_a_chain(reader, xml) -> None:
    steps = [xml.step("re", "s0", cnt=1), xml.step("cpy", "i7", "o7"), xml.step("re", "s1", cnt=3)]
    assert _counts(reader(xml.local(steps))) == [1, 1, 3]


def test_chains_do_not_cross_thread_blocks(reader, xml) -> None:
    assert _counts(
        reader(xml.local([xml.step("re", "s0", cnt=1)], [xml.step("re", "s1", cnt=3)]))
    ) == [1, 3]


def test_the_seventeenth_reduction_of_a_block_begins_a_new_chain(reader, xml) -> None:
    steps = [xml.step("re", "s0", cnt=1) for _ in range(16)] + [
        xml.step("re", "s0", cnt=2) for _ in range(2)
    ]
    assert _counts(reader(xml.local(steps))) == [1] * 16 + [2] * 2


def test_the_count_towards_sixteen_is_per_block_and_never_reset(reader, xml) -> None:
    flagged = [xml.step("re", "s0", cnt=1, flag=True) for _ in range(8)]
    chain = [xml.step("re", "s0", cnt=1) for _ in range(8)] + [xml.step("re", "s0", cnt=2)]
    algorithm = reader(xml.local(flagged, flagged + chain))
    assert _counts(algorithm) == [1] * 8 + [1] * 16 + [2]


def test_later_chain_of_more_than_sixteen_is_said(reader, xml) -> None:
    steps = [xml.step("re", "s0", flag=True) for _ in range(16)] + [
        xml.step("re", "s0") for _ in range(17)
    ]
    reader(xml.local(steps))
    assert reader.warnings == ["20: reduction-chain"]


def test_later_chain_of_sixteen_is_stored(reader, xml) -> None:
    flagged = [xml.step("re", "s0", flag=True) for _ in range(16)]
    reader(xml.local(flagged + [xml.step("re", "s0") for _ in range(16)]))
    assert reader.warnings == []


def test_nop_in_a_chain_passes_its_wait_to_the_step_after_the_chain(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", "i7", "o7", flag=True)],
        [
            xml.step("re", "s0"),
            xml.step("nop", wait=(0, 0)),
            xml.step("re", "s1"),
            xml.step("cpy", "i6", "o6", wait=(0, 0)),
        ],
    ]
    steps = reader(xml.local(*blocks)).steps
    children = np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr))
    crossing = steps.lane[steps.data_indices] != steps.lane[children]
    assert steps.source_line[children[crossing]].tolist() == [10]
    assert reader.warnings == ["7: nop-in-reduction"]


def test_flag_of_a_chain_does_not_count_the_nop_inside(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", "i7", "o7", flag=True)],
        [
            xml.step("re", "s0"),
            xml.step("nop", wait=(0, 0)),
            xml.step("re", "s1", flag=True),
            xml.step("cpy", "i6", "o6"),
        ],
        [xml.step("cpy", "i5", "o5", wait=(1, 2))],
    ]
    # The pair raises its flag to 1, not to its document position 2, so that nothing ever ends this
    # wait.
    assert "endless-wait" in reader.refusal(xml.local(*blocks))[0]
