"""Read the evidence of a hang: dumps of ranks, and the output of NCCL's RAS and Inspector."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collhub_waits.records import Dump, Records, SharedTables

from collhub_diagnosis.dump_entries import MAX_RANK, parse_dump
from collhub_diagnosis.nccl_evidence import (
    NcclEvidence,
    RasReport,
    combine_evidence,
    correct_ras_json,
    is_ras_report,
    is_ras_text,
    parse_ras,
    read_inspector,
)
from collhub_diagnosis.pickle_values import parse_pickle
from hub_core import parse_json_object
from hub_core.model import InputError, Location

MAX_FILE_BYTES = 1 << 27
MAX_FILES = 1 << 17

_NUMBER = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|dump))?\Z", re.ASCII)
# Scripts that write dumps of several iterations append the iteration: `_dump_3_iter120.json`.
_ITERATION = re.compile(
    r"[._-]?(?<![a-z])(?:iter|iteration|step)[._-]?\d+(?=(?:\.[a-z]+)?\Z)", re.ASCII | re.IGNORECASE
)
# A chunk of a dump that a rank writes from time to time: `_dump_3_0012.json` is chunk 12 of rank 3.
_CHUNK = re.compile(r"\A(_dump_\d+)_\d{4,}(?=\.json\Z)", re.ASCII)
_INSPECTOR_FILE = re.compile(r"-pid\d+\.log\Z", re.ASCII)
# The keys of a line of the Inspector; dumps and RAS output have others.
_INSPECTOR_LINE = re.compile(rb'\s*\{\s*"header"\s*:')
# First members of dumps in JSON, of RAS output, and of lines of the Inspector.
_EVIDENCE_KEY = re.compile(
    rb'\{\s*"(?:version|entries|pg_config|pg_status|comm_lib_version|nccl_version|nccl_comm_state'
    rb'|hccl_comm_state|header|cuda_runtime_version|communicators)"\s*:'
)
_PICKLE_STARTS = (b"\x80", b"}", b"(")
_NO_RANK = (
    "a dump is named PREFIX and its rank, for example comm_lib_trace_rank_0 or _dump_0_iter120.json"
)


@dataclass(frozen=True)
class Evidence:
    """The operations in the dumps of all ranks, and conclusions from output of NCCL."""

    records: Records
    nccl: NcclEvidence


def is_evidence(path: str) -> bool | None:
    """Check whether a file, or the first file of a folder, begins like a dump or NCCL output.

    The first file is the dump of the lowest rank; without dumps, the first Inspector file
    by path. True if the first 4096 bytes, after blanks, begin like a pickle or like JSON
    whose first member is one of a dump, of RAS or of the Inspector, and if they have only
    blanks or no bytes.

    None, not False, for all other contents, for folders without such files, and for paths
    that cannot be read: they may still be evidence. No exception is raised.
    """
    try:
        files = _files(path)
        with open(files[0], "rb") as stream:
            head = correct_ras_json(stream.read(4096)).lstrip()
    except (OSError, ValueError, InputError):
        return None
    if head[:1] in _PICKLE_STARTS or not head:
        return True
    return True if _EVIDENCE_KEY.match(head) else None


def read_evidence(paths: Sequence[str]) -> Evidence:
    """Read the dumps of all ranks, and the output of NCCL's RAS and Inspector.

    `paths`: files and folders, read in this order. Of a folder, the files whose names end
    with a number and the Inspector files (`-pidN.log`) are read. The content of a file
    decides its format. The rank of a dump is its member `rank`, else that in its name.

    Raise `InputError` for the first file that cannot be read or has another format, a
    folder without such files, a dump without a rank, and a second dump of one rank.
    """
    reader = _EvidenceReader()
    # Python's cyclic garbage collector takes much time on large dumps, which contain no cycles.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for path in paths:
            for file in _files(path):
                reader.read(file)
    finally:
        if was_enabled:
            gc.enable()
    nccl = combine_evidence(reader.ras_reports, reader.notes)
    return Evidence(Records(reader.dumps, reader.tables), nccl)


class _EvidenceReader:
    """Reads files of several formats, which are distinguished by their content."""

    def __init__(self) -> None:
        self.tables = SharedTables()
        self.dumps: dict[int, Dump] = {}
        self.ras_reports: list[RasReport] = []
        self.notes: list[str] = []

    def read(self, file: str) -> None:
        """Read one file, and add its content to the dumps, RAS reports or notes.

        The first rule that applies decides, after `correct_ras_json`:

        1. No `{` after at most 63 blanks: a dump in a pickle, which is recognized by its first
           byte.
        2. JSON lines of NCCL's Inspector, recognized by the first line: `notes` are extended.
        3. Another JSON object for which `is_ras_report` is True: a RAS report.
        4. Any other JSON object: a dump.

        Raises `InputError` for an empty file and for contents that are neither a pickle nor a JSON
        object (`invalid-dump`), for a file that is too large or unreadable, a dump without a rank
        (`no-rank`), a second dump of a rank (`duplicate-rank`), and invalid content.
        """
        try:
            size = Path(file).stat().st_size
            if size > MAX_FILE_BYTES:
                message = f"the file has {size} bytes; at most {MAX_FILE_BYTES} are read"
                raise InputError(message, location=Location(file), code="too-large")
            content = Path(file).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"{file}: {reason}", code="not-readable") from None
        content = correct_ras_json(content)
        if content[:64].lstrip()[:1] != b"{":
            if is_ras_text(content):
                message = "this is the text of NCCL's RAS"
                cure = "query it as JSON, which NCCL 2.28.7 and later write: `ncclras -v -f json`"
                raise InputError(message, location=Location(file), code="invalid-dump", cure=cure)
            if content[:1] not in _PICKLE_STARTS:
                message = "this is neither a pickle nor a JSON object"
                if not content:
                    message = "the file is empty"
                cure = "name Flight Recorder dumps, one file per rank, or output of NCCL's RAS"
                raise InputError(message, location=Location(file), code="invalid-dump", cure=cure)
            self.add_dump(parse_pickle(content, file), file)
        elif _INSPECTOR_LINE.match(content[:4096]):
            self.notes += read_inspector(content, file)
        else:
            root = parse_json_object(content, file)
            if is_ras_report(root):
                self.ras_reports.append(parse_ras(root, file))
            else:
                self.add_dump(root, file)

    def add_dump(self, root: object, file: str) -> None:
        """Parse the value of a dump, and add the dump under its rank.

        `root`: the value that the pickle or JSON contains. The rank is its member `rank`, which
        some writers add to the dump of PyTorch; without it, the rank in the name of the file.

        Raise `InputError` for a member `rank` that is no rank (`invalid-dump`), for a dump with
        a rank in neither place (`no-rank`), then for a second dump of a rank (`duplicate-rank`),
        then the errors of `parse_dump`.
        """
        if isinstance(root, dict) and "rank" in root:
            rank = root["rank"]
            if type(rank) is not int or not 0 <= rank <= MAX_RANK:
                message = f"rank {rank!r:.40} is not an integer from 0 to {MAX_RANK}"
                raise InputError(message, location=Location(file), code="invalid-dump")
        else:
            rank = rank_of(file)
        if rank in self.dumps:
            message = f"two dumps of rank {rank}: the other one is {self.dumps[rank].file}"
            cure = "name the files of one run, and of one iteration or chunk"
            raise InputError(message, location=Location(file), code="duplicate-rank", cure=cure)
        self.dumps[rank] = parse_dump(root, rank, file, self.tables)


def rank_of(file: str) -> int:
    """Return the rank in the name of a dump file: 7 for `trace_7` and for `trace_7_iter2.json`.

    `iter`, `iteration` or `step` with a number may follow the rank, then one suffix of `.json`,
    `.pkl`, `.pickle`, `.bin` and `.dump`; folders in the path are ignored. In `_dump_7_0012.json`
    the number of four or more digits is a chunk, and the rank is 7. Raise `InputError` (`no-rank`)
    for other names, such as `trace_iter2.json`, and for a rank above `MAX_RANK` (2^24).
    """
    match = _NUMBER.search(_CHUNK.sub(r"\1", _ITERATION.sub("", Path(file).name)))
    if match is None or int(match[1]) > MAX_RANK:
        message = "the name of the file does not end with a rank"
        raise InputError(message, location=Location(file), code="no-rank", cure=_NO_RANK)
    return int(match[1])


def _files(path: str) -> list[str]:
    """List the evidence files of a folder, or return a path that is no folder, unchecked.

    A missing path is no folder and is returned too. The result for a folder has two kinds of files,
    in this order; all other files are ignored, and subfolders are not searched:

    1. Dumps: the name ends with digits, which one of `.json`, `.pkl`, `.pickle`, `.bin` and `.dump`
       may follow: `trace_7` and `trace_7.json`, but not `trace_7.txt`. They are ordered by the rank
       in the name (`rank_of`), then by name; names without a rank are last.
    2. Inspector files: the name ends with `-pid`, digits and `.log`. They are ordered by path.

    Raises `InputError`, checked in this order: an unreadable folder (`not-readable`), no file of
    either kind (`no-dumps`), more than 2^17 dumps (`too-large`).
    """
    try:
        if not Path(path).is_dir():
            return [path]
        files = [file for file in Path(path).iterdir() if file.is_file()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}", code="not-readable") from None
    names = [file for file in files if _NUMBER.search(file.name)]
    logs = sorted(str(file) for file in files if _INSPECTOR_FILE.search(file.name))
    if not names and not logs:
        message = "the folder has no file whose name ends with a rank"
        raise InputError(message, location=Location(path), code="no-dumps", cure=_NO_RANK)
    if len(names) > MAX_FILES:
        raise InputError(f"{path}: more than {MAX_FILES} files", code="too-large")
    ordered = sorted(names, key=_order_of)
    return [*(str(file) for file in ordered), *logs]


def _order_of(file: Path) -> tuple[int, str]:
    """Return the rank in the name of a dump file, or one above all ranks, and the name."""
    try:
        return rank_of(str(file)), file.name
    except InputError:
        return MAX_RANK + 1, file.name
