"""Output appears complete or not at all, and nothing that stands there is lost or mixed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import UsageError
from hub_core.pipeline.artifacts import Content, destination, name_defect
from hub_core.plugin_api import Format, Layout

FILE = Format("text", "d", (".txt",))
SET = Format("traces", "d", (".et",), layout=Layout.PREFIX)
FOLDER = Format("bundle", "d", (), layout=Layout.FOLDER)


def _ranks(count: int, data: bytes = b"new") -> list[Content]:
    return [Content(f".{rank}.et", data) for rank in range(count)]


def _put(out: object, format: Format, contents: list[Content], force: bool = False) -> list[str]:
    return [path.name for path in destination(str(out), format, force=force).put(contents)]


def _interrupted(contents: list[Content]) -> Iterator[Content]:
    yield from contents
    raise KeyboardInterrupt


def _snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


def test_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"old")
    _put(tmp_path / "x.txt", FILE, [Content("", b"new")])
    assert _snapshot(tmp_path) == {"x.txt": b"new"}


def test_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "x.txt").symlink_to("target")
    _put(tmp_path / "x.txt", FILE, [Content("", b"new")])
    assert (tmp_path / "x.txt").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    assert _put("/dev/null", FILE, [Content("", b"new")]) == ["null"]
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["ring", "ring.et", "ring.0.et"])
def test_set_goes_behind_its_prefix(tmp_path: Path, name: str) -> None:
    assert _put(tmp_path / "new" / "deep" / name, SET, _ranks(2)) == ["ring.0.et", "ring.1.et"]
    assert sorted(_snapshot(tmp_path / "new" / "deep")) == ["ring.0.et", "ring.1.et"]


def test_set_of_the_same_ranks_is_replaced(tmp_path: Path) -> None:
    _put(tmp_path / "ring", SET, _ranks(2, b"old"))
    _put(tmp_path / "ring", SET, _ranks(2))
    assert set(_snapshot(tmp_path).values()) == {b"new"}


def test_sets_are_not_mixed(tmp_path: Path) -> None:
    _put(tmp_path / "ring", SET, _ranks(4, b"old"))
    before = _snapshot(tmp_path)
    with pytest.raises(
        UsageError, match=r"of which .*ring\.2\.et and 1 more would stay; .* --force"
    ):
        _put(tmp_path / "ring", SET, _ranks(2))
    assert _snapshot(tmp_path) == before


def test_force_removes_the_other_ranks_and_nothing_else(tmp_path: Path) -> None:
    _put(tmp_path / "ring", SET, _ranks(4, b"old"))
    for other in ("ring.note", "string.3.et"):
        (tmp_path / other).write_bytes(b"other")
    _put(tmp_path / "ring", SET, _ranks(2), force=True)
    assert sorted(_snapshot(tmp_path)) == ["ring.0.et", "ring.1.et", "ring.note", "string.3.et"]


def test_folder_is_made_with_its_sub_folders(tmp_path: Path) -> None:
    _put(
        tmp_path / "out",
        FOLDER,
        [Content("a/b.txt", b"1"), Content("run.sh", b"2", is_executable=True)],
    )
    assert _snapshot(tmp_path) == {
        "out": None,
        "out/a": None,
        "out/a/b.txt": b"1",
        "out/run.sh": b"2",
    }
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)
    assert not os.access(tmp_path / "out" / "a" / "b.txt", os.X_OK)


def test_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"is not empty; .* --force"):
        _put(tmp_path, FOLDER, [Content("x", b"1")])
    _put(tmp_path, FOLDER, [Content("x", b"1")], force=True)
    assert _snapshot(tmp_path) == {"mine": b"mine", "x": b"1"}


@pytest.mark.parametrize(("name", "format"), [("x.txt", FILE), ("ring", SET), ("out", FOLDER)])
def test_interrupt_leaves_everything_as_it_was(tmp_path: Path, name: str, format: Format) -> None:
    contents = {FILE: [Content("", b"new")], SET: _ranks(3), FOLDER: [Content("a/x", b"1")]}[format]
    place = destination(str(tmp_path / "new" / name), format, force=False)
    with pytest.raises(KeyboardInterrupt):
        place.put(_interrupted(contents))
    assert not _snapshot(tmp_path)


def test_failure_half_way_restores_the_old_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(tmp_path / "ring", SET, _ranks(4, b"old"))
    before = _snapshot(tmp_path)
    replace, calls = os.replace, []

    def failing(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 6:
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(UsageError, match=r"ring\.1\.et cannot be written: No space left on device"):
        _put(tmp_path / "ring", SET, _ranks(4))
    assert _snapshot(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(
        UsageError, match="cannot be written: Permission denied; choose a place that can be written"
    ):
        _put(tmp_path / "x.txt", FILE, [Content("", b"new")])
    tmp_path.chmod(0o700)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_refusal_names_the_folder_of_the_user_and_no_hidden_one() -> None:
    with pytest.raises(UsageError, match=r"^/proc cannot be written: "):
        _put(Path("/proc/x.txt"), FILE, [Content("", b"new")])


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    for out, format in (("x/y.txt", FILE), ("x/ring", SET), ("x", FOLDER)):
        with pytest.raises(UsageError, match="cannot be written"):
            _put(
                tmp_path / out,
                format,
                [Content({FILE: "", SET: ".0.et", FOLDER: "z"}[format], b"new")],
            )
    assert _snapshot(tmp_path) == {"x": b"mine"}


@pytest.mark.parametrize("format", [FILE, SET])
def test_folder_in_place_of_a_file_is_refused(tmp_path: Path, format: Format) -> None:
    with pytest.raises(
        UsageError, match=r"is a folder; name a file or prefix in it, such as .*algorithm"
    ):
        destination(f"{tmp_path}/", format, force=True)


def test_only_one_file_goes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert _put("-", FILE, [Content("", b"\x00binary")]) == []
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"\x00binary"
    with pytest.raises(
        UsageError, match="format traces is several files; they cannot go to standard output"
    ):
        destination("-", SET, force=False)


@given(st.text(st.sampled_from("./\\a\0"), max_size=8))
def test_accepted_name_stays_in_its_folder(name: str) -> None:
    if name_defect(name, Layout.FOLDER) is None:
        path = os.path.normpath(os.path.join("/any/out", name))
        assert path.startswith("/any/out/")
        assert path == f"/any/out/{name}"
