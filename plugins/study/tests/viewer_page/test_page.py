"""The viewer's page in a browser: drawing, hovering, search, keys, links to a view, hostile data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_samples import ColumnLines, random_run, ring_run, view_index, write_page

if TYPE_CHECKING:
    from conftest import Browser

SEND, RECEIVE, WAIT, PAPER = (0, 114, 178), (86, 180, 233), (208, 208, 208), (255, 255, 255)


@pytest.fixture(scope="module")
def ring_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns = ColumnLines()
    index = view_index(ring_run(columns), title="Ring")
    return write_page(tmp_path_factory.mktemp("pages") / "ring.html", index, columns)


def select(browser: Browser, **values: int | None) -> None:
    browser.run("collhubView.page.state.update(JSON.parse(arguments[0]))", json.dumps(values))


def test_steps_have_the_colour_of_their_class_at_their_time(
    browser: Browser, ring_page: Path
) -> None:
    browser.open(ring_page)
    x, y = browser.step_middle(0)
    # The upper edge of a step contains no text.
    assert browser.pixel(x, y - 10) == SEND
    first_receive, first_wait = 4, 3
    x, y = browser.step_middle(first_receive)
    assert browser.pixel(x, y - 10) == RECEIVE
    x, y = browser.step_middle(first_wait)
    colours = {browser.pixel(x + dx, y) for dx in range(-8, 9)}
    assert WAIT in colours
    assert len(colours) > 1, "waiting has diagonal lines"
    # Rank 0 sends nothing while its receive waits.
    x, y = browser.step_middle(0)
    assert browser.pixel(browser.step_middle(first_wait)[0], y) == PAPER


@pytest.mark.parametrize("lanes", ["pixels", "pyramid"])
def test_wide_views_show_the_same_colours(browser: Browser, tmp_path: Path, lanes: str) -> None:
    columns = ColumnLines()
    run = ring_run(columns, ranks=48, message_ns=900)
    page = write_page(tmp_path / "wide.html", view_index(run), columns)
    browser.open(page)
    browser.run("collhubView.timeline.laneHeight = 12")
    if lanes == "pixels":
        # A window of 2 % of the run is finer than the bins; the limit on rectangles forces pixels.
        browser.run("collhubView.timeline.rectangleLimit = 0")
        browser.run("collhubView.page.state.update({from: 0, to: collhubView.page.state.end / 50})")
    else:
        browser.run("collhubView.timeline.rectangleLimit = 0")
    browser.run("collhubView.timeline.drawNow()")
    assert browser.run("return collhubView.timeline.methods") == [lanes]
    x, y = browser.step_middle(0)
    assert browser.pixel(x, y) == SEND
    x, y = browser.step_middle(48)
    assert browser.pixel(x, y) == RECEIVE


def test_hovering_a_send_states_its_message_and_connects_the_receive(
    browser: Browser, ring_page: Path
) -> None:
    browser.open(ring_page)
    browser.pointer("pointermove", *browser.step_middle(1))
    text = browser.run("return document.querySelector('.tooltip').innerText")
    for part in ("send → rank 1", "Start: 1.2 µs", "Duration: 1 µs", "Bytes: 64 KiB", "65.54 GB/s"):
        assert part in text
    middle = browser.run(
        """const t = collhubView.timeline, a = t.stepBox(0, 1), b = t.stepBox(0, arguments[0]);
        const x = (a.x + a.width / 2 + b.x + b.width) / 2, y = (a.y + a.height + b.y) / 2 ;
        const image = t.overlay.getContext("2d").getImageData(x - 8, y - 8, 16, 16).data;
        return image.some((value) => value > 0)""",
        browser.run("return collhubView.page.runs[0].details.partner[1]"),
    )
    assert middle, "a line connects the message's two ends"


def test_hovering_a_wait_names_the_awaited_rank(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page)
    browser.pointer("pointermove", *browser.step_middle(3))
    text = browser.run("return document.querySelector('.tooltip').innerText")
    assert "waits for rank 3" in text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("rank 2", {"rank": 2, "step": None}),
        ("step 1", {"step": 1, "rank": 0}),
        ("1 > 2", {"step": 9, "rank": 1}),
        ("chunk 3", {"chunk": 3}),
        ("wait", {"step": 3}),
    ],
)
def test_search_selects(
    browser: Browser, ring_page: Path, query: str, expected: dict[str, int | None]
) -> None:
    browser.open(ring_page)
    values = browser.run(
        """const field = document.getElementById("search");
        field.value = arguments[0];
        field.dispatchEvent(new Event("input"));
        field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
        return collhubView.page.state.values""",
        query,
    )
    assert {name: values[name] for name in expected} == expected


def test_search_without_match_says_so(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page)
    browser.run(
        """const field = document.getElementById("search");
        field.value = "rank 99"; field.dispatchEvent(new Event("input"))"""
    )
    assert browser.run("return document.getElementById('matches').innerText") == "No match"


def test_zoom_to_a_step_and_to_one_nanosecond(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page)
    select(browser, run=0, step=2)
    browser.press("f")
    window = browser.run("return collhubView.page.state.values")
    assert window["from"] < 2_300_000 < 3_300_000 < window["to"] < 10_000_000
    for _ in range(14):
        browser.press("+")
    width = browser.run("const v = collhubView.page.state.values; return v.to - v.from")
    assert width <= 1000
    browser.press("0")
    assert browser.run("return collhubView.page.state.values.to") == 3_300_000


def test_following_a_chunk_shows_its_route_from_rank_to_rank(
    browser: Browser, ring_page: Path
) -> None:
    browser.open(ring_page)
    select(browser, run=0, step=0)
    browser.press("c")
    route = browser.run("return [...document.querySelectorAll('.route li')].map(e => e.innerText)")
    assert [line.split(": ")[1] for line in route if "send" in line] == [
        "rank 0 send → rank 1",
        "rank 1 send → rank 2",
        "rank 2 send → rank 3",
    ]
    # Steps that do not carry the chunk are covered by a veil; the steps of the route are not.
    alpha = browser.run(
        """const t = collhubView.timeline, context = t.overlay.getContext("2d");
        return [0, 1].map((step) => {
          const b = t.stepBox(0, step);
          return [...context.getImageData(b.x + 6, b.y + 4, 1, 1).data];
        })"""
    )
    assert tuple(alpha[0][:3]) == SEND
    assert tuple(alpha[1][:3]) == PAPER


def test_two_runs_share_the_time_axis_and_their_differences_are_marked(
    browser: Browser, tmp_path: Path
) -> None:
    columns = ColumnLines()
    fast = ring_run(columns, name="fast")
    slow = ring_run(columns, message_ns=2000, name="slow")
    slow["steps"]["bytes"] = columns.add([65536] + [0] * (slow["steps"]["count"] - 1))
    browser.open(write_page(tmp_path / "two.html", view_index(fast, slow), columns))
    first, second = (
        browser.run("return collhubView.timeline.stepBox(arguments[0], 0)", run) for run in (0, 1)
    )
    assert first["x"] == pytest.approx(second["x"])
    assert first["y"] < second["y"]
    assert second["width"] == pytest.approx(2 * first["width"], rel=1e-3)
    notes = browser.run("return collhubView.timeline.runNotes")
    assert notes[1] == ("ends 3 µs later, +90.9 %; 23 steps only in this run, 23 only in the first")
    assert browser.run("return collhubView.timeline.unmatched[1][0]") == 0
    assert browser.run("return collhubView.timeline.unmatched[1][1]") == 1


def test_the_address_restores_and_records_the_view(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page, "#rank=3&t=1.5us&from=1us&to=2us")
    values = browser.run("return collhubView.page.state.values")
    assert (values["rank"], values["cursor"], values["from"], values["to"]) == (
        3,
        1_500_000,
        1_000_000,
        2_000_000,
    )
    assert browser.run("return collhubView.page.state.toAddress()") == (
        "rank=3&t=1500ns&from=1000ns&to=2000ns"
    )
    browser.open(ring_page, "#rank=77&step=999999&t=soon&from=5us&to=1us")
    values = browser.run("return collhubView.page.state.values")
    assert (values["rank"], values["step"], values["cursor"]) == (None, None, None)


def test_help_lists_the_keys_and_dark_mode_changes_the_paper(
    browser: Browser, ring_page: Path
) -> None:
    browser.open(ring_page)
    browser.press("?")
    assert "Follow the chunk" in browser.run("return document.getElementById('help').innerText")
    browser.press("?")
    assert not browser.run("return document.getElementById('help').open")
    browser.press("t")
    x, y = browser.step_middle(0)
    assert browser.pixel(browser.step_middle(3)[0], y) == (21, 24, 28)
    assert browser.pixel(x, y - 10) == SEND


def test_a_view_is_saved_as_svg_with_the_steps_as_shapes(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page)
    svg = browser.run("return collhubView.timeline.svgText()")
    assert svg.startswith("<svg ")
    assert svg.count('fill="#0072b2"') >= 12
    assert ">receive</text>" in svg, "the legend"
    kind = browser.run(
        "return new DOMParser().parseFromString(arguments[0], 'image/svg+xml')"
        ".documentElement.nodeName",
        svg,
    )
    assert kind == "svg"


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_the_buttons_save_the_view_as_a_file(browser: Browser, ring_page: Path, kind: str) -> None:
    browser.errors()
    browser.open(ring_page)
    name, size, file_type = browser.driver.execute_async_script(
        """const [kind, done] = arguments;
        const create = URL.createObjectURL.bind(URL);
        let saved = null;
        URL.createObjectURL = (blob) => create(saved = blob);
        HTMLAnchorElement.prototype.click = function () {
          done([this.download, saved.size, saved.type]);
        };
        [...document.querySelectorAll(".tools button")].find(b => b.innerText === kind).click();""",
        kind,
    )
    assert name == f"ranks-over-time.{kind.lower()}"
    assert file_type == {"SVG": "image/svg+xml", "PNG": "image/png"}[kind]
    assert size > 1000
    assert browser.errors() == []


def test_printing_uses_the_light_theme(browser: Browser, ring_page: Path) -> None:
    browser.open(ring_page)
    browser.press("t")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"


def test_hostile_names_are_shown_as_text_and_no_request_leaves_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    attack = "</script><img src='http://example.invalid/x' onerror='window.attacked=1'>\u202e\x00&"
    columns = ColumnLines()
    run = ring_run(columns, name=attack)
    run["rank_names"] = [attack] * 4
    run["lanes"]["names"] = [attack, attack]
    run["kinds"][0]["name"] = attack
    run["facts"] = [[attack, attack]]
    run["chunks"]["names"] = [attack] * 4
    run["links"]["names"] = [attack] * 4
    run["critical_path"]["entries"][0]["text"] = attack
    index = view_index(run, ring_run(columns), title=attack, notes=[attack])
    index["files"] = [{"name": attack, "text": attack}]
    browser.errors()
    browser.open(write_page(tmp_path / "hostile.html", index, columns))
    select(browser, run=0, step=0, chunk=0)
    browser.pointer("pointermove", *browser.step_middle(0))
    assert browser.run("return document.images.length") == 0
    assert browser.run("return window.attacked ?? null") is None
    assert attack.replace("\x00", "") in browser.run("return document.body.textContent").replace(
        "\x00", ""
    )
    svg = browser.run("return collhubView.timeline.svgText()")
    assert "<img" not in svg
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.errors() == []


@pytest.mark.parametrize("in_order", [True, False])
def test_the_page_restores_the_values_that_its_columns_leave_out(
    browser: Browser, tmp_path: Path, in_order: bool
) -> None:
    columns = ColumnLines()
    run, values = random_run(columns, ranks=5, rounds=60, longest=1_000_000)
    assert run["steps"]["partner"] == "in order"
    assert run["steps"]["chunk"]["length"] == run["steps"]["bytes"]["length"] == 5 * 60
    if not in_order:
        offset = np.maximum(values["partner"] - np.arange(len(values["partner"])), 0)
        run["steps"]["partner"] = columns.add(offset) | {"ends": "first"}
    browser.open(write_page(tmp_path / "random.html", view_index(run), columns))
    for name, expected in values.items():
        part = "" if name in {"start", "duration", "kind"} else ".details"
        shown = browser.run(f"return [...collhubView.page.runs[0]{part}.{name}]")
        assert shown == expected.tolist(), name


@pytest.mark.parametrize("values", [[-1, 2**40, 3, -(2**45)], [2**47, 0], [0.5, -3.25], []])
def test_columns_keep_their_values(browser: Browser, tmp_path: Path, values: list[float]) -> None:
    columns = ColumnLines()
    run = ring_run(columns)
    run["steps"]["bytes"] = columns.add(
        np.array(values + [7] * (run["steps"]["count"] - len(values)))
    )
    browser.open(write_page(tmp_path / "values.html", view_index(run), columns))
    shown = browser.run("return [...collhubView.page.runs[0].details.bytes]")
    assert shown[: len(values)] == values
    assert set(shown[len(values) :]) == {7}


def test_damaged_columns_are_reported_in_the_page(browser: Browser, tmp_path: Path) -> None:
    columns = ColumnLines()
    index = view_index(ring_run(columns))
    index["runs"][0]["steps"]["gap"]["length"] += 1
    page = write_page(tmp_path / "damaged.html", index, columns)
    with pytest.raises(AssertionError, match="has 36 values instead of 37"):
        browser.open(page)
