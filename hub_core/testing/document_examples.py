"""Run the Python examples of a Markdown document."""

from __future__ import annotations

import contextlib
import re
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_examples(document: Path) -> dict[str, object]:
    """Run the `python` blocks of a Markdown document one after the other; return the global names.

    Only blocks whose fences are not indented count, with nothing after `python` on the first one.
    The blocks share their names; `__name__` is `example`. Each is compiled when the previous one
    has run, so a syntax error does not stop earlier blocks. They run in an empty temporary
    folder, which is removed with the files that they write.

    Raises `AssertionError` if the document has no such block. Exceptions of the blocks, and errors
    of reading the document, are not caught.
    """
    examples = _FENCE.findall(document.read_text(encoding="utf-8"))
    assert examples, f"{document} has no example"
    names: dict[str, object] = {"__name__": "example"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for example in examples:
            exec(compile(example, str(document), "exec"), names)
    return names
