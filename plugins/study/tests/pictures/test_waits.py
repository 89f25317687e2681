"""Pictures of wait-for graphs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from collhub_pictures.waits import MAX_ARROWS, MAX_BOXES, draw

from hub_core.plugin_api import WaitForGraph, WaitingRanks

GRAPH = WaitForGraph(
    "late: rank 3",
    (3,),
    [
        WaitingRanks((0, 1), (2, 3), "all_reduce (2)"),
        WaitingRanks((2,), (3,), "broadcast (1)"),
    ],
)


def elements(content: bytes, tag: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(content)
    return root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def texts(content: bytes) -> list[str]:
    return [one.text or "" for one in elements(content, "text")]


def test_ranks_with_equal_waits_are_one_box_and_culprits_are_marked() -> None:
    content = draw(GRAPH)
    boxes = elements(content, "rect")
    assert [one.get("class") for one in boxes].count("c") == 1
    assert len(boxes) == 3
    assert {"rank 3", "rank 2", "ranks 0,1"} <= set(texts(content))


def test_every_wait_is_an_arrow_with_its_operation() -> None:
    content = draw(GRAPH)
    arrows = [one for one in elements(content, "path") if one.get("class") == "a"]
    assert len(arrows) == 3
    assert texts(content).count("all_reduce (2)") == 2
    assert texts(content).count("broadcast (1)") == 1


def test_culprits_are_in_the_first_column() -> None:
    content = draw(GRAPH)
    columns = {one.get("class"): float(one.get("x", "0")) for one in elements(content, "rect")}
    assert columns["c"] < columns["w"]


@pytest.mark.parametrize("culprits", [(), (0, 1)])
def test_a_cycle_is_drawn(culprits: tuple[int, ...]) -> None:
    waits = [WaitingRanks((0,), (1,), "a"), WaitingRanks((1,), (0,), "b")]
    content = draw(WaitForGraph("order", culprits, waits))
    assert len(elements(content, "rect")) == 2
    assert {"a", "b"} <= set(texts(content))


def test_an_empty_graph_is_drawn() -> None:
    assert elements(draw(WaitForGraph("none", (), ())), "rect") == []


def test_large_graphs_are_cut_with_a_note() -> None:
    waits = [WaitingRanks((rank,), (rank + 1,), f"send {rank}") for rank in range(500)]
    content = draw(WaitForGraph("late", (500,), waits))
    assert len(elements(content, "rect")) == MAX_BOXES
    assert len(elements(content, "path")) <= MAX_ARROWS + 1
    assert "437 more boxes and 437 more waits are not drawn" in texts(content)


def test_markup_in_names_is_escaped() -> None:
    waits = [WaitingRanks((0,), (1,), "<script>&\x01")]
    content = draw(WaitForGraph("<b>", (1,), waits))
    assert b"<script>" not in content
    assert "<script>&\N{REPLACEMENT CHARACTER}" in texts(content)
