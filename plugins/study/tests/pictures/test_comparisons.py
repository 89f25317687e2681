"""Pictures and pages of comparisons: labels apart, find_winners marked, names harmless."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from collhub_pictures.comparison_picture import (
    create_size_scale,
    create_value_scale,
    draw,
    draw_page,
    find_winners,
    get_look,
    place_labels,
)
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import UsageError
from hub_core.plugin_api import BandwidthComparison, BandwidthSeries

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (1 << 10, 1 << 20, 1 << 30)
RING = BandwidthSeries("ring", (1e9, 3e9, 9e9))
TREE = BandwidthSeries("tree", (2e9, 2.5e9, 3e9))
BOUND = BandwidthSeries("bound", (5e9, 9e9, 9.5e9))


def request(*series: BandwidthSeries, bound: BandwidthSeries | None = BOUND) -> BandwidthComparison:
    return BandwidthComparison("all-reduce on ring:4", sizes=SIZES, series=series, bound=bound)


def texts(content: bytes) -> list[str]:
    root = ElementTree.fromstring(content)
    return ["".join(found.itertext()) for found in root.iter(f"{SVG}text")]


def test_labels_stand_in_the_order_of_the_last_bandwidth() -> None:
    found = [text for text in texts(draw(request(TREE, RING))) if ", " in text and "GB/s" in text]
    assert found == ["bound, 9.5 GB/s", "ring, 9 GB/s", "tree, 3 GB/s"]


def test_axes_have_names_and_units() -> None:
    found = texts(draw(request(RING)))
    assert {"size of the full buffer", "bus bandwidth", "1 KiB", "1 GiB", "5 GB/s"} <= set(found)


@given(st.lists(st.floats(0, 500), min_size=1, max_size=25))
def test_no_label_stands_over_another(wanted: list[float]) -> None:
    places = place_labels(sorted(wanted), 17, 50, 50 + 17 * 25)
    assert all(two - one >= 17 - 1e-6 for one, two in itertools.pairwise(places))
    assert places[0] >= 50
    assert places[-1] <= 50 + 17 * 25 + 1e-6


def test_labels_far_apart_stand_where_they_want() -> None:
    assert place_labels([60, 100, 200], 17, 50, 400) == [60, 100, 200]


def test_labels_that_would_touch_share_the_distance() -> None:
    assert place_labels([100, 100], 20, 0, 400) == [90, 110]


def test_the_fastest_of_every_size_is_filled() -> None:
    assert find_winners([TREE, RING], 3) == ["tree", "ring", "ring"]
    content = draw(request(TREE, RING)).decode()
    assert content.count('fill="#0072b2"') == 2
    assert content.count('fill="#d55e00"') == 1


def test_42_algorithms_look_differently_without_colours_alone() -> None:
    looks = [get_look(place) for place in range(42)]
    assert len(set(looks)) == 42
    assert len({(one.colour, one.marker) for one in looks}) == 42


def test_a_gap_interrupts_the_line() -> None:
    content = draw(request(BandwidthSeries("holed", (1e9, None, 2e9)), bound=None)).decode()
    (line,) = [
        found for found in re.findall(r'class="c"[^>]* d="([^"]*)"', content) if "h" not in found
    ]
    assert (line.count("M"), line.count("L")) == (2, 0)


def test_one_without_the_largest_size_says_so() -> None:
    assert "short, not at the largest size" in texts(
        draw(request(RING, BandwidthSeries("short", (1e9, 2e9, None))))
    )


def test_a_single_size_is_drawn_in_the_middle() -> None:
    scale = create_size_scale((1024,), 0, 100)
    assert (scale.to_pixel(1024), scale.ticks) == (50, (1024,))


@pytest.mark.parametrize("value", [1.0, 1e9, 3.7e11])
def test_equal_values_have_round_ends_around_them(value: float) -> None:
    scale = create_value_scale([value, value], 0, 100)
    assert scale.minimum <= value <= scale.maximum
    assert scale.minimum < scale.maximum


def test_markup_in_names_stays_text() -> None:
    named = BandwidthSeries("<script>&\x01", (1e9, 1e9, 1e9))
    found = BandwidthComparison("<b>&\x01", sizes=SIZES, series=[named])
    assert any(text.startswith("<script>&\N{REPLACEMENT CHARACTER}") for text in texts(draw(found)))
    content = draw_page(found)
    assert b"<script>" not in content
    assert b"<b>" not in content
    assert b"\x01" not in content


def test_a_page_is_one_file_without_references_to_elsewhere() -> None:
    content = draw_page(request(TREE, RING)).decode("ascii")
    addresses = content.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"(?:href|src|url|https?:)\W", addresses) == []
    assert content.count('<td class="w">') == 3
    assert content.index("<svg ") < content.index('<th scope="row">ring</th>')
    assert '<th scope="row">bound</th><td>5 GB/s</td>' in content


def test_the_same_numbers_are_the_same_bytes() -> None:
    assert draw(request(TREE, RING)) == draw(request(TREE, RING))
    assert draw(request(TREE, RING)).isascii()


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(UsageError, match="no algorithm has a bandwidth to draw"):
        draw(request(BandwidthSeries("none", (None, None, None))))
