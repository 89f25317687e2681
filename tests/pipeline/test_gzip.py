"""Gzip archives are recognised by their content, whatever their name, and read within bounds."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from hub_core.model.diagnostics import Diagnostic, InputError
from hub_core.pipeline.sources import Input, content_of, open_input
from hub_core.plugin_api import Format, Layout, decompressed

PACKED = Format("trace", "d", (".trace", ".trace.gz"), layout=Layout.PREFIX)
PLAIN = Format("text", "d", (".txt",))
CONTENT = b'{"traceEvents": [' + b'{"ph": "X"}, ' * 10_000 + b"{}]}"


def _open(path: Path) -> Input:
    return open_input(str(path), (PACKED, PLAIN), _refuse_report)


def _refuse_report(diagnostic: Diagnostic) -> None:
    raise AssertionError(diagnostic)


@pytest.mark.parametrize("name", ["any.json.gz", "any.json", "any", "Qwen1.5-0.5B.gz"])
def test_the_head_is_that_of_the_content_whatever_the_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(CONTENT))
    opened = _open(tmp_path / name)
    assert opened.is_gzip
    assert opened.head == CONTENT[: len(opened.head)]
    assert opened.head.startswith(b'{"traceEvents"')


def test_a_reader_that_accepts_gzip_gets_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(CONTENT))
    (part,) = content_of(_open(tmp_path / "a.gz"), PACKED).parts
    assert part.load() == CONTENT
    with part.stream() as stream:
        assert stream.read() == CONTENT


def test_the_files_of_one_set_may_be_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "job.0.trace").write_bytes(gzip.compress(CONTENT))
    (tmp_path / "job.1.trace").write_bytes(CONTENT)
    source = content_of(_open(tmp_path / "job"), PACKED)
    assert [part.load() for part in source.parts] == [CONTENT, CONTENT]


def test_a_reader_that_does_not_accept_gzip_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(CONTENT))
    with pytest.raises(InputError, match="compressed with gzip, but text is read uncompressed"):
        content_of(_open(tmp_path / "a.txt"), PLAIN)


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_bytes(CONTENT)
    (tmp_path / "b.trace.gz").write_bytes(gzip.compress(CONTENT))
    digests = {content_of(_open(path), PACKED).sha256() for path in tmp_path.iterdir()}
    assert len(digests) == 1


def test_an_archive_that_ends_early_is_refused_at_its_byte() -> None:
    archive = gzip.compress(CONTENT)[:-20]
    with (
        pytest.raises(InputError, match=r"a.gz: byte \d+: the gzip archive ends early"),
        decompressed(io.BytesIO(archive), "a.gz") as content,
    ):
        content.read()


def test_an_archive_that_expands_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_core.plugin_api.formats.UNCHECKED_BYTES", 0)
    archive = gzip.compress(bytes(10_000_000))
    with (
        pytest.raises(InputError, match="expands to more than 300 times the bytes read"),
        decompressed(io.BytesIO(archive), "a.gz") as content,
    ):
        content.read()


def test_an_archive_with_damaged_head_has_no_head(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x1f\x8b\x08\x00" + bytes(64))
    assert _open(tmp_path / "a").head == b""
