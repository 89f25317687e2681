"""Write artifacts completely or not at all: to a scratch folder, then moved or rolled back."""

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

_FORCE_CURE = "choose another place, or overwrite with --force"


@dataclass(frozen=True, slots=True)
class Content:
    """An artifact with its bytes; `name` as in `Artifact`."""

    name: str
    data: bytes
    is_executable: bool = False


def name_defect(name: object, layout: Layout) -> str | None:
    """Return a message if an artifact must not have this name in this layout, else None.

    The permitted names are, by layout:

    - FILE: only the empty text.
    - PREFIX: a `.` that is followed by at least one character, without slashes.
    - FOLDER: a relative path without empty parts, `.` and `..`.

    Backslashes and NUL are never permitted, so that a name cannot leave the folder of the output.
    An object that is not a text always gives a message.
    """
    if isinstance(name, str) and _SAFE_NAMES[layout].match(name):
        return None
    return f"{name!r:.80} does not fit the layout '{layout}'"


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked destination of output:

    a file, prefix or folder; `place` None is standard output.
    """

    place: Path | None
    layout: Layout
    suffixes: tuple[str, ...]
    force: bool

    def put(self, contents: Iterable[Content]) -> tuple[Path, ...]:
        """Write all contents, or none of them; return the paths of the written files in order.

        - Standard output, pipes and devices: all contents are joined and written at once, in
          place. The result is () for standard output, otherwise the given path.
        - FILE: the file is replaced, and the result is the given path. For a symbolic link, the
          file behind it is replaced.
        - PREFIX: files prefix + name. Older rank files that are not replaced are removed with
          `force`; otherwise they are an error.
        - FOLDER: files folder / name. Other files in the folder remain, also with `force`.

        The last three create missing folders. They write each content to a hidden folder as soon
        as the iterator yields it, and move all at the end. On any exception, Ctrl-C and errors of
        the iterator included, new files and folders are removed and previous files restored.

        Raises `UsageError`: `unwritable-output`, or `output-exists` for older rank files without
        `force`. Errors of standard output, pipes and devices are `OSError`, which is not undone.
        """
        if self.place is None:
            sys.stdout.buffer.write(b"".join(content.data for content in contents))
            return ()
        is_file = self.layout is Layout.FILE and self.place.exists()
        if is_file and not stat.S_ISREG(self.place.stat().st_mode):
            # Pipes and devices, such as /dev/null, are written in place.
            self.place.write_bytes(b"".join(content.data for content in contents))
            return (self.place,)
        folder = self.place if self.layout is Layout.FOLDER else self.place.parent
        with _roll_back_on_failure() as undo:
            with _convert_write_errors():
                _make_folders(folder, undo)
            with _create_scratch_folder(folder) as scratch:
                moves = [
                    (_write_staged_file(content, scratch, number), self._get_target(content.name))
                    for number, content in enumerate(contents)
                ]
                targets = tuple(target for _, target in moves)
                with _convert_write_errors(), _roll_back_on_failure() as undo_moves:
                    _move_all(moves, self._find_stale_files(targets), scratch, undo_moves)
        return (self.place,) if self.layout is Layout.FILE else targets

    def _get_target(self, name: str) -> Path:
        assert self.place is not None
        if self.layout is Layout.FOLDER:
            return self.place / name
        if self.layout is Layout.PREFIX:
            return self.place.with_name(self.place.name + name)
        # A link is kept: the file that it refers to is replaced.
        return Path(os.path.realpath(self.place))

    def _find_stale_files(self, targets: Sequence[Path]) -> list[Path]:
        """Return files of an older set of rank files that the new set does not replace, sorted.

        `targets`: files of the new set. The result is empty for other layouts and for standard
        output. Raises `UsageError`, which names the first file, if there are any and `force` is not
        set. Nothing is removed.
        """
        if self.layout is not Layout.PREFIX or self.place is None:
            return []
        stale = sorted(set(rank_files(self.place, self.suffixes)) - set(targets))
        if stale and not self.force:
            more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
            lead = f"{self.place} names another set of rank files already"
            raise _create_refusal(f"{lead}, of which {stale[0]}{more} would stay")
        return stale


def destination(
    out: str | os.PathLike[str], format: Format, *, force: bool, cure: str = _FORCE_CURE
) -> Destination:
    """Check the output path `out` for the layout of `format`; return the destination.

    This happens before any work: nothing is created or written. Files below missing folders are
    accepted. Rules by layout:

    - FILE: `-` is standard output. An existing file is accepted and replaced later, also
      without `force`.
    - PREFIX: the prefix of a set of rank files. A suffix of the format, with an optional rank,
      is removed: `ring`, `ring.et` and `ring.0.et` give `ring`. Existing rank files are only
      checked by `Destination.put`.
    - FOLDER: a folder that is missing or empty, or with `force` any folder. A path that is a
      file is not refused here.

    Raises `UsageError`:

    - `-` with PREFIX or FOLDER, an empty path, or a path with a null character
    - FILE and PREFIX: a path that ends with `/`, or is a folder after the suffix is removed
    - FOLDER: a folder that is not empty, without `force` (`output-exists`, with `cure`)
    - a path that cannot be accessed (`unwritable-output`)
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
    with _convert_write_errors():
        if format.layout is not Layout.FOLDER and (text.endswith("/") or place.is_dir()):
            raise UsageError(
                f"{place} is a folder",
                cure=f"name a file or prefix in it, such as {place / 'algorithm'}",
            )
        if format.layout is Layout.FOLDER and place.is_dir() and any(place.iterdir()) and not force:
            raise _create_refusal(f"the folder {place} is not empty", cure)
    return Destination(place, format.layout, format.suffixes, force)


def _write_staged_file(content: Content, scratch: Path, number: int) -> Path:
    staged = scratch / str(number)
    with _convert_write_errors():
        staged.write_bytes(content.data)
        if content.is_executable:
            mode = staged.stat().st_mode
            staged.chmod(mode | (mode & 0o444) >> 2)
    return staged


_Undo = list[Callable[[], None]]


@contextlib.contextmanager
def _roll_back_on_failure() -> Iterator[_Undo]:
    """Yield a list for undo steps; if the body fails, execute them in reverse order.

    The body appends functions without arguments. Any exception counts as failure, Ctrl-C as well;
    it is raised again. Undo steps that raise `OSError` or `MemoryError` are ignored, and the others
    still run. Without a failure, no step runs.
    """
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
    """Move staged files to their targets, and the files that they replace to `scratch`.

    `moves`: pairs (staged file, target). `stale`: older files without replacement.

    - One pair, no stale files, and the target's folder exists: the target is replaced atomically,
      and nothing is appended to `undo`.
    - Otherwise the stale files, then the existing targets are moved to `scratch`. Then each pair in
      order: missing folders of the target are created, and the file is moved. Before each change,
      the function that reverses it is appended to `undo`.

    Raises `OSError` for a failed change. The caller must then run `undo` in reverse order.
    """
    if len(moves) == 1 and not stale and moves[0][1].parent.is_dir():
        os.replace(*moves[0])
        return
    for number, old in enumerate([*stale, *(target for _, target in moves if target.exists())]):
        # Recorded before the move, so that an interrupt in between loses nothing.
        backup = scratch / f"old-{number}"
        undo.append(partial(_restore_backup, backup, old))
        os.replace(old, backup)
    for staged, target in moves:
        _make_folders(target.parent, undo)
        undo.append(partial(_remove_moved_file, staged, target))
        os.replace(staged, target)


def _restore_backup(backup: Path, old: Path) -> None:
    if backup.exists():
        os.replace(backup, old)


def _remove_moved_file(staged: Path, target: Path) -> None:
    if not staged.exists():
        target.unlink()


def _make_folders(folder: Path, undo: _Undo) -> None:
    """Create a folder and its missing parents; does nothing if the folder exists.

    For every created folder, its removal is appended to `undo`, parents first. An `OSError` is
    raised; the parents that were created before it remain in `undo`.
    """
    if not folder.exists():
        _make_folders(folder.parent, undo)
        # Recorded before the creation, so that lack of memory in between leaves no folder.
        undo.append(folder.rmdir)
        try:
            folder.mkdir()
        except OSError:
            undo.pop()
            raise


@contextlib.contextmanager
def _create_scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a hidden folder in `parent` that exists during the `with` statement.

    Yields its path, `parent/.collhub-` and 12 random hexadecimal digits. The folder and its
    contents are removed after the body, also after an exception. If files cannot be removed,
    they and the folder remain without an error. It is on the file system of the targets, so
    that moves are atomic.

    Raises `UsageError` (`unwritable-output`), which names `parent`, if the folder cannot be
    created, also if `parent` does not exist.
    """
    scratch = parent / f".collhub-{os.urandom(6).hex()}"
    # As text, because its removal then allocates least memory.
    name = str(scratch)
    try:
        with _convert_write_errors(parent):
            scratch.mkdir()
        yield scratch
    finally:
        try:
            _remove(name)
        except MemoryError:
            # Memory may be available now, and no other process removes the folder.
            _remove(name)


def _remove(folder: str) -> None:
    """Remove a folder with its content.

    Files that cannot be removed remain, and so does the folder then; no error is raised, also if
    the folder does not exist.
    """
    try:
        # Usually all staged files have been moved.
        os.rmdir(folder)
    except OSError:
        # Imported here, because it imports three libraries for compression.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _convert_write_errors(folder: Path | None = None) -> Iterator[None]:
    """Convert an `OSError` in the body to a `UsageError` (`unwritable-output`).

    The message names `folder`, if one is given, because users do not know the hidden folder in it,
    otherwise the path of the error.
    """
    try:
        yield
    except OSError as error:
        path = folder or error.filename2 or error.filename or "output"
        message = f"{path} cannot be written: {error.strerror or error}"
        cure = "choose a place that can be written"
        raise UsageError(message, cure=cure, code="unwritable-output") from None


def _create_refusal(message: str, cure: str = _FORCE_CURE) -> UsageError:
    return UsageError(message, cure=cure, code="output-exists")
