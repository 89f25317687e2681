"""Measure the viewer's page in headless Chromium: size, time until ready, frame times.

    python benchmarks/viewer/large_page.py [--ranks 1000] [--steps 5000000]

The page shows synthetic steps: each rank repeats send, compute, receive, wait with 16 random
durations. The columns are those of the package's writer, which omits optional ones beyond 25 MB.
Reported are medians of five frames for the whole run and for windows of 10 %, 1 % and
0.01 %: milliseconds of script (draw and overlay), and milliseconds until the next frame.
Limits of the project: page of 25 MB, ready in 3 s, 16 ms of script per frame.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from selenium import webdriver

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/study/tests/viewer_page"))
from collhub_viewer.columns import ColumnLines as PageColumns
from collhub_viewer.write_page import MAX_BYTES
from page_samples import ColumnLines, view_index, write_page

KINDS = ("send", "receive", "wait", "compute")
DURATIONS = 16
WINDOWS = {"whole run": 1.0, "10 %": 0.1, "1 %": 0.01, "0.01 %": 0.0001}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = write_large_page(Path(folder) / "large.html", arguments.ranks, arguments.steps)
        size = page.stat().st_size / 1e6
        print(f"page: {size:.1f} MB, {arguments.ranks} ranks x {arguments.steps} steps")
        measure(page)


def write_large_page(path: Path, ranks: int, steps: int) -> Path:
    """Write a page of `ranks` lanes with equal numbers of steps, and print the omitted columns."""
    per_rank = steps // ranks
    count = per_rank * ranks
    generator = np.random.default_rng(1)
    row = np.arange(count)
    kind = np.tile(np.array([0, 3, 1, 2], np.uint8), count // 4 + 1)[:count]
    duration = generator.choice(generator.integers(20, 200, DURATIONS), count)
    by_rank = duration.reshape(ranks, per_rank)
    start = (by_rank.cumsum(axis=1) - by_rank).ravel()
    rank = np.repeat(np.arange(ranks), per_rank)
    peer = np.select([kind == 0, kind == 1], [(rank + 1) % ranks, (rank - 1) % ranks], -1)
    # The receive of a send is two steps further in the lane of the next rank.
    partner = np.select(
        [kind == 0, kind == 1],
        [(row + per_rank + 2) % count, (row - per_rank - 2) % count],
        -1,
    )
    lines = PageColumns(MAX_BYTES - 1_500_000)
    run = {
        "name": "synthetic", "facts": [["Ranks", str(ranks)]], "tick_ps": 1000,
        "end": int((start + duration).max()), "ranks": ranks, "rank_names": None,
        "lanes": {
            "rank": lines.add(np.arange(ranks)), "names": [""],
            "name": lines.add(np.zeros(ranks, np.int64)),
            "first": lines.add(np.arange(ranks + 1) * per_rank),
        },
        "kinds": [{"name": name, "class": name} for name in KINDS],
        "steps": {
            "count": count, "start": lines.add(start, is_delta=True),
            "duration": lines.add(duration), "kind": lines.add(kind), "peer": lines.add(peer),
            "partner": lines.add_optional("partner", partner, is_delta=True),
            "bytes": lines.add_optional("bytes", np.where(peer >= 0, 65536, 0)),
            "chunk": lines.add_optional("chunk", np.where(peer >= 0, row % 64, -1)),
            "chunks": None, "number": None, "label": None, "labels": [], "waits_for": None,
        },
    }  # fmt: skip
    print(f"omitted columns: {', '.join(lines.omitted) or 'none'}")
    columns = ColumnLines([line.decode() for line in lines.lines])
    return write_page(path, view_index(run, title="Benchmark"), columns)


def measure(page: Path) -> None:
    """Print the time until ready and the frame times of the page."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1400,1000"):
        options.add_argument(f"--{argument}")
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver") or "")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(120)
        begin = time.perf_counter()
        driver.get(page.as_uri())
        while driver.execute_script("return document.documentElement.dataset.state") is None:
            time.sleep(0.02)
        ready = time.perf_counter() - begin
        print(f"browser {driver.capabilities['browserVersion']}, ready after {ready:.2f} s")
        marks = driver.execute_script(
            "return performance.getEntriesByType('mark').map(m => [m.name, m.startTime])"
        )
        for name, moment in marks:
            print(f"  {name}: {moment:.0f} ms")
        memory = driver.execute_script("return performance.memory?.usedJSHeapSize ?? 0")
        print(f"  JavaScript heap: {memory / 1e6:.0f} MB")
        for name, share in WINDOWS.items():
            frames = [measure_frame(driver, share, shift) for shift in range(5)]
            script, wait = (statistics.median(part) for part in zip(*frames, strict=True))
            method = driver.execute_script("return collhubView.timeline.methods[0]")
            print(
                f"{name:>10}: script {script:6.1f} ms, to the next frame {wait:6.1f} ms ({method})"
            )
    finally:
        driver.quit()


def measure_frame(driver: webdriver.Chrome, share: float, shift: int) -> tuple[float, float]:
    """Move the window, and return milliseconds of script and milliseconds to the next frame."""
    script, wait = driver.execute_async_script(
        """const [share, shift, done] = arguments, {state} = collhubView.page;
        const from = state.end * (0.4 * (1 - share) + shift * share * 0.05);
        const begin = performance.now();
        state.update({from, to: from + state.end * share});
        requestAnimationFrame(() => requestAnimationFrame(() =>
          done([collhubView.timeline.lastDrawing, performance.now() - begin])));""",
        share, shift,
    )  # fmt: skip
    return script, wait


if __name__ == "__main__":
    main()
