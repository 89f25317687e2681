"""Open what users name (a file, standard input, a set of rank files) as bounded sources."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hub_core.model.diagnostics import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api import Format, Layout, Source, SourcePart, decompressed
from hub_core.plugin_api.sources import decompress_head, is_gzip

STANDARD_STREAM = "-"
HEAD_BYTES = 4096
MAX_FILE_BYTES = 4 << 30
MAX_STREAM_BYTES = 1 << 30
MAX_FOLDER_FILES = 1 << 16
MAX_MARKERS = 64
_CHUNK_BYTES = 1 << 20
_READABLE_LAYOUTS = {
    Layout.FILE: (Layout.FILE, Layout.PREFIX),
    Layout.PREFIX: (Layout.PREFIX,),
    Layout.FOLDER: (Layout.FOLDER,),
}

Report = Callable[[Diagnostic], None]


@dataclass(frozen=True, slots=True)
class Input:
    """An opened input: its source, the head (4096 bytes) of its first part, its layout.

    Of a folder, the head of the file that tells its format. `is_gzip`: the first part is a gzip
    archive; the head is then that of its content, while the parts hold the archives.
    """

    source: Source
    head: bytes
    layout: Layout
    is_gzip: bool = False


class _Member(NamedTuple):
    """One file of a set: `PREFIX.<rank><suffix>`, or `PREFIX<rank><suffix>` as in `rank0.et`."""

    rank: int
    file: Path
    prefix: str
    suffix: str


def open_input(path: str | os.PathLike[str], formats: Sequence[Format], report: Report) -> Input:
    """Open a file, standard input (`-`), or a set of files; `formats`: which suffixes make sets.

    A set `PREFIX.<rank><suffix>`, or of files such as `rank0<suffix>`, is named by its prefix, by
    one member, or by a folder that holds no other set. Other folders are opened only for formats
    that are folders. A set in a folder that such a format tells, or in a folder of it, is opened as
    that folder under its own name: what stands beside it may say what the set means. Reads the head
    of the first part; the rest is bounded and read on demand. Raises `InputError` for what is
    missing, empty, unreadable or too large.
    """
    text = os.fspath(path)
    if text == STANDARD_STREAM:
        return _stream(sys.stdin.buffer, "<stdin>", report)
    place = Path(text)
    marker = _marker(place, formats) if place.is_dir() else None
    if marker is not None:
        return _folder(place, str(place), marker, report)
    members = _find_set(place, formats)
    if members and _is_told_as_set(members[0], formats):
        prefix = members[0].file.parent / members[0].prefix
        if (folder := _folder_around(prefix, formats, report)) is not None:
            return folder
        parts = tuple(_part(member.file, member.rank) for member in members)
        source = Source(str(prefix), parts, report)
        return _input(source, _head(members[0].file), Layout.PREFIX)
    if place.is_dir():
        if not any(format.layout is Layout.FOLDER for format in formats):
            raise _no_files(place, "rank files")
        return _folder(place, str(place), b"", report)
    return _single(place, report)


def open_rank_files(paths: Sequence[str], report: Report) -> Input:
    """Open files of any names as the rank files of one job; their contents tell the ranks."""
    parts = tuple(_part(Path(path)) for path in paths)
    return _input(Source(paths[0], parts, report), _head(Path(paths[0])), Layout.PREFIX)


def are_rank_files(paths: Sequence[str], formats: Sequence[Format]) -> bool:
    """Whether files whose names are those of no set are told by their contents to be rank files.

    One format of rank files has the signature of all of them.
    """
    places = [Path(path) for path in paths]
    if len(set(places)) < len(places) or not all(place.is_file() for place in places):
        return False
    if any(_find_set(place, formats) for place in places):
        return False
    heads = [_input(Source("", ()), _head(place), Layout.FILE).head for place in places]
    sets = [format for format in formats if format.layout is Layout.PREFIX]
    return any(all(has_signature(head, format) for head in heads) for format in sets)


def may_read(opened: Input, format: Format) -> bool:
    """Whether a reader of the format can take an input that lies on disk as this one does."""
    return format.layout in _READABLE_LAYOUTS[opened.layout]


def content_of(opened: Input, format: Format) -> Source:
    """The source as a reader of the format gets it: with decompressed parts.

    Raises `InputError` for archives where the format is read uncompressed only.
    """
    if format.accepts_gzip:
        return replace(opened.source, parts=tuple(map(_decompressed_part, opened.source.parts)))
    if opened.is_gzip:
        what = f"is compressed with gzip, but {format.name} is read uncompressed only"
        place = Location(opened.source.parts[0].name)
        raise InputError(what, location=place, cure="decompress it with gunzip", code="gzip")
    return opened.source


def are_one_set(paths: Sequence[str], formats: Sequence[Format]) -> bool:
    """Whether these are all the rank files of one set, which any of them names."""
    return {member.file for member in _find_set(Path(paths[0]), formats)} == set(map(Path, paths))


def set_prefix(path: Path, suffixes: Sequence[str]) -> Path:
    """The prefix that an output path means: `ring`, `ring.et` and `ring.0.et` all mean `ring`."""
    match = re.match(rf"(?P<prefix>.+?)(\.[0-9]+)?{_any_of(suffixes)}\Z", path.name, re.DOTALL)
    return path.with_name(match["prefix"]) if match else path


def rank_files(prefix: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files `PREFIX.<rank><suffix>` that exist, by rank."""
    members = _members(prefix.parent, suffixes)
    return [member.file for member in members if member.prefix == prefix.name]


def _find_set(place: Path, formats: Sequence[Format]) -> list[_Member]:
    """The rank files, by rank, that a prefix, member or folder names; none where it is no set."""
    sets = [format for format in formats if format.layout is Layout.PREFIX]
    suffixes = sorted({suffix for format in sets for suffix in format.suffixes})
    if not suffixes or (place.is_file() and not place.name.endswith(tuple(suffixes))):
        return []
    siblings = [] if place.name in ("", "..") else _members(place.parent, suffixes)
    if place.is_file():
        own = next((member for member in siblings if member.file.name == place.name), None)
        return [m for m in siblings if own and (m.prefix, m.suffix) == (own.prefix, own.suffix)]
    named = [member for member in siblings if member.prefix == place.name]
    return _only_set(place, named or (_members(place, suffixes) if place.is_dir() else []))


def _is_told_as_set(member: _Member, formats: Sequence[Format]) -> bool:
    """Whether files of this name are a set, not single files of another format.

    Where formats of single files have the suffix as well, the content of a member decides.
    """
    sharing = [one for one in formats if member.file.name.lower().endswith(one.suffixes)]
    if all(one.layout is Layout.PREFIX for one in sharing):
        return True
    head = _input(Source("", ()), _head(member.file), Layout.PREFIX).head
    sets = [one for one in sharing if one.layout is Layout.PREFIX]
    return any(has_signature(head, one) for one in sets)


def _members(folder: Path, suffixes: Sequence[str]) -> list[_Member]:
    """Every file of a folder that has a rank in its name, by rank."""
    pattern = re.compile(
        rf"(?P<prefix>.+(?=\.)|(?:.*[^a-z])?rank[-_]?)\.?(?P<rank>0|[1-9][0-9]{{0,6}})"
        rf"(?P<suffix>{_any_of(suffixes)})\Z",
        re.DOTALL,
    )
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return []
    found = filter(None, map(pattern.match, names))
    return sorted(
        _Member(int(m["rank"]), folder / m.string, m["prefix"], m["suffix"]) for m in found
    )


def _only_set(place: Path, members: list[_Member]) -> list[_Member]:
    sets = sorted({(member.prefix, member.suffix) for member in members})
    if len(sets) > 1:
        folder = members[0].file.parent
        names = ", ".join(str(folder / f"{prefix}.0{suffix}") for prefix, suffix in sets[:6])
        message = f"names {len(sets)} sets of rank files"
        raise _fault(str(place), message, f"name one by a member: {names}")
    return members


def _any_of(suffixes: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, suffixes))})"


def _single(place: Path, report: Report) -> Input:
    file = _open(place)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return _stream(file, str(place), report, is_ours=True)
    file.close()
    return _input(Source(str(place), (_part(place),), report), _head(place), Layout.FILE)


def _input(source: Source, head: bytes, layout: Layout) -> Input:
    """The input of a source; `head`: the first bytes as they are stored."""
    if is_gzip(head):
        return Input(source, decompress_head(head), layout, is_gzip=True)
    return Input(source, head, layout)


def _marker(folder: Path, formats: Sequence[Format]) -> bytes | None:
    """The head of the file in a folder that tells which format the folder is, None without one."""
    tellers = [f for f in formats if f.layout is Layout.FOLDER and f.signature]
    suffixes = tuple({suffix for format in tellers for suffix in format.suffixes})
    if not suffixes:
        return None
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
        for file in filter(Path.is_file, (folder / name for name in names[:MAX_MARKERS])):
            with open(file, "rb") as opened:
                head = opened.read(HEAD_BYTES)
            if any(has_signature(head, format) for format in tellers):
                return head
    # Whatever cannot be looked at tells nothing; if it is the input itself, opening it says why.
    except (OSError, ValueError):
        return None
    return None


def _folder_around(prefix: Path, formats: Sequence[Format], report: Report) -> Input | None:
    """The folder that a set lies in, or whose folder it lies in; None where no file tells one."""
    for around in (prefix.parent, prefix.parent.parent):
        marker = _marker(around, formats)
        if marker is None:
            continue
        try:
            return _folder(around, str(prefix), marker, report)
        except InputError as error:
            # The set can be read all the same.
            found = error.diagnostics[0]
            message = f"{found.message}, and is not looked at for what the rank files mean"
            report(replace(found, message=message, severity=Severity.WARNING))
            return None
    return None


def has_signature(head: bytes, format: Format) -> bool:
    """Whether the first bytes of a file are those of a format."""
    return bool(format.signature) and re.search(format.signature, head) is not None


def _folder(place: Path, name: str, head: bytes, report: Report) -> Input:
    """All files of a folder, under the name that the user gave; `head`: of the file that tells."""
    found = itertools.islice(
        (file for file in place.rglob("*") if file.is_file()), MAX_FOLDER_FILES + 1
    )
    files = sorted(found)
    if len(files) > MAX_FOLDER_FILES:
        raise _fault(
            str(place),
            f"holds more than {MAX_FOLDER_FILES} files",
            "name a folder with fewer files, or the format with --from",
        )
    if not files:
        raise _no_files(place, "files")
    return Input(Source(name, tuple(map(_part, files)), report), head, Layout.FOLDER)


def _no_files(place: Path, what: str) -> InputError:
    cure = "name one file, or a set of rank files by its prefix"
    return _fault(str(place), f"is a folder without {what}", cure)


def _part(file: Path, rank: int | None = None) -> SourcePart:
    with _read_errors(str(file)):
        size = file.stat().st_size
    return SourcePart(str(file), partial(_load, file), rank, size, partial(_open_part, file))


def _open_part(file: Path) -> BinaryIO:
    """A file as a stream; one that is not a regular file is loaded."""
    opened = _open(file)
    status = os.fstat(opened.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return opened
    opened.close()
    return io.BytesIO(_load(file))


def _decompressed_part(part: SourcePart) -> SourcePart:
    """The part with its content in place of an archive; `load` gives at most 4 GiB of it."""

    def open_content() -> BinaryIO:
        return decompressed(part.stream(), part.name)

    def load() -> bytes:
        with open_content() as content:
            return _bounded(content, part.name, b"", MAX_FILE_BYTES)

    return replace(part, load=load, open=open_content, size=None)


def _load(file: Path) -> bytes:
    """All bytes of a file of at most 4 GiB."""
    name = str(file)
    with _open(file) as opened, _read_errors(name):
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return _bounded(opened, name, b"")
        if os.fstat(opened.fileno()).st_size > MAX_FILE_BYTES:
            message = f"is larger than {MAX_FILE_BYTES >> 30} GiB"
            raise _fault(name, message, "split it, or name another file")
        content = opened.read()
    if not content:
        raise _fault(name, "is empty", "name a file with content")
    return content


def _stream(file: BinaryIO, name: str, report: Report, is_ours: bool = False) -> Input:
    """A source of one part from a pipe: the head is read now, the rest once, when it is loaded."""
    try:
        with _read_errors(name):
            head = file.read(HEAD_BYTES)
        _check_head(name, head)
    except InputError:
        if is_ours:
            file.close()
        raise
    read: list[bytes] = []

    def load() -> bytes:
        if not read:
            read.append(_bounded(file, name, head))
            if is_ours:
                file.close()
        return read[0]

    return _input(Source(name, (SourcePart(name, load),), report), head, Layout.FILE)


def _bounded(file: BinaryIO, name: str, head: bytes, limit: int = MAX_STREAM_BYTES) -> bytes:
    """`head` and all that follows it, at most `limit` bytes: a stream does not give its length."""
    content = io.BytesIO()
    content.write(head)
    while chunk := file.read(_CHUNK_BYTES):
        content.write(chunk)
        if content.tell() > limit:
            message = f"gives more than {limit >> 30} GiB"
            raise _fault(name, message, "save it as a file and name that")
    return content.getvalue()


def _head(file: Path) -> bytes:
    with _open(file) as opened, _read_errors(str(file)):
        head = opened.read(HEAD_BYTES)
    _check_head(str(file), head)
    return head


def _check_head(name: str, head: bytes) -> None:
    if not head:
        raise _fault(name, "is empty", "name a file with content")
    # A file of zeros, however large, is refused before it is read into memory.
    if len(head) == HEAD_BYTES and not any(head):
        message = f"begins with {HEAD_BYTES} zero bytes, as no format does"
        raise _fault(name, message, "write the file again")


def _open(file: Path) -> BinaryIO:
    with _read_errors(str(file)):
        return open(file, "rb")


@contextlib.contextmanager
def _read_errors(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        what = "there is no such file or set of rank files"
        raise _fault(name, what, "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cure = "check the path and its permissions"
        raise _fault(name, f"cannot be read: {reason}", cure) from None


def _fault(name: str, what: str, cure: str) -> InputError:
    return InputError(what, location=Location(name), cure=cure, code="unreadable-input")
