"""The panels below the time panel: links, topology, matrix, lists, comparison, waiting ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_samples import WAITS, ColumnLines, comparison, ring_run, view_index, write_page

if TYPE_CHECKING:
    from conftest import Browser


@pytest.fixture(scope="module")
def full_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with all panels of a run, thread blocks with a source, and files."""
    columns = ColumnLines()
    run = ring_run(columns)
    steps = run["steps"]["count"]
    run["blocks"] = {
        "lane_meaning": "thread block",
        "channel": columns.add([lane % 2 for lane in range(8)]),
        "source_line": columns.add(range(1, steps + 1)),
        "source": "\n".join(f"line {number}" for number in range(1, steps + 1)),
    }
    index = view_index(run, title="All panels", comparisons=[comparison()], waits=WAITS)
    index["files"] = [{"name": "tuned.conf", "text": "first\nsecond"}]
    return write_page(tmp_path_factory.mktemp("pages") / "full.html", index, columns)


def panel_text(browser: Browser, title: str) -> str:
    text: str = browser.run(
        "return collhubView.panels.find(p => p.title === arguments[0]).element.innerText", title
    )
    return text


def panel(browser: Browser, title: str, script: str, *arguments: object) -> Any:
    """Execute `script` with the panel as `panel`."""
    return browser.run(
        "const panel = collhubView.panels.find(p => p.title === arguments[0]);" + script,
        title,
        *arguments,
    )


def test_all_panels_are_present_without_errors(browser: Browser, full_page: Path) -> None:
    browser.errors()
    browser.open(full_page)
    assert browser.run("return collhubView.panels.map(panel => panel.title)") == [
        "Ranks over time",
        "Selection",
        "Who waits for whom",
        "All-reduce on 32 ranks",
        "Times",
        "Critical path",
        "Thread blocks and channels",
        "Time by rank",
        "Collectives by exposed cost",
        "Topology",
        "Bytes from rank to rank",
        "Links over time",
        "Files",
    ]
    assert browser.errors() == []


def test_the_matrix_sums_the_bytes_of_the_window(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    matrix = panel(browser, "Bytes from rank to rank", "return [...panel.bytes]")
    # Every rank sends three messages of 64 KiB to the next rank, and nothing to others.
    assert [matrix[4 * r + (r + 1) % 4] for r in range(4)] == [3 * 65536] * 4
    assert sum(matrix) == 12 * 65536
    browser.run("collhubView.page.state.update({from: 0, to: 1000000})")
    matrix = panel(browser, "Bytes from rank to rank", "panel.compute(); return [...panel.bytes]")
    assert sum(matrix) == 4 * 65536


def test_link_loads_and_messages_in_flight_follow_window_and_cursor(
    browser: Browser, full_page: Path
) -> None:
    browser.open(full_page)
    loads = panel(browser, "Topology", "return [...panel.loads]")
    assert loads == pytest.approx([3000 / 3300] * 4)
    moving = """
        collhubView.page.state.update({cursor: arguments[1]});
        const [x1, y1, x2, y2] = panel.ends(panel.positions(), 0);
        const share = arguments[2], x = x1 + (x2 - x1) * share, y = y1 + (y2 - y1) * share;
        return panel.overlay.getContext("2d").getImageData(x, y, 1, 1).data[3]"""
    # The first message occupies [100 ns, 1100 ns): at 600 ns it is in the middle of the link.
    assert panel(browser, "Topology", moving, 600_000, 0.5) == 255
    assert panel(browser, "Topology", moving, 50_000, 0.5) == 0


def test_an_entry_of_the_critical_path_jumps_to_its_step(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    panel(browser, "Critical path", "panel.rows.querySelectorAll('button')[1].click()")
    values = browser.run("return collhubView.page.state.values")
    step = browser.run("return collhubView.page.index.runs[0].critical_path.entries[1].step")
    assert values["step"] == step
    start, end = browser.run(
        "const run = collhubView.page.runs[0];"
        "return [run.startOf(arguments[0]), run.endOf(arguments[0])]",
        step,
    )
    assert values["from"] <= start < end <= values["to"]
    assert "entry 1" in browser.run("return document.querySelector('tr.selected').innerText")


def test_collectives_are_sorted_by_exposed_cost(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    text = panel_text(browser, "Collectives by exposed cost")
    assert text.index("all-reduce") < text.index("all-gather")
    assert "900 ns" in text


def test_the_selected_instruction_is_marked_in_the_source(
    browser: Browser, full_page: Path
) -> None:
    browser.open(full_page)
    browser.run("collhubView.page.state.update({run: 0, step: 4, rank: 0})")
    marked = "return panel.element.querySelector('pre .selected').innerText"
    assert panel(browser, "Thread blocks and channels", marked).split() == ["5", "line", "5"]
    assert "line:5" in panel_text(browser, "Thread blocks and channels")


def test_the_table_of_times_filters_and_sorts(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    filtered = """
        const [kind, size] = panel.element.querySelectorAll("select");
        kind.value = "simulated"; size.value = "1024";
        kind.dispatchEvent(new Event("change"));
        [...panel.element.querySelectorAll("th button")].find(b => b.innerText === "Time").click();
        return [...panel.element.querySelectorAll("tbody tr")].map(row => row.cells[0].innerText)"""
    assert panel(browser, "Times", filtered) == ["tree", "ring"]


def test_the_curve_shows_bandwidth_on_hover(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    text = panel(
        browser,
        "All-reduce on 32 ranks",
        """panel.canvas.scrollIntoView();
        const box = panel.canvas.getBoundingClientRect();
        for (let y = 5; y < 350 && !panel.hovered; y += 10) {
          panel.canvas.dispatchEvent(new PointerEvent("pointermove",
            {clientX: box.left + 66, clientY: box.top + y, bubbles: true}));
        }
        return document.querySelector(".tooltip").innerText""",
    )
    # The topmost point at 1 KiB is the bound: 1024 B / 8038.912 ns.
    assert "ring (bound)" in text
    assert "Bandwidth: 0.1274 GB/s" in text


def test_waiting_ranks_are_below_the_culprit(browser: Browser, full_page: Path) -> None:
    browser.open(full_page)
    heights = panel(
        browser,
        "Who waits for whom",
        "return [0, 1, 2, 3].map(rank => panel.places.get(rank)[1])",
    )
    assert heights == sorted(heights)
    assert len(set(heights)) == 4
    assert "receive 4 KiB" in panel_text(browser, "Who waits for whom")


def test_a_comparison_without_runs_is_a_complete_page(browser: Browser, tmp_path: Path) -> None:
    index = view_index(
        comparisons=[comparison(), comparison() | {"title": "All-gather"}], title="Comparison"
    )
    browser.errors()
    browser.open(write_page(tmp_path / "comparison.html", index, ColumnLines()))
    browser.press("t")
    browser.press("a")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    assert browser.errors() == []


def test_candidates_of_a_job_are_bars_and_rows(browser: Browser, tmp_path: Path) -> None:
    row = {"network": "ring:4", "failure": None, "is_baseline": False}
    rows = [
        row | {"algorithms": "native", "time_ns": 4000, "exposed_ns": 1000, "speedup": 1.0,
               "is_baseline": True},
        row | {"algorithms": "tacos", "time_ns": 2000, "exposed_ns": 1000, "speedup": 2.0},
        row | {"algorithms": "tree", "time_ns": None, "exposed_ns": None, "speedup": None,
               "failure": "needs 8 ranks"},
    ]  # fmt: skip
    comparison_of_job = {"title": "step.json", "facts": [["ranks", "4"]], "rows": rows}
    index = view_index(job_comparisons=[comparison_of_job], title="Job")
    browser.errors()
    browser.open(write_page(tmp_path / "job.html", index, ColumnLines()))
    title = "Time of the job by algorithms: step.json"
    text = panel_text(browser, title)
    assert all(part in text for part in ("baseline", "2.00", "2 µs", "needs 8 ranks"))
    svg = panel(browser, title, "return panel.svgText()")
    # Of each of the two bars one part is exposed communication, 1000 ns of at most 4000.
    assert svg.count('fill="#d55e00"') == 2
    assert browser.errors() == []


def test_a_topology_alone_is_a_complete_page(browser: Browser, tmp_path: Path) -> None:
    columns = ColumnLines()
    run = ring_run(columns)
    run |= dict.fromkeys(
        ("lanes", "steps", "links", "critical_path", "chunks", "collectives", "rank_totals")
    )
    run |= {"kinds": [], "end": 0}
    run["topology"]["links"] = [
        {"from": 0, "to": 1, "name": "0 -> 1", "bandwidth": 50e9, "latency_ns": 500}
    ]
    browser.errors()
    browser.open(write_page(tmp_path / "topology.html", view_index(run), columns))
    assert browser.run("return collhubView.panels.map(panel => panel.title)") == ["Topology"]
    text = panel(
        browser,
        "Topology",
        """const [x1, y1, x2, y2] = panel.ends(panel.positions(), 0);
        const box = panel.canvas.getBoundingClientRect();
        panel.canvas.dispatchEvent(new PointerEvent("pointermove",
          {clientX: box.left + (x1 + x2) / 2, clientY: box.top + (y1 + y2) / 2, bubbles: true}));
        return document.querySelector(".tooltip").innerText""",
    )
    assert "NPU 0 → NPU 1" in text
    assert "Bandwidth: 50 GB/s" in text
    assert browser.errors() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_accessibility_fault(
    browser: Browser, full_page: Path, theme: str
) -> None:
    program = Path(__file__).parents[2] / "viewer/node_modules/axe-core/axe.min.js"
    if not program.is_file():
        pytest.skip("run 'npm ci' in plugins/study/viewer for axe-core")
    browser.open(full_page)
    browser.run("collhubView.page.state.update({run: 0, step: 4, rank: 0, chunk: 0})")
    if theme == "dark":
        browser.press("t")
    browser.run(program.read_text())
    result = browser.driver.execute_async_script(
        "const done = arguments[0]; axe.run().then(done, error => done({error: String(error)}))"
    )
    serious = [
        (fault["id"], [node["html"][:120] for node in fault["nodes"]][:3])
        for fault in result["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []
