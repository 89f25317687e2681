"""Installed distributions are found on the search path, whatever else is on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_core.installed import installed_distributions


def test_damaged_archive_on_the_search_path_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "packages.zip"
    # An end record of a central directory with one entry, which the file does not contain.
    counts = (1).to_bytes(2, "little") * 2
    sizes = (46).to_bytes(4, "little") + (0).to_bytes(4, "little")
    archive.write_bytes(b"\0" * 46 + b"PK\5\6" + bytes(4) + counts + sizes + bytes(2))
    monkeypatch.syspath_prepend(str(archive))
    assert "collhub" in {one.name for one in installed_distributions()}
