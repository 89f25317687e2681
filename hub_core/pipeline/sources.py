"""Open files, standard input, folders and sets of rank files as sources of bounded size."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hub_core.model.diagnostics import Diagnostic, InputError, Location, Severity
from hub_core.pipeline.bounded_reads import (
    HEAD_BYTES,
    check_head,
    convert_read_errors,
    create_part,
    create_read_error,
    decompress_part,
    open_file,
    read_bounded,
    read_head,
)
from hub_core.plugin_api import Format, Layout, Source, SourcePart
from hub_core.plugin_api.formats import decompress_head, is_gzip

STANDARD_STREAM = "-"
MAX_FOLDER_FILES = 1 << 16
MAX_MARKERS = 64
_READABLE_LAYOUTS = {
    Layout.FILE: (Layout.FILE, Layout.PREFIX),
    Layout.PREFIX: (Layout.PREFIX,),
    Layout.FOLDER: (Layout.FOLDER,),
}

Report = Callable[[Diagnostic], None]


@dataclass(frozen=True, slots=True)
class Input:
    """An opened input: its source, the head (4096 bytes) of its first part, and its layout.

    For a folder, the head is that of the file that determines its format. `is_gzip`: the first part
    is a gzip archive; the head is then decompressed, but the parts are archives.
    """

    source: Source
    head: bytes
    layout: Layout
    is_gzip: bool = False


class _Member(NamedTuple):
    """A file of a set: `PREFIX.<rank><suffix>`, or `PREFIX<rank><suffix>` such as `rank0.et`."""

    rank: int
    file: Path
    prefix: str
    suffix: str


def open_input(path: str | os.PathLike[str], formats: Sequence[Format], report: Report) -> Input:
    """Open a file, folder, set of rank files or standard input (`-`); read only the first bytes.

    A set has all files `PREFIX.<rank><suffix>` or `rank<rank><suffix>` of a folder, with a suffix
    of a rank format (and its signature in the first file if another layout has this suffix too).
    `path` is the prefix, a member, or a folder with one set. The first case decides:
    1. A folder with a file that has the signature of a folder format: all files, also below it.
    2. A set in such a folder or its direct subfolder: all files of the folder, named by the prefix.
       If this fails, `report` gets a warning, and case 3 applies.
    3. A set: one part per file, by rank, with the first bytes of the first. 4. Another folder: all
       its files, `InputError` without a folder format. 5. Otherwise: one file, or a pipe.
    `InputError`: several sets, a folder of over 65536 files, missing, empty, unreadable, zeros.
    """
    text = os.fspath(path)
    if text == STANDARD_STREAM:
        return _open_stream(sys.stdin.buffer, "<stdin>", report)
    path_object = Path(text)
    marker = _find_marker(path_object, formats) if path_object.is_dir() else None
    if marker is not None:
        return _open_folder(path_object, str(path_object), marker, report)
    members = _find_set(path_object, formats)
    if members and _is_set(members[0], formats):
        prefix = members[0].file.parent / members[0].prefix
        if (folder := _find_enclosing_folder(prefix, formats, report)) is not None:
            return folder
        parts = tuple(create_part(member.file, member.rank) for member in members)
        source = Source(str(prefix), parts, report)
        return _create_input(source, read_head(members[0].file), Layout.PREFIX)
    if path_object.is_dir():
        if not any(format.layout is Layout.FOLDER for format in formats):
            raise _create_empty_folder_error(path_object, "rank files")
        return _open_folder(path_object, str(path_object), b"", report)
    file = open_file(path_object)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return _open_stream(file, text, report, is_ours=True)
    file.close()
    source = Source(text, (create_part(path_object),), report)
    return _create_input(source, read_head(path_object), Layout.FILE)


def open_rank_files(paths: Sequence[str], report: Report) -> Input:
    """Open files as the rank files of one job, independently of their names.

    The reader finds the ranks in the contents. The first of `paths` (at least one) gives the name
    and the head. Raise `InputError` for a file that does not exist or cannot be examined, and if
    the first file cannot be read, is empty or begins with 4096 zero bytes.
    """
    parts = tuple(create_part(Path(path)) for path in paths)
    return _create_input(Source(paths[0], parts, report), read_head(Path(paths[0])), Layout.PREFIX)


def are_rank_files(paths: Sequence[str], formats: Sequence[Format]) -> bool:
    """Return whether files are rank files of one job, of which others may be missing.

    The rules apply in this order:
    - False if a file is repeated or missing, and for all files of one set (`are_one_set`).
    - If the name and content of a file make it a member of a set of rank files: True if all are
      members with one prefix and different ranks, such as `job.1.et` and `job.3.et`.
    - True if one format of rank files has its signature in every file (first 4096 bytes,
      decompressed); otherwise False.
    Raises `InputError` for a file that is empty, unreadable or begins with 4096 zero bytes.
    """
    places = [Path(path) for path in paths]
    if len(set(places)) < len(places) or not all(file.is_file() for file in places):
        return False
    found = [_find_set(file, formats) for file in places]
    members = [
        one
        for members in found
        if members and _is_set(members[0], formats)
        for one in members
        if one.file in places
    ]
    if members:
        prefixes = {(one.file.parent, one.prefix) for one in members}
        is_one_job = len(prefixes) == 1 and len({one.rank for one in members}) == len(places)
        return is_one_job and not are_one_set(paths, formats)
    heads = [_create_input(Source("", ()), read_head(file), Layout.FILE).head for file in places]
    sets = [format for format in formats if format.layout is Layout.PREFIX]
    return any(all(has_signature(head, format) for head in heads) for format in sets)


def may_read(opened: Input, format: Format) -> bool:
    """Whether a reader of the format can read an input with this layout."""
    return format.layout in _READABLE_LAYOUTS[opened.layout]


def content_of(opened: Input, format: Format) -> Source:
    """Return the source for a reader of the format; if it accepts gzip, with decompressed parts.

    Parts that are not compressed are read as they are. If the format does not accept gzip, raises
    `InputError` (code `gzip`) for a compressed first part.
    """
    if format.accepts_gzip:
        return replace(opened.source, parts=tuple(map(decompress_part, opened.source.parts)))
    if opened.is_gzip:
        message = f"is compressed with gzip, but {format.name} is read uncompressed only"
        location = Location(opened.source.parts[0].name)
        raise InputError(message, location=location, cure="decompress it with gunzip", code="gzip")
    return opened.source


def are_one_set(paths: Sequence[str], formats: Sequence[Format]) -> bool:
    """Return whether `paths` are all files of one set of rank files, by names and content.

    `paths`: at least one, in any order. The set is that of the first one. Raises `InputError` if
    that names several sets (`_find_set`), or is unreadable and its content decides (`_is_set`).
    """
    members = _find_set(Path(paths[0]), formats)
    is_whole = {member.file for member in members} == set(map(Path, paths))
    return is_whole and (not members or _is_set(members[0], formats))


def set_prefix(path: Path, suffixes: Sequence[str]) -> Path:
    """Return the prefix of an output path: `ring` for `ring`, `ring.et` and `ring.0.et`.

    `suffixes`: those of the format, here `.et`. The folder of the path remains, and so does a name
    without such a suffix.
    """
    match = re.match(
        rf"(?P<prefix>.+?)(\.[0-9]+)?{_create_pattern(suffixes)}\Z", path.name, re.DOTALL
    )
    return path.with_name(match["prefix"]) if match else path


def rank_files(prefix: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the entries `PREFIX.<rank><suffix>` in the folder of `prefix`, by rank, then path.

    `suffixes`: permitted suffixes of the format. A prefix such as `rank` may also precede the rank
    without a point, as in `rank0.et`. Missing ranks are not detected. [] without such entries, and
    if the folder is missing or unreadable.
    """
    members = _find_members(prefix.parent, suffixes)
    return [member.file for member in members if member.prefix == prefix.name]


def _find_set(path: Path, formats: Sequence[Format]) -> list[_Member]:
    """Find the set of rank files that a path names, ordered by rank; [] if it names none.

    A set has all members of a folder (`_find_members`) with one prefix and one suffix. Only
    suffixes of formats with the layout PREFIX are considered. The first case that applies:
    1. `path` is a file: the set of its folder that contains it; [] if it is in none.
    2. Sets in the folder of `path` have its last part as prefix: this set.
    3. `path` is a folder: the set in it. 4. Otherwise: [].

    Raises `InputError` if case 2 or 3 gives several sets.
    """
    sets = [format for format in formats if format.layout is Layout.PREFIX]
    suffixes = sorted({suffix for format in sets for suffix in format.suffixes})
    if not suffixes or (path.is_file() and not path.name.endswith(tuple(suffixes))):
        return []
    siblings = [] if path.name in ("", "..") else _find_members(path.parent, suffixes)
    if path.is_file():
        named_member = next((member for member in siblings if member.file.name == path.name), None)
        return [
            m
            for m in siblings
            if named_member and (m.prefix, m.suffix) == (named_member.prefix, named_member.suffix)
        ]
    members = [member for member in siblings if member.prefix == path.name]
    if not members and path.is_dir():
        members = _find_members(path, suffixes)
    first_files = {(member.prefix, member.suffix): member.file for member in reversed(members)}
    keys = sorted(first_files)
    if len(keys) > 1:
        names = ", ".join(str(first_files[key]) for key in keys[:6])
        message = f"names {len(keys)} sets of rank files"
        raise create_read_error(str(path), message, f"name one by a member: {names}")
    return members


def _is_set(member: _Member, formats: Sequence[Format]) -> bool:
    """Return whether `member` belongs to a set of rank files, rather than being a single file.

    True if all formats with the suffix of its name (in any case) are formats of rank files.
    Otherwise True if its first 4096 bytes, decompressed if necessary, have the signature of one of
    these rank formats. Only then the file is read; raises `InputError` if that fails.
    """
    sharing = [
        candidate for candidate in formats if member.file.name.lower().endswith(candidate.suffixes)
    ]
    if all(candidate.layout is Layout.PREFIX for candidate in sharing):
        return True
    head = _create_input(Source("", ()), read_head(member.file), Layout.PREFIX).head
    sets = [candidate for candidate in sharing if candidate.layout is Layout.PREFIX]
    return any(has_signature(head, candidate) for candidate in sets)


def _find_members(folder: Path, suffixes: Sequence[str]) -> list[_Member]:
    """Return all entries of a folder with a rank in the name, such as `ring.0.et`, by rank.

    A name is a prefix, the rank, and one of `suffixes`. The rank has up to 7 digits, no leading 0.
    The prefix is any text before a `.`, or text that ends with `rank`, `rank-` or `rank_` not after
    a lower-case letter: `rank0.et`, not `frank0.et`. Entries of one rank are sorted by path;
    several sets are not separated. [] if the folder is missing or unreadable.
    """
    pattern = re.compile(
        rf"(?P<prefix>.+(?=\.)|(?:.*[^a-z])?rank[-_]?)\.?(?P<rank>0|[1-9][0-9]{{0,6}})"
        rf"(?P<suffix>{_create_pattern(suffixes)})\Z",
        re.DOTALL,
    )
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return []
    matches = filter(None, map(pattern.match, names))
    return sorted(
        _Member(int(m["rank"]), folder / m.string, m["prefix"], m["suffix"]) for m in matches
    )


def _create_pattern(suffixes: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, suffixes))})"


def _create_input(source: Source, head: bytes, layout: Layout) -> Input:
    """Create the input of a source; `head`: its first bytes as stored.

    The head of a gzip archive is decompressed, may then be empty, and the input is marked as gzip.
    """
    if is_gzip(head):
        return Input(source, decompress_head(head), layout, is_gzip=True)
    return Input(source, head, layout)


def _find_marker(folder: Path, formats: Sequence[Format]) -> bytes | None:
    """Return the first 4096 bytes of the file in a folder that identifies a folder format.

    Of the entries with a suffix of a folder format that has a signature, the first `MAX_MARKERS` by
    name are read; the first file with a signature of any of these formats is used. None if there is
    no such file, or if a file read before it or the folder cannot be read.
    """
    markers = [f for f in formats if f.layout is Layout.FOLDER and f.signature]
    suffixes = tuple({suffix for format in markers for suffix in format.suffixes})
    if not suffixes:
        return None
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
        for file in filter(Path.is_file, (folder / name for name in names[:MAX_MARKERS])):
            with open(file, "rb") as opened:
                head = opened.read(HEAD_BYTES)
            if any(has_signature(head, format) for format in markers):
                return head
    # Unreadable files are ignored here. If the folder is the input, opening it reports the error.
    except (OSError, ValueError):
        return None
    return None


def _find_enclosing_folder(prefix: Path, formats: Sequence[Format], report: Report) -> Input | None:
    """Open the folder of a folder format that contains a set of rank files; None if there is none.

    The folder of the set is examined first, then its parent. The first one that has the identifying
    file of such a format is opened, under the name `prefix`. If it cannot be opened, a warning is
    reported, and None is returned because the set can be read without it.
    """
    for folder in (prefix.parent, prefix.parent.parent):
        marker = _find_marker(folder, formats)
        if marker is None:
            continue
        try:
            return _open_folder(folder, str(prefix), marker, report)
        except InputError as error:
            # The set can be read without the folder.
            finding = error.diagnostics[0]
            message = f"{finding.message}, and is not looked at for what the rank files mean"
            report(replace(finding, message=message, severity=Severity.WARNING))
            return None
    return None


def has_signature(head: bytes, format: Format) -> bool:
    """Return whether the signature of a format occurs in the first bytes of a file.

    The signature is a regular expression, which is searched anywhere in `head`, after a UTF-8 byte
    order mark at its start. The result is False for a format without a signature.
    """
    start = head.removeprefix(codecs.BOM_UTF8)
    return bool(format.signature) and re.search(format.signature, start) is not None


def _open_folder(path: Path, name: str, head: bytes, report: Report) -> Input:
    """Open all files below a folder, sorted by path, as one input named `name`.

    Files in folders below it are included, and are loaded on demand. `head`: first bytes of the
    file that identifies the format, b"" if none does. `report` gets the findings of later reads.
    Raises `InputError` for a folder without files or with more than `MAX_FOLDER_FILES` (65536).
    """
    files = sorted(
        itertools.islice((file for file in path.rglob("*") if file.is_file()), MAX_FOLDER_FILES + 1)
    )
    if len(files) > MAX_FOLDER_FILES:
        raise create_read_error(
            str(path),
            f"holds more than {MAX_FOLDER_FILES} files",
            "name a folder with fewer files, or the format with --from",
        )
    if not files:
        raise _create_empty_folder_error(path, "files")
    return Input(Source(name, tuple(map(create_part, files)), report), head, Layout.FOLDER)


def _create_empty_folder_error(path: Path, missing: str) -> InputError:
    cure = "name one file, or a set of rank files by its prefix"
    return create_read_error(str(path), f"is a folder without {missing}", cure)


def _open_stream(file: BinaryIO, name: str, report: Report, is_ours: bool = False) -> Input:
    """Create a source of one part from a pipe; loading it again returns the same bytes.

    At most 4096 bytes are read now (the first read), the rest when the source is first loaded.
    `is_ours`: close the file after the first successful load, and if this function raises
    `InputError`; it stays open if loading fails. `report`: for later findings.

    Raises `InputError` for a stream that is empty, begins with 4096 zero bytes, or cannot be read.
    Loading raises it for more than 1 GiB; other errors of reading are not converted then.
    """
    try:
        with convert_read_errors(name):
            head = file.read(HEAD_BYTES)
        check_head(name, head)
    except InputError:
        if is_ours:
            file.close()
        raise
    read: list[bytes] = []

    def load() -> bytes:
        if not read:
            read.append(read_bounded(file, name, head))
            if is_ours:
                file.close()
        return read[0]

    return _create_input(Source(name, (SourcePart(name, load),), report), head, Layout.FILE)
