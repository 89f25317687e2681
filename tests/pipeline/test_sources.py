"""What users name as input is opened as bounded sources; what cannot be is one error with the file in it."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from hub_core.model.diagnostics import Diagnostic, InputError
from hub_core.pipeline import bounded_reads, sources
from hub_core.pipeline.sources import Input, open_input
from hub_core.plugin_api import Format, Layout, Source

SETS = Format("traces", "d", (".et",), layout=Layout.PREFIX)
FILES = Format("text", "d", (".txt",))
FOLDERS = Format("bundle", "d", (), layout=Layout.FOLDER)


def _open(path: object, *formats: Format) -> Input:
    return open_input(str(path), formats or (SETS, FILES), _unheard)


def _unheard(diagnostic: Diagnostic) -> None:
    raise AssertionError(diagnostic)


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """A set of 11 rank files, and files beside it that do not belong to it."""
    for rank in range(11):
        (tmp_path / f"ring.{rank}.et").write_bytes(b"rank %d" % rank)
    for other in ("ring.00.et", "ring.x.et", "ring.et", "ring.1.txt", "string.1.et"):
        (tmp_path / other).write_bytes(b"other")
    return tmp_path / "ring"


@pytest.mark.parametrize("ending", ["", ".0.et", ".7.et"])
def test_set_is_named_by_prefix_or_by_a_member(ring: Path, ending: str) -> None:
    opened = _open(f"{ring}{ending}")
    assert [part.rank for part in opened.source.parts] == list(range(11))
    assert [part.load() for part in opened.source.parts] == [
        b"rank %d" % rank for rank in range(11)
    ]
    assert (opened.source.name, opened.layout, opened.head) == (str(ring), Layout.PREFIX, b"rank 0")


@pytest.mark.parametrize("prefix", ["rank", "rank_", "job-rank", "job.rank-"])
def test_set_may_call_its_ranks_so(tmp_path: Path, prefix: str) -> None:
    for rank in range(3):
        (tmp_path / f"{prefix}{rank}.et").write_bytes(b"rank %d" % rank)
    (tmp_path / "frank1.et").write_bytes(b"no rank")
    assert len(_open(tmp_path / prefix).source.parts) == 3
    assert len(_open(tmp_path / f"{prefix}1.et").source.parts) == 3
    assert len(_open(tmp_path / "frank1.et").source.parts) == 1


def test_all_files_of_a_set_are_one_and_some_are_not(ring: Path) -> None:
    files = [f"{ring}.{rank}.et" for rank in range(11)]
    assert sources.are_one_set(files, [SETS])
    assert not sources.are_one_set(files[:5], [SETS])
    assert not sources.are_one_set([*files, str(ring.parent / "string.1.et")], [SETS])
    assert not sources.are_one_set([str(ring), str(ring)], [SETS])


def test_files_with_the_names_of_a_set_and_other_content_are_rank_files_by_content(
    tmp_path: Path,
) -> None:
    """Profiles named `trace_rank_0.json` have the names of another format's rank files."""
    named = Format("named", "", (".json",), rb"first", layout=Layout.PREFIX)
    meant = Format("meant", "", (".trace",), rb"second", layout=Layout.PREFIX)
    single = Format("single", "", (".json",), rb"third")
    files = [str(tmp_path / f"trace_rank_{rank}.json") for rank in range(2)]
    for file in files:
        Path(file).write_text("second")
    formats = [named, meant, single]
    assert not sources.are_one_set(files, formats)
    assert sources.are_rank_files(files, formats)
    for file in files:
        Path(file).write_text("first")
    assert sources.are_one_set(files, formats)
    assert not sources.are_rank_files(files, formats)


def test_sets_of_a_folder_are_named_by_existing_files(tmp_path: Path) -> None:
    for name in ("a_rank1.et", "b.3.et"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=r"by a member: .*a_rank1\.et, .*b\.3\.et"):
        _open(tmp_path)


def test_set_is_named_by_the_folder_that_holds_no_other(ring: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"names 2 sets of rank files; name one by a member: .*ring\.0\.et, .*string\.1\.et",
    ):
        _open(ring.parent)
    (ring.parent / "string.1.et").unlink()
    assert len(_open(ring.parent).source.parts) == 11


def test_prefix_goes_before_a_folder_of_the_same_name(ring: Path) -> None:
    ring.mkdir()
    assert len(_open(ring).source.parts) == 11


def test_file_without_rank_is_one_part(ring: Path) -> None:
    opened = _open(f"{ring}.et")
    assert [part.rank for part in opened.source.parts] == [None]
    assert opened.layout is Layout.FILE


def test_folder_is_read_whole_only_for_formats_that_are_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "y").write_bytes(b"2")
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(InputError, match="is a folder without rank files"):
        _open(tmp_path)
    parts = _open(tmp_path, FOLDERS).source.parts
    assert [(part.name, part.load()) for part in parts] == [
        (str(tmp_path / "b" / "y"), b"2"),
        (str(tmp_path / "x"), b"1"),
    ]


def test_folder_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_FOLDER_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"1")
    with pytest.raises(InputError, match="holds more than 2 files"):
        _open(tmp_path, FOLDERS)


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"<algo" + b"x" * 9000)))
    opened = _open("-")
    assert (opened.source.name, len(opened.head)) == ("<stdin>", 4096)
    assert opened.source.content() == opened.source.content() == b"<algo" + b"x" * 9000


def test_pipe_is_read_as_a_stream(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"through the pipe",))
    writer.start()
    assert _open(tmp_path / "pipe").source.content() == b"through the pipe"
    writer.join()


@pytest.mark.parametrize("name", ["nothing", "no/folder/x", "nothing.0.et", "a\0b", ""])
def test_missing_input_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        _open(tmp_path / name / "x")
    assert caught.value.diagnostics[0].location.file


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(InputError, match=r"x\.txt: is empty"):
        _open(tmp_path / "x.txt")


def test_empty_rank_file_is_refused_when_it_is_read(ring: Path) -> None:
    ring.with_name("ring.4.et").write_bytes(b"")
    with pytest.raises(InputError, match=r"ring\.4\.et: is empty"):
        _open(ring).source.parts[4].load()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"x")
    (tmp_path / "x.txt").chmod(0)
    with pytest.raises(InputError, match=r"x\.txt: cannot be read: Permission denied"):
        _open(tmp_path / "x.txt")


def test_file_of_zeros_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.txt", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"x\.txt: begins with 4096 zero bytes, as no format does"):
        _open(tmp_path / "x.txt")


def test_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "x.txt", "wb") as file:
        file.write(b"x")
        file.truncate((4 << 30) + 1)
    with pytest.raises(InputError, match=r"x\.txt: is larger than 4 GiB"):
        _open(tmp_path / "x.txt").source.content()


def test_endless_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reads, "MAX_STREAM_BYTES", 1 << 22)
    with open("/dev/urandom", "rb") as endless:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless))
        with pytest.raises(InputError, match="<stdin>: gives more than"):
            _open("-").source.content()


def test_device_of_zeros_is_refused() -> None:
    with pytest.raises(InputError, match="/dev/zero: begins with 4096 zero bytes"):
        _open("/dev/zero")


def test_hash_covers_all_parts(ring: Path) -> None:
    before = _open(ring).source.sha256()
    ring.with_name("ring.10.et").write_bytes(b"changed")
    assert _open(ring).source.sha256() != before


TOLD = Format("bundle", "d", (".json",), rb'"bundle"', layout=Layout.FOLDER)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder that a file tells, with one set beside that file and another one deeper."""
    folder = tmp_path / "bundle"
    (folder / "deep").mkdir(parents=True)
    for prefix in ("ring", "deep/tree"):
        for rank in range(2):
            (folder / f"{prefix}.{rank}.et").write_bytes(b"rank")
    (folder / "a.json").write_bytes(b"{}")
    (folder / "what.json").write_bytes(b'{"bundle": 1}')
    return folder


@pytest.mark.parametrize("named", ["", "ring", "ring.1.et", "deep", "deep/tree", "deep/tree.0.et"])
def test_set_in_a_folder_that_a_file_tells_is_opened_as_the_folder(
    bundle: Path, named: str
) -> None:
    opened = _open(bundle / named, SETS, TOLD)
    assert (opened.layout, opened.head) == (Layout.FOLDER, b'{"bundle": 1}')
    assert len(opened.source.parts) == 6
    prefixes = {"": "", "deep": "deep/tree"}
    prefix = prefixes.get(named, named.removesuffix(".1.et").removesuffix(".0.et"))
    assert opened.source.name == str(bundle / prefix)


def test_set_is_a_set_where_no_file_tells_a_folder(bundle: Path) -> None:
    (bundle / "what.json").unlink()
    assert _open(bundle / "ring", SETS, TOLD).layout is Layout.PREFIX


def test_set_is_a_set_where_no_format_is_such_a_folder(bundle: Path) -> None:
    assert _open(bundle / "ring", SETS, FOLDERS).layout is Layout.PREFIX


def test_file_that_cannot_be_opened_tells_no_folder(bundle: Path) -> None:
    (bundle / "a.json").unlink()
    (bundle / "a.json").symlink_to("nowhere")
    os.mkfifo(bundle / "b.json")
    assert _open(bundle, SETS, TOLD).layout is Layout.FOLDER


def test_set_in_a_folder_of_too_many_files_is_read_alone(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_FOLDER_FILES", 2)
    heard: list[Diagnostic] = []
    opened = open_input(str(bundle / "ring"), (SETS, TOLD), heard.append)
    assert opened.layout is Layout.PREFIX
    assert "holds more than 2 files, and is not looked at" in heard[0].message


def test_a_reader_of_one_stream_refuses_several_parts() -> None:
    source = Source.of_bytes("a.txt", b"a")
    assert source.get_only_part("a text") is source.parts[0]
    several = Source("set", source.parts * 2)
    with pytest.raises(
        InputError, match="set: 2 files; a text is one file; name one file"
    ) as caught:
        several.get_only_part("a text")
    assert caught.value.diagnostics[0].code == "several-files"
