"""Measure the viewer's page in headless Chromium: size, time until ready, frame times.

    python benchmarks/viewer/large_page.py [--ranks 1000] [--steps 5000000] [--longest 1000000]

The page shows synthetic steps. In every round, each rank sends a message to a random other rank,
computes, waits and receives a message, in a random order in which the wait precedes the receive.
Durations are random integers between 1 and `--longest` nanoseconds; the sizes of messages (16
different ones) and their chunks (1000) are random as well. Hence few columns can be compressed; the
size of the page is printed with the smallest size that any code could reach: the logarithm of the
number of such schedules.
Reported are the time until ready and the CPU time of the page's thread until then, which depends
less on other programs of the machine; and medians of five frames for the whole run and for windows
of 10 %, 1 % and 0.01 %: milliseconds of script (draw and overlay), and milliseconds until the next
frame.
Limits of the project: page of 25 MB, ready in 3 s, 16 ms of script per frame.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/study/tests/viewer_page"))
from collhub_viewer.columns import ColumnLines
from collhub_viewer.write_page import MAX_BYTES, RESERVED_BYTES
from page_samples import CHUNKS, ROUNDS, SIZES, random_run, view_index, write_page

WINDOWS = {"whole run": 1.0, "10 %": 0.1, "1 %": 0.01, "0.01 %": 0.0001}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5_000_000)
    parser.add_argument("--longest", type=int, default=1_000_000, help="longest step in ns")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "large.html"
        write_large_page(page, arguments.ranks, arguments.steps, arguments.longest)
        size = page.stat().st_size / 1e6
        print(f"page: {size:.1f} MB, {arguments.ranks} ranks x {arguments.steps} steps")
        measure(page)


def write_large_page(path: Path, ranks: int, steps: int, longest: int) -> None:
    """Write a page of `ranks` lanes with equal numbers of steps; print the sizes of its parts."""
    lines = ColumnLines(MAX_BYTES - RESERVED_BYTES)
    run, _ = random_run(lines, ranks, steps // (4 * ranks), longest)
    for name, column in run["steps"].items():
        if isinstance(column, dict):
            print(f"  {name}: {len(lines.lines[column['column']]) / 1e6:.2f} MB")
    bits = 4 * math.log2(longest) + math.log2(len(ROUNDS)) + math.log2(SIZES * CHUNKS)
    bits += math.lgamma(ranks + 1) / math.log(2) / ranks
    print(f"smallest possible size: {bits / 4:.1f} bits a step, {bits * steps / 32e6:.1f} MB")
    print(f"omitted columns: {', '.join(lines.omitted) or 'none'}")
    write_page(path, view_index(run, title="Benchmark"), lines)


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
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
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
        metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        cpu = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        print(f"  CPU time of the page's thread: {cpu:.2f} s")
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
