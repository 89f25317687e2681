"""The root, which files do not name, is inferred where the file leaves one choice."""

from __future__ import annotations

import pytest

from hub_core.model import UsageError


def _chain(
    xml,
    ranks: list[int],
    first: dict[str, object],
    middle: dict[str, object],
    last: dict[str, object],
    **header,
) -> str:
    """Messages along `ranks`: the first rank sends, the last one receives."""
    gpus = []
    for rank in range(len(ranks)):
        place = ranks.index(rank)
        before = ranks[place - 1] if place else -1
        after = ranks[place + 1] if place + 1 < len(ranks) else -1
        step = first if not place else last if after == -1 else middle
        gpus.append(xml.gpu(xml.block(step, send=after, recv=before)))
    return xml.algo(*gpus, nchunksperloop=len(ranks), **header)


@pytest.mark.parametrize("ranks", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
@pytest.mark.parametrize("modes", [("0", "1"), ("1", "0")])
def test_broadcast_starts_where_input_is_read(
    reader, xml, ranks: list[int], modes: tuple[str, str]
) -> None:
    steps = (xml.step("s", "i0"), xml.step("rcs", dst="o0"), xml.step("r", dst="o0"))
    text = _chain(xml, ranks, *steps, coll="broadcast", inplace=modes[0], outofplace=modes[1])
    assert reader(text).collective.root == ranks[0]


def test_broadcast_around_a_full_ring_is_decided_by_who_reads_its_input(reader, xml) -> None:
    gpus = [
        xml.gpu(xml.block(xml.step("r", dst="o0"), xml.step("s", "o0"), send=1, recv=2)),
        xml.gpu(xml.block(xml.step("s", "i0"), xml.step("r", dst="o0"), send=2, recv=0)),
        xml.gpu(xml.block(xml.step("rcs", dst="o0"), send=0, recv=1)),
    ]
    assert reader(xml.algo(*gpus, coll="broadcast")).collective.root == 1


@pytest.mark.parametrize("ranks", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
@pytest.mark.parametrize("modes", [("0", "1"), ("1", "0")])
def test_reduce_ends_where_all_messages_lead(
    reader, xml, ranks: list[int], modes: tuple[str, str]
) -> None:
    steps = (xml.step("s", "i0"), xml.step("rrs", "i0"), xml.step("rrc", "i0", "o0"))
    text = _chain(xml, ranks, *steps, coll="reduce", inplace=modes[0], outofplace=modes[1])
    assert reader(text).collective.root == ranks[-1]


def test_a_reduce_in_a_circle_ends_where_output_is_written(reader, xml) -> None:
    gpus = [
        xml.gpu(xml.block(xml.step("s", "i0"), xml.step("r", dst="s0"), send=1, recv=1), s=1),
        xml.gpu(xml.block(xml.step("s", "i0"), xml.step("rrc", "i0", "o0"), send=0, recv=0), s=1),
    ]
    text = xml.algo(*gpus, coll="reduce", nchunksperloop=2)
    assert reader(text).collective.root == 1
    # In place, another rank may keep partial sums in its output: that is no evidence.
    with pytest.raises(UsageError, match="ranks 0, 1 can be it"):
        reader(text.replace('inplace="0" outofplace="1"', 'inplace="1" outofplace="0"'))


def test_gather_and_scatter_sizes_follow_the_root(reader, xml) -> None:
    one, other = (
        xml.gpu(xml.block(xml.step("s", "i0"), send=1)),
        xml.gpu(xml.block(xml.step("r", dst="o0"), recv=0)),
    )
    gather = reader(xml.algo(one, other, coll="gather")).collective
    scatter = reader(xml.algo(one, other, coll="scatter")).collective
    assert (gather.root, gather.output_units().tolist()) == (1, [0, 2])
    assert (scatter.root, scatter.input_units().tolist()) == (0, [2, 0])


def test_undecided_root_asks_for_the_option(reader, xml) -> None:
    exchange = [
        xml.gpu(xml.block(xml.step("s", "i0"), xml.step("r", dst="o0"), send=1, recv=1)),
        xml.gpu(xml.block(xml.step("s", "i0"), xml.step("r", dst="o0"), send=0, recv=0)),
    ]
    with pytest.raises(
        UsageError, match=r"broadcast, and ranks 0, 1 can be it; specify it: -O root=RANK"
    ):
        reader(xml.algo(*exchange, coll="broadcast"))
    assert reader(xml.algo(*exchange, coll="broadcast"), root=1).collective.root == 1


def test_no_possible_root_asks_for_the_option(reader, xml) -> None:
    with pytest.raises(UsageError, match="no rank can be it"):
        reader(xml.algo(xml.gpu(), xml.gpu(), coll="reduce"))


@pytest.mark.parametrize(
    ("coll", "root", "message"),
    [("broadcast", 2, "2 is not a rank"), ("allreduce", 0, "has no root")],
)
def test_root_that_has_no_meaning_is_refused(
    reader, xml, coll: str, root: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        reader(xml.algo(xml.gpu(), xml.gpu(), coll=coll), root=root)


def test_a_single_rank_is_its_own_root(reader, xml) -> None:
    assert reader(xml.local([xml.step("cpy")], coll="broadcast")).collective.root == 0
