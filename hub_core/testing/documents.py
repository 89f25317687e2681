"""Examples in documents: they run."""

from __future__ import annotations

import re
from pathlib import Path

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_examples(document: Path) -> dict[str, object]:
    """Assert that a Markdown document has `python` blocks, and run them as one script.

    Returns the names that they leave behind. Whatever an example raises is raised.
    """
    examples = _FENCE.findall(document.read_text(encoding="utf-8"))
    assert examples, f"{document} has no example"
    names: dict[str, object] = {"__name__": "example"}
    for example in examples:
        exec(compile(example, str(document), "exec"), names)
    return names
