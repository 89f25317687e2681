"""Examples of documents run as one script, without traces in the current folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_core.testing import check_examples

DOCUMENT = """\
```python
from pathlib import Path

Path("written.txt").write_text("7")
```

```python
value = int(Path("written.txt").read_text())
```
"""


def test_files_of_examples_are_not_left_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "document.md").write_text(DOCUMENT)
    assert check_examples(tmp_path / "document.md")["value"] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["document.md"]
    assert Path.cwd() == tmp_path
