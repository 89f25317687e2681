"""The README's examples are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["judging", "executor"])
def test_examples_run(example: str) -> None:
    exec(compile(example, str(README), "exec"), {"__name__": "example"})


def test_public_names_are_there() -> None:
    import collhub_execution

    assert all(hasattr(collhub_execution, name) for name in collhub_execution.__all__)
