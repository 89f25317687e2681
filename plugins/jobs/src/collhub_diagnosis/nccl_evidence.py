"""Evidence of NCCL about a hang: the RAS subsystem's JSON, and the Inspector's JSON lines.

RAS (NCCL 2.28.7 and later, `ncclras -v -f json`) names processes that do not respond and counts the
collectives of every rank. The Inspector lists completed collectives only. Both number ranks per
communicator: the rank of a process in the largest communicator is taken as its rank in the job.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from collhub_nccl_records import SkippedLine, read_inspector_lines, read_lines

from hub_core.model import InputError, Location

MAX_COMMUNICATORS = 1 << 16
MAX_RANKS = 1 << 20

Process = tuple[str, int, int]
"""Host, process number and device of a rank."""

# Acknowledgements of the socket (`OK`) and RCCL's banner precede the JSON. The longest output of
# this kind has a few tables.
_RAS_PREAMBLE = re.compile(
    rb"(?:[^\n{]*\n){1,40}?"
    rb'(?=\{\s*"(?:[nr]ccl_version|cuda_runtime_version|communicators)"\s*:)'
)
# NCCL 2.28 writes no comma between these members of a missing rank.
_MISSING_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s*\n\s*"status"\s*:)')
_RAS_TEXT = re.compile(rb"(?:OK\s+)*[NR]CCL version \d|Job summary\s+={3}")


@dataclass(frozen=True)
class RasCommunicator:
    """A communicator as RAS saw it. `counts`: collectives by rank; `missing`: reason by rank."""

    name: str
    size: int
    processes: Mapping[int, Process]
    counts: Mapping[int, int]
    missing: Mapping[int, str]
    problems: Mapping[int, str]


@dataclass(frozen=True)
class RasReport:
    """The communicators that one query of NCCL's RAS lists, and the file with its output."""

    file: str
    communicators: tuple[RasCommunicator, ...]


@dataclass(frozen=True)
class BehindRanks:
    """Ranks of the job that have issued fewer collectives of a communicator than its others."""

    communicator: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    group: tuple[int, ...]


@dataclass(frozen=True)
class NcclEvidence:
    """Conclusions from all RAS and Inspector files.

    `unresponsive`: reason by rank of the job. `behind`: communicators whose counts were unequal and
    the same in two queries.
    """

    unresponsive: Mapping[int, str]
    behind: tuple[BehindRanks, ...]
    notes: tuple[str, ...]


def correct_ras_json(content: bytes) -> bytes:
    """Return the output of RAS as valid JSON, with the same line numbers; other contents unchanged.

    Lines before the JSON are emptied (acknowledgements of the socket and a banner) if they are at
    most 40 without `{`, and the JSON begins with a version or `communicators`. In JSON with
    `communicators` in the first 4096 bytes, the comma that NCCL 2.28 omits before the `status` of a
    missing rank is inserted.
    """
    if match := _RAS_PREAMBLE.match(content):
        content = b"\n" * match[0].count(b"\n") + content[match.end() :]
    is_ras = content.lstrip()[:1] == b"{" and b'"communicators"' in content[:4096]
    return _MISSING_COMMA.sub(rb"\1,\2", content) if is_ras else content


def is_ras_text(content: bytes) -> bool:
    """Whether a file begins like the output of `ncclras` as text, which is not read."""
    return _RAS_TEXT.match(content) is not None


def is_ras_report(root: Mapping[str, object]) -> bool:
    """Whether a JSON object is the output of RAS: it has a list `communicators`.

    A Flight Recorder dump has `entries` as well, and is none.
    """
    return isinstance(root.get("communicators"), list) and "entries" not in root


def parse_ras(root: Mapping[str, object], file: str) -> RasReport:
    """Return the communicators of a query. Raises `InputError` that names the wrong field."""
    return _RasParser(file).parse(root)


def read_inspector(content: bytes, file: str) -> list[str]:
    """Summarize JSON lines of NCCL's Inspector as notes for the report.

    1. One note for each line that is no record (`SkippedLine`), with file, line, reason and remedy.
    2. One note for each communicator, sorted by name. The last number of a rank is the highest
       sequence number of its recorded collectives. If it is equal for all recorded ranks, the note
       says that all completed this collective. Otherwise it has the lowest last number, the ranks
       with it (ascending, at most 8), and the highest last number.

    Records of point-to-point messages are ignored. The result is [] if no line remains. Raises
    `InputError` (`invalid-inspector`) if there are notes of kind 1 and no record of a collective.
    """
    last: dict[str, dict[int, int]] = {}
    notes: list[str] = []
    for record in read_inspector_lines(read_lines(io.BytesIO(content)), file):
        if isinstance(record, SkippedLine):
            cure = f"; {record.cure}" if record.cure else ""
            notes.append(f"{file}:{record.line}: {record.message}{cure}")
        elif not record.is_message:
            numbers = last.setdefault(record.member.communicator, {})
            rank = record.member.rank
            numbers[rank] = max(numbers.get(rank, -1), record.sequence)
    if not last and notes:
        message = "no line is a record of NCCL's Inspector"
        raise InputError(message, location=Location(file), code="invalid-inspector")
    for communicator, numbers in sorted(last.items()):
        newest, oldest = max(numbers.values()), min(numbers.values())
        text = f"Inspector: communicator {communicator}: "
        if newest == oldest:
            text += f"all {len(numbers)} recorded ranks completed collective {newest}"
        else:
            slow = sorted(rank for rank, number in numbers.items() if number == oldest)
            shown = ", ".join(map(str, slow[:8])) + (", ..." if len(slow) > 8 else "")
            text += (
                f"the last recorded collective is {oldest} on ranks {shown}, else up to {newest}"
            )
        notes.append(text)
    return notes


def combine_evidence(reports: Sequence[RasReport], notes: Sequence[str]) -> NcclEvidence:
    """Return the evidence of all queries of NCCL's RAS (its status service) on the job's ranks.

    `reports`: queries in order. The job rank of a process is its rank in the largest communicator
    of the same query, of equal ones the first. A process that RAS does not know has a job rank only
    where that communicator itself lists it. The result has:

    - `unresponsive`: reason by job rank, for each rank that is missing in any query. The first
      reason counts. Missing processes without a job rank are ignored.
    - `behind`: one entry per name of a communicator whose counts of collectives are unequal, and
      equal to those of its previous listing. The last such listing decides; entries are in the
      order of the first one. Ranks below the maximum are late, the others wait. All are job ranks,
      ascending; ranks without a job rank are left out.
    - `notes`: the given `notes`, then per query and communicator: each rank with a problem, by
      rank; fewer listed ranks than its size; unequal counts that are not those of the previous
      listing, with at most 8 late ranks. A rank without a job rank has its number in the
      communicator.
    """
    unresponsive: dict[int, str] = {}
    all_notes = list(notes)
    unequal: dict[str, tuple[tuple[int, int], ...]] = {}
    behind_ranks: dict[str, BehindRanks] = {}
    for report in reports:
        largest = max(report.communicators, key=lambda one: one.size, default=None)
        processes = {} if largest is None else largest.processes
        rank_of = {process: rank for rank, process in processes.items()}
        for communicator in report.communicators:
            job_rank = {
                rank: rank_of[process]
                for rank, process in communicator.processes.items()
                if process in rank_of
            }
            if communicator is largest:
                job_rank = {rank: rank for rank in (*communicator.counts, *communicator.missing)}
            for rank, reason in communicator.missing.items():
                if rank in job_rank:
                    unresponsive.setdefault(job_rank[rank], reason)
            for rank, problem in sorted(communicator.problems.items()):
                name = f"rank {job_rank.get(rank, rank)}"
                all_notes.append(f"RAS: communicator {communicator.name}: {name} {problem}")
            seen = len(communicator.counts) + len(communicator.missing)
            if seen < communicator.size:
                size = f"{seen} of {communicator.size} ranks"
                all_notes.append(f"RAS: communicator {communicator.name} lists {size}")
            counts = tuple(sorted(communicator.counts.items()))
            newest = max(communicator.counts.values(), default=0)
            late = [rank for rank, count in counts if count < newest]
            if late and unequal.get(communicator.name) == counts:
                waiting = [rank for rank, count in counts if count == newest]
                behind_ranks[communicator.name] = BehindRanks(
                    communicator.name,
                    tuple(sorted(job_rank[rank] for rank in late if rank in job_rank)),
                    tuple(sorted(job_rank[rank] for rank in waiting if rank in job_rank)),
                    tuple(sorted(job_rank.values())),
                )
            elif late:
                slow = [
                    f"rank {job_rank.get(rank, rank)} by {newest - communicator.counts[rank]}"
                    for rank in late
                ]
                shown = ", ".join(slow[:8]) + (", ..." if len(slow) > 8 else "")
                all_notes.append(
                    f"RAS: communicator {communicator.name}: fewer collectives than other ranks: "
                    f"{shown}; this is a fault only if a second query shows the same numbers"
                )
            unequal[communicator.name] = counts
    return NcclEvidence(unresponsive, tuple(behind_ranks.values()), tuple(all_notes))


class _RasParser:
    """Checks the fields of the output of RAS."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.ranks_left = MAX_RANKS

    def parse(self, root: Mapping[str, object]) -> RasReport:
        """Return a report with all communicators of a query, in the order of its list.

        The list is `communicators`; a missing one counts as empty. Raises `InputError`
        (`invalid-ras`) for more than 2^16 communicators, then at the path of the first wrong
        field, such as `communicators[3].rank`.
        """
        communicators = self.objects(root, "communicators", "")
        if len(communicators) > MAX_COMMUNICATORS:
            self.fail("communicators", f"at most {MAX_COMMUNICATORS} are read")
        return RasReport(
            self.file,
            tuple(
                self.communicator(member, f"communicators[{number}]")
                for number, member in enumerate(communicators)
            ),
        )

    def communicator(self, value: Mapping[str, object], where: str) -> RasCommunicator:
        """Return a communicator from its JSON object; `where`: its path in the JSON, for errors.

        - `name`: `hash`, then a space and `secondary_hash` if there is one, cut to 40 and 80
          characters.
        - `size`, and per rank in `ranks`: `counts` (sum over all kinds of collectives) and
          `problems` (the text of `problem`; no entry if it is empty).
        - `missing`, per rank in `missing_ranks`: process, host and the first state that applies:
          considered dead, does not respond, is missing.
        - `processes`: for ranks of both lists whose process RAS knows.

        Missing fields count as empty, 0 or false. Raises `InputError` (`invalid-ras`) with the path
        for a wrong type, a number outside 0..2^62 - 1, no `hash`, no `host` of a rank, a rank that
        occurs twice, and more than 2^20 ranks in all communicators that this parser read.
        """
        names = [value.get(key) for key in ("hash", "secondary_hash")]
        if not isinstance(names[0], str) or not isinstance(names[1], str | None):
            self.fail(f"{where}.hash", "it is not a text")
        processes: dict[int, Process | None] = {}
        counts: dict[int, int] = {}
        missing: dict[int, str] = {}
        problems: dict[int, str] = {}
        for rank, entry, path in self.ranks(value, "ranks", where, processes):
            kinds = self.child(entry, "collective_counts", path)
            counts[rank] = sum(
                self.integer(kinds, key, f"{path}.collective_counts") for key in kinds
            )
            problem = self.problem(self.child(entry, "status", path), f"{path}.status")
            if problem:
                problems[rank] = problem
        for rank, entry, path in self.ranks(value, "missing_ranks", where, processes):
            status = self.child(entry, "status", path)
            process = processes[rank]
            name = "its process, which RAS does not know,"
            if process is not None:
                name = f"the process {process[1]} on {process[0]}"
            state = "is considered dead" if status.get("considered_dead") is True else "is missing"
            if status.get("unresponsive") is True and state == "is missing":
                state = "does not respond"
            missing[rank] = f"{name} {state}"
        size = self.integer(value, "size", where)
        # The second hash distinguishes communicators with the same ranks.
        name = f"{names[0]:.40}" if names[1] is None else f"{names[0]:.40} {names[1]:.80}"
        known = {rank: process for rank, process in processes.items() if process is not None}
        return RasCommunicator(name, size, known, counts, missing, problems)

    def ranks(
        self,
        value: Mapping[str, object],
        key: str,
        where: str,
        processes: dict[int, Process | None],
    ) -> Iterator[tuple[int, Mapping[str, object], str]]:
        """Yield (rank, JSON object, path) for each entry of a list, after adding it to `processes`.

        The list is the member `key` of `value`, [] if missing. `where`: the path of `value`. The
        value in `processes` is (host, pid, device) with at most 200 characters of the host; it is
        None for the pid -1, which RAS writes for a process that it does not know. A missing rank,
        pid or device is 0.

        Raises `InputError` (`invalid-ras`) with the path:

        - before the first entry, if the list or an entry has the wrong type, or if all lists of
          this parser together have more than 2^20 entries
        - at an entry with a rank that is already in `processes`, with a host that is missing or no
          text, or with a number that is no integer from 0 to 2^62 - 1; earlier entries stay added
        """
        entries = self.objects(value, key, where)
        self.ranks_left -= len(entries)
        if self.ranks_left < 0:
            self.fail(f"{where}.{key}", f"at most {MAX_RANKS} ranks are read")
        for number, entry in enumerate(entries):
            path = f"{where}.{key}[{number}]"
            rank = self.integer(entry, "rank", path)
            if rank in processes:
                self.fail(f"{path}.rank", f"rank {rank} appears twice")
            host = entry.get("host")
            if not isinstance(host, str):
                self.fail(f"{path}.host", "it is not a text")
            device = self.integer(entry, "cuda_dev", path)
            process = None
            if entry.get("pid") != -1:
                process = f"{host:.200}", self.integer(entry, "pid", path), device
            processes[rank] = process
            yield rank, entry, path

    def problem(self, status: Mapping[str, object], where: str) -> str:
        """Describe the errors and the unfinished start of a communicator on a rank; "" without any.

        The parts of the text are joined by ", ", in this order:

        - an `async_error` other than 0 and 7 (in progress), with its number
        - an `init_state` other than 0: 7 is an initialization in progress, other numbers a
          failed one
        - an aborted communicator, if `abort_flag` is true

        Missing fields count as 0 or false. Raises `InputError` at the path `where` if one of
        the two numbers is not an integer from 0 to 2^62.
        """
        error = self.integer(status, "async_error", where)
        state = self.integer(status, "init_state", where)
        problems = [f"has the asynchronous error {error}"] * (error not in (0, 7))
        if state:
            problems.append("is being initialized" if state == 7 else f"failed to start ({state})")
        problems += ["was aborted"] * (status.get("abort_flag") is True)
        return ", ".join(problems)

    def objects(
        self, value: Mapping[str, object], key: str, where: str
    ) -> list[Mapping[str, object]]:
        """Return the member `key` of `value` as a list of objects; [] if it is absent.

        Raises `InputError` at the path `where.key` for another type, also for null, and if an entry
        is no object.
        """
        entries = value.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.fail(f"{where}.{key}".lstrip("."), "it is not a list of objects")
        return entries

    def child(self, value: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
        """Return the member `key` of `value` as an object; empty if it is absent.

        Raises `InputError` at the path `where.key` for another type, also for null.
        """
        entry = value.get(key, {})
        if not isinstance(entry, dict):
            self.fail(f"{where}.{key}", "it is not an object")
        return entry

    def integer(self, value: Mapping[str, object], key: str, where: str) -> int:
        """Return the member `key` of a JSON object as an integer; 0 if it is absent.

        Raise `InputError` (`invalid-ras`) at the path `where.key` if it is not an integer from
        0 to 2^62 - 1; null, booleans, and numbers with a fraction are refused.
        """
        number = value.get(key, 0)
        if type(number) is not int or not 0 <= number < 1 << 62:
            self.fail(f"{where}.{key}", f"{number!r:.40} is not an integer from 0 to 2^62 - 1")
        return number

    def fail(self, path: str, message: str) -> NoReturn:
        """Raise `InputError` with code `invalid-ras` at a path within the file."""
        raise InputError(f"{path}: {message}", location=Location(self.file), code="invalid-ras")
