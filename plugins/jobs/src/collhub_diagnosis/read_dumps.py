"""Read the dumps of a job: files or folders, one file per rank, pickle or JSON."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from collhub_diagnosis.dump_entries import MAX_RANK, parse_dump
from collhub_diagnosis.pickle_values import parse_pickle
from collhub_diagnosis.records import Dump, Records, Tables
from hub_core import parse_json_object
from hub_core.model import InputError, Location

MAX_FILE_BYTES = 1 << 27
MAX_FILES = 1 << 17

_RANK = re.compile(r"(\d{1,12})(?:\.(?:json|pkl|pickle|bin|dump))?\Z", re.ASCII)
_NO_RANK = "a dump is named PREFIX and its rank, for example comm_lib_trace_rank_0"


def read_dumps(paths: Sequence[str]) -> Records:
    """Return the operations of all ranks. A folder gives its files whose names end with a rank.

    Raises `InputError` for files that are not dumps and for two files of one rank.
    """
    files = [file for path in paths for file in _files(path)]
    tables, dumps = Tables(), dict[int, Dump]()
    with _no_cycle_search():
        _read_all(files, tables, dumps)
    return Records(dumps, tables)


def _read_all(files: Sequence[str], tables: Tables, dumps: dict[int, Dump]) -> None:
    for file in files:
        rank = rank_of(file)
        if rank in dumps:
            message = f"two dumps of rank {rank}: the other one is {dumps[rank].file}"
            raise InputError(
                message,
                location=Location(file),
                code="duplicate-rank",
                cure="name the files of one job",
            )
        dumps[rank] = read_dump(file, rank, tables)


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Suspend the search for unreachable cycles: dumps have none, and it takes much time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rank_of(file: str) -> int:
    """Return the rank that the name of a dump ends with. Raises `InputError` without one."""
    match = _RANK.search(Path(file).name)
    if match is None or int(match[1]) > MAX_RANK:
        message = "the name of the file does not end with a rank"
        raise InputError(message, location=Location(file), code="no-rank", cure=_NO_RANK)
    return int(match[1])


def read_dump(file: str, rank: int, tables: Tables) -> Dump:
    """Read one file; pickles and JSON are distinguished by the first byte."""
    try:
        size = Path(file).stat().st_size
        if size > MAX_FILE_BYTES:
            message = f"the file has {size} bytes; at most {MAX_FILE_BYTES} are read"
            raise InputError(message, location=Location(file), code="too-large")
        content = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file}: {reason}", code="not-readable") from None
    start = content[:64].lstrip()
    if start[:1] == b"{":
        root: object = parse_json_object(content, file)
    elif content[:1] in (b"\x80", b"}", b"("):
        root = parse_pickle(content, file)
    else:
        message = "this is neither a pickle nor a JSON object" if content else "the file is empty"
        cure = "name Flight Recorder dumps, one file per rank"
        raise InputError(message, location=Location(file), code="invalid-dump", cure=cure)
    return parse_dump(root, rank, file, tables)


def _files(path: str) -> list[str]:
    """The dumps of a folder by rank and name, or the file itself."""
    try:
        if not Path(path).is_dir():
            return [path]
        names = [one for one in Path(path).iterdir() if one.is_file() and _RANK.search(one.name)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}", code="not-readable") from None
    if not names:
        message = "the folder has no file whose name ends with a rank"
        raise InputError(message, location=Location(path), code="no-dumps", cure=_NO_RANK)
    if len(names) > MAX_FILES:
        raise InputError(f"{path}: more than {MAX_FILES} files", code="too-large")
    ordered = sorted(names, key=lambda one: (rank_of(str(one)), one.name))
    return [str(one) for one in ordered]
