"""depid and deps: which step ends a wait, and what becomes of nops."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_msccl.reading import dependencies

from hub_core.model import Algorithm


def _waits(algorithm: Algorithm) -> set[tuple[str, str]]:
    """Data dependencies between lanes, as source lines of parent and child."""
    steps = algorithm.steps
    children = np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr))
    crossing = steps.lane[steps.data_indices] != steps.lane[children]
    lines = steps.source_line
    return {
        (int(lines[p]), int(lines[c]))
        for p, c in zip(steps.data_indices[crossing], children[crossing], strict=True)
    }


def _disjoint(xml, *blocks: list[dict[str, object]]) -> str:
    """Thread blocks whose steps touch different memory, so that only stated dependencies exist."""
    number = iter(range(999))
    for block in blocks:
        for step in block:
            step["srcoff"] = step["dstoff"] = next(number)
    return xml.local(*blocks)


def test_wait_ends_after_the_named_step(reader, xml) -> None:
    text = _disjoint(
        xml, [xml.step("cpy"), xml.step("cpy", flag=True)], [xml.step("cpy", wait=(0, 1))]
    )
    assert _waits(reader(text)) == {(5, 8)}


def test_wait_may_name_a_later_thread_block(reader, xml) -> None:
    text = _disjoint(xml, [xml.step("cpy", wait=(1, 0))], [xml.step("cpy", flag=True)])
    algorithm = reader(text)
    assert algorithm.steps.lane.tolist() == [1, 0]
    assert _waits(algorithm) == {(7, 4)}


def test_wait_for_a_step_without_flag_ends_late_and_is_said(reader, xml) -> None:
    text = _disjoint(
        xml, [xml.step("cpy"), xml.step("cpy", flag=True)], [xml.step("cpy", wait=(0, 0))]
    )
    assert _waits(reader(text)) == {(5, 8)}
    assert reader.warnings == ["8: late-dependency"]


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        ((0, 1), "thread block 0, step 1"),
        ((0, 9), "thread block 0, step 9"),
        ((0, 2**31 - 1), "thread block 0, step 2147483647"),
    ],
)
def test_wait_that_never_ends_is_refused(reader, xml, wait: tuple[int, int], what: str) -> None:
    text = _disjoint(
        xml, [xml.step("cpy", flag=True), xml.step("cpy")], [xml.step("cpy", wait=wait)]
    )
    (found,) = reader.refusal(text)
    assert found.startswith(
        f"8: endless-wait: thread block 1, step 0 waits for {what}, which can never end"
    )


def test_wait_for_a_thread_block_that_does_not_exist_is_refused(reader, xml) -> None:
    assert reader.refusal(xml.local([xml.step("cpy", wait=(1, 0))])) == [
        "4: dangling-dependency: thread block 0, step 0: depid 1, but the rank has 1 thread blocks"
    ]


def test_depid_with_negative_deps_is_refused(reader, xml) -> None:
    text = xml.local([xml.step("cpy", flag=True)], [xml.step("cpy", wait=(0, -1))])
    assert reader.refusal(text)[0].startswith(
        "7: dangling-dependency: thread block 1, step 0: depid 0 with deps -1"
    )


def test_wait_for_an_earlier_step_of_the_own_block_is_void(reader, xml) -> None:
    text = _disjoint(xml, [xml.step("cpy", flag=True), xml.step("cpy", wait=(0, 0))])
    assert reader(text).steps.data_indices.tolist() == []


@pytest.mark.parametrize("wait", [(0, 0), (0, 1), (0, 2)])
def test_wait_for_the_own_block_that_nothing_ends_is_refused(
    reader, xml, wait: tuple[int, int]
) -> None:
    text = _disjoint(xml, [xml.step("cpy"), xml.step("cpy", wait=wait), xml.step("cpy", flag=True)])
    assert "endless-wait" in reader.refusal(text)[0]


def test_wait_of_a_step_for_itself_is_refused(reader, xml) -> None:
    text = _disjoint(xml, [xml.step("cpy"), xml.step("cpy", wait=(0, 1), flag=True)])
    assert "5: endless-wait" in reader.refusal(text)[0]


def test_nops_add_their_dependencies_to_the_next_step(reader, xml) -> None:
    waiting = [
        xml.step("nop", wait=(0, 0)),
        xml.step("nop", wait=(1, 0)),
        xml.step("cpy", wait=(2, 0)),
    ]
    text = _disjoint(xml, *([xml.step("cpy", flag=True)] for _ in range(3)), waiting)
    algorithm = reader(text)
    assert len(algorithm.steps) == 4
    assert _waits(algorithm) == {(4, 15), (7, 15), (10, 15)}
    assert reader.warnings == []


def test_positions_count_nops(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", flag=True)],
        [xml.step("nop", wait=(0, 0)), xml.step("cpy", wait=(0, 0), flag=True)],
        [xml.step("cpy", wait=(1, 1))],
    ]
    assert (8, 11) in _waits(reader(_disjoint(xml, *blocks)))


def test_step_after_a_nop_without_own_dependency_is_read_and_said(reader, xml) -> None:
    text = _disjoint(
        xml, [xml.step("cpy", flag=True)], [xml.step("nop", wait=(0, 0)), xml.step("cpy")]
    )
    assert _waits(reader(text)) == {(4, 8)}
    assert reader.warnings == ["8: unfinished-nop-chain"]


def test_nop_without_dependency_is_said(reader, xml) -> None:
    text = _disjoint(
        xml, [xml.step("cpy", flag=True)], [xml.step("nop"), xml.step("cpy", wait=(0, 0))]
    )
    reader(text)
    assert reader.warnings == ["7: nop-without-dependency"]


def test_nop_at_the_end_of_a_block_is_dropped(reader, xml) -> None:
    algorithm = reader(
        _disjoint(
            xml, [xml.step("cpy", flag=True)], [xml.step("cpy"), xml.step("nop", wait=(0, 0))]
        )
    )
    assert len(algorithm.steps) == 2
    assert _waits(algorithm) == set()


def test_wait_for_a_nop_passes_on_what_the_nop_waits_for(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", flag=True)],
        [xml.step("cpy"), xml.step("nop", wait=(0, 0), flag=True)],
        [xml.step("cpy", wait=(1, 1))],
    ]
    # The nop is over when thread block 0 is done (line 4) and so are the steps before the nop
    # (line 7).
    assert _waits(reader(_disjoint(xml, *blocks))) == {(4, 11), (7, 11)}


def test_wait_for_nops_that_wait_for_nops_is_followed_through(reader, xml) -> None:
    blocks = [
        [xml.step("cpy", flag=True)],
        [xml.step("nop", wait=(0, 0), flag=True)],
        [xml.step("nop", wait=(1, 0), flag=True)],
        [xml.step("cpy", wait=(2, 0))],
    ]
    assert _waits(reader(_disjoint(xml, *blocks))) == {(4, 13)}


def test_nops_that_wait_for_each_other_are_refused(reader, xml) -> None:
    blocks = [
        [xml.step("nop", wait=(1, 0), flag=True)],
        [xml.step("nop", wait=(0, 0), flag=True), xml.step("cpy", wait=(0, 0))],
    ]
    assert reader.refusal(_disjoint(xml, *blocks))[0].startswith(
        "4: cyclic-dependencies: thread block 0, step 0: "
    )


def test_nops_that_would_add_up_to_millions_of_dependencies_are_refused(
    reader, xml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "_MAX_FORWARDED", 10)
    chain = [xml.step("nop", wait=(0, 0), flag=True) for _ in range(20)]
    text = _disjoint(xml, [xml.step("cpy", flag=True)], chain, [xml.step("cpy", wait=(1, 19))])
    assert "too-many-dependencies" in reader.refusal(text)[0]


def test_depid_beyond_what_runtimes_store_is_said(reader, xml) -> None:
    blocks = [[xml.step("cpy", flag=True)] for _ in range(129)]
    reader(_disjoint(xml, *blocks, [xml.step("cpy", wait=(128, 0))]))
    assert "dependency-limit" in reader.warnings[0]
