"""The example of the README runs; it asserts what it says."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), names)
    assert names["order"] is not None
