"""Pictures of networks: valid, complete, the same every time, with nodes apart."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from collhub_drawing.layout import place_irregular_nodes, place_regular_nodes
from collhub_drawing.node_shapes import PAGE_WIDTH
from collhub_pictures.collapsed_groups import Collapse
from collhub_pictures.network_lines import DrawnLines, compute_line_loads, count_lines
from collhub_pictures.network_picture import MAX_NODES, draw
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.model import UsageError
from hub_core.network import Links, Topology
from hub_core.plugin_api import LinkLoad

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = (
    "line:5", "ring:6", "ring:2", "line:1", "mesh:3x4", "torus:3x4", "torus:2x3x4", "fc:5",
    "switch:5", "hypercube:4", "hypercube:3", "fat-tree:4", "dragonfly:3,2,1", "rail:2x4",
    "ring-fc-switch:3x2x2", "fc:3*switch:2*switch:3", "dgx1p", "dgx1v", "dgx1-pcie", "dgx2",
    "dgx-a100:2", "dgx-h100:2", "mi250", "mi250:2", "torus:4x4?npus=0-6,9", "mesh:2x2x2x2x2",
)  # fmt: skip


def loaded(topology: Topology, loads: list[LinkLoad], time_ns: int | None) -> ElementTree.Element:
    return ElementTree.fromstring(draw(topology, loads, time_ns))


def picture(topology: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(draw(topology))


def tooltips(root: ElementTree.Element, tag: str) -> list[str]:
    return [
        found.text or ""
        for shape in root.findall(f"{SVG}{tag}")
        for found in shape.findall(f"{SVG}title")
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_picture_holds_every_node_and_every_connection(text):
    topology = parse_topology(text)
    root = picture(topology)
    assert sorted(tooltips(root, "g")) == sorted(
        topology.node_name(node) for node in range(topology.num_nodes)
    )
    assert len(tooltips(root, "path")) == topology.num_links // 2


@pytest.mark.parametrize("text", TEXTS)
def test_picture_is_the_same_every_time(text):
    assert draw(parse_topology(text)) == draw(parse_topology(text))


@pytest.mark.parametrize("text", TEXTS)
def test_nodes_stand_apart(text):
    topology = parse_topology(text)
    places = (
        place_regular_nodes(topology) if topology.dimensions else place_irregular_nodes(topology)
    )
    apart = np.hypot(*(places[:, None, :] - places[None, :, :]).transpose(2, 0, 1))
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > 28


@pytest.mark.parametrize("text", TEXTS)
def test_nodes_stand_within_the_picture(text):
    root = picture(parse_topology(text))
    width, height = float(root.get("width")), float(root.get("height"))
    for group in root.findall(f"{SVG}g"):
        label = group.find(f"{SVG}text")
        assert 0 < float(label.get("x")) < width
        assert 0 < float(label.get("y")) < height


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]),
        max_size=20,
    )
)
def test_every_network_can_be_drawn(pairs):
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    topology = Links.uniform(ends[:, 0], ends[:, 1], 1e9, 1e-6).topology("random", 5, 8)
    drawn = tooltips(picture(topology), "path")
    both = {
        pair
        for pair in pairs
        if pair[::-1] in pairs and pairs.count(pair) == pairs.count(pair[::-1])
    }
    assert len(drawn) == len(set(pairs)) - len(both) // 2


@given(st.lists(st.text(max_size=30), min_size=3, max_size=3, unique=True), st.text(max_size=200))
def test_any_name_gives_valid_xml(names, title):
    ends = np.asarray([0, 1]), np.asarray([2, 2])
    root = picture(Links.uniform(*ends, 1e9, 1e-6).topology(title, 2, 3, node_names=tuple(names)))
    assert len(tooltips(root, "g")) == 3


def test_markup_in_a_name_is_text():
    ends = np.asarray([0, 1]), np.asarray([1, 0])
    names = ("<script>&amp;", "]]>\x00")
    content = draw(Links.uniform(*ends, 1e9, 0.0).topology("<!DOCTYPE x>", 2, 2, node_names=names))
    assert b"<script" not in content
    assert b"<!DOCTYPE" not in content
    assert sorted(tooltips(ElementTree.fromstring(content), "g")) == ["<script>&amp;", "]]>\ufffd"]


def labels(root: ElementTree.Element) -> list[str]:
    return [group.find(f"{SVG}text").text or "" for group in root.findall(f"{SVG}g")]


def test_labels_of_a_fat_tree_are_whole():
    assert "aggregation 3.1" in labels(picture(parse_topology("fat-tree:4")))


def test_very_long_name_keeps_its_ends():
    ends = np.asarray([0, 1]), np.asarray([2, 2])
    names = ("a", "b", "a-very-long-name-of-a-switch-0.17")
    root = picture(Links.uniform(*ends, 1e9, 0.0).topology("long", 2, 3, node_names=names))
    assert "a-very-long-name-of\N{HORIZONTAL ELLIPSIS}0.17" in labels(root)


def shapes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of the shape of every node."""
    found = []
    for group in root.findall(f"{SVG}g"):
        circle, rect = group.find(f"{SVG}circle"), group.find(f"{SVG}rect")
        if circle is not None:
            x, y, radius = (float(circle.get(name)) for name in ("cx", "cy", "r"))
            found.append((x - radius, y - radius, x + radius, y + radius))
        else:
            x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_shapes_of_nodes_do_not_touch(text):
    boxes = np.asarray(shapes(picture(parse_topology(text))))
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    apart = np.any((low >= high.swapaxes(0, 1)) | (high <= low.swapaxes(0, 1)), axis=2)
    np.fill_diagonal(apart, True)
    assert apart.all()


@pytest.mark.parametrize("text", ["mesh:3x3", "ring:6", "torus:3x3x3"])
def test_long_names_of_npus_are_whole_and_apart(text):
    base = parse_topology(text)
    names = tuple(f"machine 3, GPU {npu}" for npu in range(base.num_npus))
    root = picture(dataclasses.replace(base, node_names=names))
    assert sorted(labels(root)) == sorted(names)
    boxes = np.asarray(shapes(root))
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    apart = np.any((low >= high.swapaxes(0, 1)) | (high <= low.swapaxes(0, 1)), axis=2)
    np.fill_diagonal(apart, True)
    assert apart.all()


def test_lines_around_a_torus_run_clear_of_the_nodes_beside_them():
    topology = parse_topology("torus:4x4x4")
    places = place_regular_nodes(topology)
    lines = DrawnLines.of(topology, places)
    for row in np.flatnonzero(lines.bend).tolist():
        ends = (int(lines.source[row]), int(lines.destination[row]))
        start, end = places[list(ends)]
        first, last = lines.controls[row]
        way = np.linspace(0, 1, 101)[:, None]
        rest = 1 - way
        course = (
            rest**3 * start + 3 * rest**2 * way * first + 3 * rest * way**2 * last + way**3 * end
        )
        distance = np.hypot(*np.moveaxis(course[:, None] - places[None], 2, 0)).min(axis=0)
        distance[list(ends)] = np.inf
        # The radius of a node is 14.
        assert distance.min() > 14


def test_many_lines_are_thin():
    def measure_widest(text: str) -> float:
        paths = picture(parse_topology(text)).findall(f"{SVG}path")
        return max(float(path.get("stroke-width")) for path in paths)

    assert measure_widest("ring:8") == 3.6
    assert measure_widest("torus:4x4x4") < 2
    assert measure_widest("fc:64") == 1.6


def test_lines_tell_bandwidth_by_width_and_class_by_colour():
    root = picture(parse_topology("dgx1v"))
    lines = [path for path in root.findall(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    styles = {
        (path.find(f"{SVG}title").text.split(": ")[1], path.get("stroke"), path.get("stroke-width"))
        for path in lines
    }
    assert sorted((text, float(width)) for text, _, width in styles) == [
        ("25 GB/s, 500 ns", 2.2),
        ("50 GB/s, 500 ns", 3.6),
    ]
    assert len({colour for _, colour, _ in styles}) == 2


def test_legend_counts_the_links_of_every_class():
    texts = [found.text for found in picture(parse_topology("dgx1v")).findall(f"{SVG}text")]
    assert texts == ["dgx1v: 8 NPUs", "50 GB/s, 500 ns: 16 links", "25 GB/s, 500 ns: 16 links"]


def test_many_classes_share_the_last_line_of_the_legend():
    ends = np.arange(10), (np.arange(10) + 1) % 10
    topology = Links(*ends, np.arange(1.0, 11.0) * 1e9, np.zeros(10)).topology("classes", 10, 10)
    texts = [found.text for found in picture(topology).findall(f"{SVG}text")]
    assert texts[-1] == "slower classes: 3 links"


def test_one_way_link_has_an_arrow():
    ends = np.asarray([0, 1, 2]), np.asarray([1, 2, 0])
    content = draw(Links.uniform(*ends, 1e9, 0.0).topology("one way", 3, 3)).decode()
    assert content.count('marker-end="url(#arrow)"') == 3
    assert "0 -&gt; 1: 1 GB/s, 0 ns" in content


def test_directions_that_differ_are_two_curves():
    ends = np.asarray([0, 1]), np.asarray([1, 0])
    topology = Links(*ends, np.asarray([1e9, 2e9]), np.zeros(2)).topology("unequal", 2, 2)
    lines = DrawnLines.of(topology, place_irregular_nodes(topology))
    assert lines.is_arrow.tolist() == [True, True]
    assert not np.allclose(lines.controls[0], lines.controls[1])


def test_line_goes_around_a_node_that_stands_on_its_way():
    topology = parse_topology("ring:4*line:2")
    lines = DrawnLines.of(topology, place_regular_nodes(topology))
    ends = zip(lines.source.tolist(), lines.destination.tolist(), strict=True)
    bent = {pair for pair, bend in zip(ends, lines.bend.tolist(), strict=True) if bend}
    assert bent == {(0, 3), (4, 7)}


def test_network_that_is_too_large_names_the_cure():
    with pytest.raises(
        UsageError, match=r"more than 4096 in one picture; draw a part of it, as in \?npus=0-63"
    ):
        draw(parse_topology(f"ring:{MAX_NODES + 1}"))
    with pytest.raises(UsageError, match="lines are more than"):
        draw(parse_topology("fc:300"))


def test_picture_is_plain_ascii_without_references_to_elsewhere():
    content = draw(parse_topology("fat-tree:4"))
    content.decode("ascii")
    assert re.findall(rb"(?:href|src|url)\W", content.replace(b"url(#arrow)", b"")) == []


def test_colour_tells_how_busy_the_busier_way_of_a_line_was():
    loads = [LinkLoad(0, 1, 100, 10), LinkLoad(1, 0, 300, 90), LinkLoad(1, 2, 100, 30)]
    root = loaded(parse_topology("ring:4"), loads, 100)
    lines = {}
    for path in root.findall(f"{SVG}path"):
        if (title := path.find(f"{SVG}title")) is not None:
            lines[title.text.partition(": ")[0]] = (
                title.text.partition("; ")[2],
                path.get("stroke"),
            )
    grey = "#bbbbbb"
    dark = lines["0 <-> 1"][1]
    assert lines["0 <-> 1"][0] == "100 B, busy 10 % / 300 B, busy 90 %"
    assert lines["1 <-> 2"][0] == "100 B, busy 30 % / unused"
    assert lines["2 <-> 3"] == ("unused / unused", grey)
    assert len({dark, lines["1 <-> 2"][1], grey}) == 3
    texts = [found.text for found in root.findall(f"{SVG}text")]
    assert texts[1:] == [
        "busy 75 to 100 % of 100 ns: 1 line",
        "busy 25 to 50 % of 100 ns: 1 line",
        "unused: 2 lines",
    ]


def test_loads_of_a_run_that_never_ends_are_shares_of_the_busiest_link():
    root = loaded(parse_topology("ring:4"), [LinkLoad(0, 1, 1, 50), LinkLoad(1, 2, 1, 10)], None)
    texts = [found.text for found in root.findall(f"{SVG}text")]
    assert texts[1] == "busy 75 to 100 % of the busiest link's time: 1 line"


def test_load_of_a_link_that_the_network_lacks_is_refused():
    with pytest.raises(UsageError, match="ring:4 has no link 0 -> 2, which has a load"):
        draw(parse_topology("ring:4"), [LinkLoad(0, 2, 1, 1)], 1)


LARGE = (
    "dgx-h100:4", "dgx-a100:4", "dgx2:2", "mi300x:4", "rail:32x8", "fat-tree:8", "dgx-h100:32",
    "leaf-spine:8,16,8", "leaf-spine:8,8,4", "dragonfly:4,2,2", "dragonfly:8,4,4", "rail:4x8",
    "dgx-h100:4?network=leaf-spine:4,8,4", "dgx-a100:4?network=fat-tree:8", "fat-tree:16",
    "mesh:32x32", "torus:8x8", "ring:64",
)  # fmt: skip


def label_boxes(root: ElementTree.Element) -> np.ndarray:
    """Left, top, right and bottom of every label in pixels, by the measure_widest usual sans-serif."""
    found = []
    for text in root.iter(f"{SVG}text"):
        x, y, width = float(text.get("x")), float(text.get("y")), 6.2 * len(text.text or "")
        is_centred = text in [group.find(f"{SVG}text") for group in root.findall(f"{SVG}g")]
        left = x - width / 2 if is_centred else x
        found.append((left, y - 9, left + width, y + 3))
    return np.asarray(found)


@pytest.mark.parametrize("text", LARGE)
def test_labels_do_not_overlap_and_the_picture_fits_a_page(text):
    root = picture(parse_topology(text))
    assert float(root.get("width")) <= PAGE_WIDTH
    view_width, view_height = map(float, root.get("viewBox").split()[2:])
    boxes = label_boxes(root)
    assert boxes[:, 0].min() >= 0
    assert boxes[:, 2].max() <= view_width
    assert boxes[:, 3].max() <= view_height
    for number, box in enumerate(boxes):
        others = np.delete(boxes, number, axis=0)
        beside = (others[:, 0] >= box[2]) | (others[:, 2] <= box[0])
        above = (others[:, 1] >= box[3]) | (others[:, 3] <= box[1])
        assert (beside | above).all(), labels(root)[number - 1]
    # Names are whole.
    assert not any("\N{HORIZONTAL ELLIPSIS}" in name for name in labels(root))


def test_equal_machines_are_one_box_with_their_number_next_to_the_first():
    found = labels(picture(parse_topology("rail:32x8")))
    others = "node 1-31 (31 x 8 NPUs)"
    assert sorted(found) == sorted(
        [*map(str, range(8)), *(f"rail {k}" for k in range(8)), "nvswitch 0", others]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dgx-h100:2", {"node 0 (8 NPUs)", "node 1 (8 NPUs)", "network"}),
        ("fat-tree:4", {f"pod {k} (4 NPUs)" for k in range(4)} | {f"core {k}" for k in range(4)}),
        ("rail:32x8", {"node 0-31 (32 x 8 NPUs)", "rail 0-7 (8 switches)"}),
    ],
)
def test_groups_are_collapsed_on_request(text, expected):
    root = ElementTree.fromstring(draw(parse_topology(text), collapse=Collapse.ALWAYS))
    assert set(labels(root)) == expected
    assert "collapsed" in "".join(root.itertext())


def test_nothing_is_collapsed_on_request():
    topology = parse_topology("rail:32x8")
    root = ElementTree.fromstring(draw(topology, collapse=Collapse.NEVER))
    assert len(labels(root)) == topology.num_nodes
    assert float(root.get("width")) <= PAGE_WIDTH


def test_links_of_collapsed_groups_add_up():
    root = ElementTree.fromstring(draw(parse_topology("dgx-h100:2"), collapse=Collapse.ALWAYS))
    assert sorted(tooltips(root, "path")) == [
        f"node {k} (8 NPUs) <-> network: 400 GB/s, 500 ns" for k in range(2)
    ]


def test_loads_of_collapsed_groups_are_those_of_their_links_together():
    topology = parse_topology("dgx-h100:2")
    network = topology.num_nodes - 1
    loads = [LinkLoad(0, network, 100, 10), LinkLoad(1, network, 50, 40), LinkLoad(0, 16, 7, 7)]
    root = ElementTree.fromstring(draw(topology, loads, 100, collapse=Collapse.ALWAYS))
    assert "150 B, busy 40 % / unused" in tooltips(root, "path")[0]


def test_a_network_without_groups_has_nothing_to_collapse():
    with pytest.raises(UsageError, match="names no groups"):
        draw(parse_topology("mesh:4x4"), collapse=Collapse.ALWAYS)


def test_a_switch_of_one_machine_is_below_and_the_network_above():
    topology = parse_topology("dgx-h100:4")
    places = place_irregular_nodes(topology)
    nvswitch, network, npu = places[32:36, 1], places[36, 1], places[:32, 1]
    assert nvswitch.min() > npu.max() > npu.min() > network


@pytest.mark.parametrize("text", ["ring:2", "ring:3+ring:3", "dgx-h100:2", "mesh:3x3"])
def test_lines_are_counted_without_their_shapes(text: str) -> None:
    topology = parse_topology(text)
    places = np.random.default_rng(1).random((topology.num_nodes, 2)) * 1000
    assert count_lines(topology) == len(DrawnLines.of(topology, places))


def test_two_linked_npus_are_as_far_apart_as_three() -> None:
    pair, three = (place_irregular_nodes(parse_topology(text)) for text in ("ring:2", "ring:3"))
    # The first NPU is at the top of a circle of the same radius.
    np.testing.assert_allclose(pair - pair.mean(axis=0), [[0.0, -110.0], [0.0, 110.0]], atol=1e-9)
    np.testing.assert_allclose(three[0] - three.mean(axis=0), [0.0, -110.0], atol=1e-9)


def test_coinciding_lines_of_several_planes_have_the_loads_of_all_planes() -> None:
    network = parse_topology("ring:3+ring:3")
    lines = DrawnLines.of(network, np.array([[0.0, 0.0], [100.0, 0.0], [50.0, 80.0]]))
    loads = [LinkLoad(0, 1, 10, 5), LinkLoad(0, 1, 20, 9)]
    shares = [load.busy for load in compute_line_loads(network, lines, loads, 10)]
    ends = zip(lines.source.tolist(), lines.destination.tolist(), strict=True)
    assert shares == [0.9 if pair == (0, 1) else None for pair in ends]
    assert shares.count(0.9) == network.num_planes == 2
