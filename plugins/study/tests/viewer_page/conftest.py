"""A headless Chromium for the tests of the viewer's page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """Chromium with one page; `run` executes JavaScript in it and returns the result."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, address: str = "") -> None:
        """Load the page and wait until it is ready; fail if it reports an error."""
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + address)
        deadline = time.monotonic() + 30
        while (state := self.run("return document.documentElement.dataset.state")) is None:
            assert time.monotonic() < deadline, "the page is not ready after 30 seconds"
            time.sleep(0.02)
        assert state == "ready", self.run("return document.body.innerText")

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, key: str) -> None:
        self.run(
            "document.body.dispatchEvent("
            "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))",
            key,
        )

    def pointer(self, kind: str, x: float, y: float) -> None:
        """Send a pointer event to the time panel at a position of its canvas."""
        self.run(
            """const canvas = collhubView.timeline.canvas, box = canvas.getBoundingClientRect();
            canvas.setPointerCapture = () => {};
            canvas.dispatchEvent(new PointerEvent(arguments[0], {
              clientX: box.left + arguments[1], clientY: box.top + arguments[2], bubbles: true}))""",
            kind,
            x,
            y,
        )

    def step_middle(self, step: int, run: int = 0) -> tuple[float, float]:
        box = self.run(
            "const b = collhubView.timeline.stepBox(arguments[0], arguments[1]);"
            "return [b.x + b.width / 2, b.y + b.height / 2]",
            run,
            step,
        )
        return box[0], box[1]

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        """Colour of the time panel after its next drawing."""
        parts = self.run(
            """collhubView.timeline.drawNow();
            return [...collhubView.timeline.canvas.getContext("2d")
              .getImageData(arguments[0], arguments[1], 1, 1).data]""",
            x,
            y,
        )
        return parts[0], parts[1], parts[2]

    def errors(self) -> list[str]:
        """Messages of the console since the last call; a violation of the policy is one."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; skips with the reason if selenium, Chromium or its driver is absent."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is absent")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("chromium and chromedriver are absent")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument("--window-size=1400,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=chromedriver)
    driver = selenium.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
        service.stop()
