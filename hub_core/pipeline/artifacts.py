"""Put artifacts on disk all or nothing: written beside their place, then moved or taken back."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hub_core.model.diagnostics import UsageError
from hub_core.pipeline.sources import STANDARD_STREAM, rank_files, set_prefix
from hub_core.plugin_api.formats import Format, Layout

_SAFE_NAMES = {
    Layout.FILE: re.compile(r"\Z"),
    Layout.PREFIX: re.compile(r"\.[^/\\\0]+\Z"),
    Layout.FOLDER: re.compile(r"(?!\.\.?(/|\Z))[^/\\\0]+(/(?!\.\.?(/|\Z))[^/\\\0]+)*\Z"),
}


@dataclass(frozen=True, slots=True)
class Content:
    """One artifact with its bytes; `name` as in `contract.Artifact`."""

    name: str
    data: bytes
    is_executable: bool = False


def name_defect(name: object, layout: Layout) -> str | None:
    """Why an artifact may not have this name, or None; no name leads out of its place."""
    if isinstance(name, str) and _SAFE_NAMES[layout].match(name):
        return None
    return f"{name!r:.80} does not fit the layout '{layout}'"


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked `place` for output: a file, prefix or folder; None is standard output."""

    place: Path | None
    layout: Layout
    suffixes: tuple[str, ...]
    force: bool

    def put(self, contents: Iterable[Content]) -> tuple[Path, ...]:
        """Write everything or nothing, and return the paths in order; empty for standard output.

        Each content is written as soon as it comes. On failure and on Ctrl-C nothing new is left
        behind, and what stood there stands. Raises `UsageError` where the place cannot be written
        or would mix two sets.
        """
        if self.place is None:
            sys.stdout.buffer.write(b"".join(content.data for content in contents))
            return ()
        if self._is_device():
            self.place.write_bytes(b"".join(content.data for content in contents))
            return (self.place,)
        folder = self.place if self.layout is Layout.FOLDER else self.place.parent
        with _undone_on_failure() as undo:
            with _write_errors():
                _make_folders(folder, undo)
            with _scratch_folder(folder) as scratch:
                moves = [
                    (_stage(content, scratch, number), self._target(content.name))
                    for number, content in enumerate(contents)
                ]
                targets = tuple(target for _, target in moves)
                with _write_errors(), _undone_on_failure() as undo_moves:
                    _move_all(moves, self._stale(targets), scratch, undo_moves)
        return (self.place,) if self.layout is Layout.FILE else targets

    def _is_device(self) -> bool:
        """Whether the file is a pipe or a device such as /dev/null, which is never replaced."""
        if self.place is None or self.layout is not Layout.FILE or not self.place.exists():
            return False
        return not stat.S_ISREG(self.place.stat().st_mode)

    def _target(self, name: str) -> Path:
        assert self.place is not None
        if self.layout is Layout.FOLDER:
            return self.place / name
        if self.layout is Layout.PREFIX:
            return self.place.with_name(self.place.name + name)
        # A link keeps pointing to the file that it names.
        return Path(os.path.realpath(self.place))

    def _stale(self, targets: Sequence[Path]) -> list[Path]:
        """Files of an older set under the same prefix that the new one does not replace."""
        if self.layout is not Layout.PREFIX or self.place is None:
            return []
        stale = sorted(set(rank_files(self.place, self.suffixes)) - set(targets))
        if stale and not self.force:
            more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
            there = f"{self.place} names another set of rank files already"
            raise _refusal(f"{there}, of which {stale[0]}{more} would stay")
        return stale


def destination(out: str | os.PathLike[str], format: Format, *, force: bool) -> Destination:
    """Check where output shall go before any work is done.

    FILE: a file, replaced if it exists. PREFIX: a set of files; one that has other ranks is
    refused. FOLDER: a new or empty folder. With `force`, the other ranks of a set are removed, and
    files are replaced in a folder that has others. Missing folders are made. Raises `UsageError`.
    """
    text = os.fspath(out)
    if text == STANDARD_STREAM:
        if format.layout is not Layout.FILE:
            message = f"format {format.name} is several files; they cannot go to standard output"
            raise UsageError(message, cure="name a path")
        return Destination(None, format.layout, format.suffixes, force)
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not a path", cure="name a path for the output")
    place = Path(text)
    if format.layout is Layout.PREFIX:
        place = set_prefix(place, format.suffixes)
    with _write_errors():
        if format.layout is not Layout.FOLDER and (text.endswith("/") or place.is_dir()):
            raise UsageError(
                f"{place} is a folder",
                cure=f"name a file or prefix in it, such as {place / 'algorithm'}",
            )
        if format.layout is Layout.FOLDER and place.is_dir() and any(place.iterdir()) and not force:
            raise _refusal(f"the folder {place} is not empty")
    return Destination(place, format.layout, format.suffixes, force)


def _stage(content: Content, scratch: Path, number: int) -> Path:
    staged = scratch / str(number)
    with _write_errors():
        staged.write_bytes(content.data)
        if content.is_executable:
            mode = staged.stat().st_mode
            staged.chmod(mode | (mode & 0o444) >> 2)
    return staged


_Undo = list[Callable[[], None]]


@contextlib.contextmanager
def _undone_on_failure() -> Iterator[_Undo]:
    """Where the body fails or is interrupted, take back its steps, the last one first."""
    undo: _Undo = []
    try:
        yield undo
    except BaseException:
        for step in reversed(undo):
            with contextlib.suppress(OSError, MemoryError):
                step()
        raise


def _move_all(
    moves: Sequence[tuple[Path, Path]], stale: Sequence[Path], scratch: Path, undo: _Undo
) -> None:
    """Move staged files to their targets and stale ones away."""
    if len(moves) == 1 and not stale and moves[0][1].parent.is_dir():
        os.replace(*moves[0])
        return
    for number, old in enumerate([*stale, *(target for _, target in moves if target.exists())]):
        # Noted before it is done, so that an interrupt in between loses nothing.
        kept = scratch / f"old-{number}"
        undo.append(partial(_move_back, kept, old))
        os.replace(old, kept)
    for staged, target in moves:
        _make_folders(target.parent, undo)
        undo.append(partial(_take_back, staged, target))
        os.replace(staged, target)


def _move_back(kept: Path, old: Path) -> None:
    if kept.exists():
        os.replace(kept, old)


def _take_back(staged: Path, target: Path) -> None:
    if not staged.exists():
        target.unlink()


def _make_folders(folder: Path, undo: _Undo) -> None:
    """Make a folder, and its parents, where they are missing."""
    if not folder.exists():
        _make_folders(folder.parent, undo)
        # Noted before it is done, so that lack of memory in between leaves no folder.
        undo.append(folder.rmdir)
        try:
            folder.mkdir()
        except OSError:
            undo.pop()
            raise


@contextlib.contextmanager
def _scratch_folder(parent: Path) -> Iterator[Path]:
    """A hidden folder on the same file system as the targets, gone afterwards."""
    scratch = parent / f".collhub-{os.urandom(6).hex()}"
    # As a text, whose removal allocates least.
    name = str(scratch)
    try:
        with _write_errors():
            scratch.mkdir()
        yield scratch
    finally:
        try:
            _remove(name)
        except MemoryError:
            # The lack may have passed, and no other process removes the folder.
            _remove(name)


def _remove(folder: str) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    try:
        # All that was staged has been moved to its place, most often.
        os.rmdir(folder)
    except OSError:
        # Imported here: it brings three libraries for compression.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename2 or error.filename or "output"
        message = f"{place} cannot be written: {error.strerror or error}"
        cure = "choose a place that can be written"
        raise UsageError(message, cure=cure, code="unwritable-output") from None


def _refusal(what: str) -> UsageError:
    cure = "choose another place, or overwrite with --force"
    return UsageError(what, cure=cure, code="output-exists")
