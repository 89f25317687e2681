"""Read NCCL's log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING): choices and cost tables.

Choices differ by version, see `collhub_nccl_records.log`; 2.27 and later also log symmetric
kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS
from collhub_nccl_records import parse_choice

from hub_core.model import Diagnostic, InputError, Location, Severity, standard_kind

MAX_FILE_BYTES = 2**28
_MAX_SIZE = 2**62

_MARK = re.compile(r"NCCL INFO ?(.*)")
_VERSION = re.compile(r"NCCL version (2\.\d{1,3}(?:\.\d{1,3})?)")
_MEMBERS = re.compile(r"\bnRanks (\d{1,7}) nNodes (\d{1,7})\b")
_CHANNELS = re.compile(r"^\s*(\d{1,3}) coll channels")
_SETTING = re.compile(
    r"\b(NCCL_(?:ALGO|PROTO|NVLS_ENABLE|\w+_NCHANNELS|\w+_CTAS)) set by environment to (\S+)"
)
_SYMMETRIC = re.compile(
    r"^(\w+) \[Symmetric\]: (\d{1,19}) Bytes -> Kernel (\w+) nchannels (\d{1,4}) nthreads (\d{1,4})"
)
_TUNING = re.compile(r"Bytes -> ")
_CELL = re.compile(r"^\s*(-?\d{1,12}\.\d)/\s*(-?\d{1,12}\.\d)\s*$")
_TITLE_WORDS = {name.replace("_", ""): name for name in ALGORITHMS}


@dataclass(frozen=True, slots=True)
class LoggedChoice:
    """One logged call. `collective` and `time_us` are None, `channels` is 0 if not logged.

    `size_bytes` is as logged: the total with a time, else count times element size, which is the
    share of one rank for all-gather and reduce-scatter.
    """

    line: int
    collective: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    time_us: float | None = None
    channels: int = 0

    def total_bytes(self, ranks: int) -> int:
        """Return the size of the full vector in bytes, for a communicator of `ranks` ranks.

        For all-gather and reduce-scatter, NCCL 2.24 and later log the size of one rank's share,
        which is multiplied by `ranks`. Their lines have no time, which is how they are recognized.
        Other lines have the full size.
        """
        is_share = self.time_us is None and self.collective in {"all-gather", "reduce-scatter"}
        return self.size_bytes * ranks if is_share else self.size_bytes


@dataclass(frozen=True, slots=True)
class LoggedKernel:
    """One call by a symmetric kernel; `size_bytes` as in `LoggedChoice` without a time."""

    line: int
    collective: str
    size_bytes: int
    kernel: str
    channels: int
    threads: int


@dataclass(frozen=True, slots=True)
class LoggedCost:
    """One cell of NCCL's cost table: us and GB/s with one decimal; zeros if it is not used."""

    line: int
    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class LoggedThreads:
    """Maximum numbers of threads of a block of the cost table, by (algorithm, protocol)."""

    line: int
    threads: dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TuningLog:
    """Content of a log; `version` is "", ranks, nodes and channels are 0 if the log lacks them."""

    file: str
    version: str
    ranks: int
    nodes: int
    channels: int
    settings: tuple[str, ...]
    choices: tuple[LoggedChoice, ...]
    kernels: tuple[LoggedKernel, ...]
    costs: tuple[LoggedCost, ...]
    threads: tuple[LoggedThreads, ...]
    unread: tuple[Diagnostic, ...]


class _LogReader:
    """Collects the records of a log line by line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.version, self.ranks, self.nodes, self.channels = "", 0, 0, 0
        self.settings: dict[str, str] = {}
        self.choices: list[LoggedChoice] = []
        self.kernels: list[LoggedKernel] = []
        self.costs: list[LoggedCost] = []
        self.threads: list[LoggedThreads] = []
        self.unread: list[Diagnostic] = []
        # Algorithms and protocols of the columns of the current table.
        self.algorithms: list[str] = []
        self.columns: list[tuple[str, str]] = []

    def read(self, number: int, text: str) -> None:
        """Read one message (its line number and text) and add its facts to this reader.

        The first version and the first channel count win; ranks and nodes are those of the largest
        communicator, the first of equal ones; a repeated setting replaces the earlier value. Text
        with "|" is a row of a table of costs. A choice without a known form adds the warning
        `unknown-line` to `unread`; all other text is ignored.
        """
        if match := _VERSION.search(text):
            self.version = self.version or match[1]
        elif match := _MEMBERS.search(text):
            # The largest communicator, which is the first one of a job.
            if int(match[1]) > self.ranks:
                self.ranks, self.nodes = int(match[1]), int(match[2])
        elif match := _CHANNELS.match(text):
            self.channels = self.channels or int(match[1])
        elif match := _SETTING.search(text):
            self.settings[match[1]] = match[2].rstrip(".")
        elif "|" in text:
            self._read_table(number, text)
        elif _TUNING.search(text) and not self._read_choice(number, text.strip()):
            message = "the line has no form of a choice that is known"
            self._report_unread(number, message, "give the log of NCCL 2.20 to 2.30")

    def _report_unread(self, number: int, message: str, cure: str) -> None:
        """Add the warning `unknown-line` for a line of an unknown form."""
        location = Location(self.file, number)
        self.unread.append(Diagnostic("unknown-line", message, Severity.WARNING, location, cure))

    def _read_table(self, number: int, text: str) -> None:
        title, *cells = (cell.strip() for cell in text.split("|"))
        if cells and not cells[-1]:
            cells.pop()
        if title == "Latency/AlgBw":
            message = "the table of costs has the form of NCCL before 2.18, and is not compared"
            self._report_unread(number, message, "give the log of NCCL 2.18 to 2.30")
        elif title == "Algorithm":
            words = [cell.lower().replace("_", "") for cell in cells]
            self.algorithms = [_TITLE_WORDS.get(word, word) for word in words]
        elif title == "Protocol":
            protocols = [cell.lower() for cell in cells]
            columns_each = max(1, len(protocols) // max(1, len(self.algorithms)))
            names = [name for name in self.algorithms for _ in range(columns_each)]
            self.columns = list(zip(names, protocols, strict=False))
        elif title == "Max NThreads":
            numbers = [int(cell) if re.fullmatch(r"\d{1,5}", cell) else 0 for cell in cells]
            pairs = zip(self.columns, numbers, strict=False)
            self.threads.append(LoggedThreads(number, dict(pairs)))
        elif (kind := standard_kind(title)) is not None and self.columns:
            for (algorithm, protocol), cell in zip(self.columns, cells, strict=False):
                match = _CELL.match(cell)
                if match and algorithm in ALGORITHMS and protocol in PROTOCOLS:
                    values = float(match[1]), float(match[2])
                    self.costs.append(LoggedCost(number, str(kind), algorithm, protocol, *values))

    def _read_choice(self, number: int, text: str) -> bool:
        """Store the choice on a line of NCCL's log; return whether a choice was stored.

        `number`: of the line in the file. `text`: the message after `NCCL INFO`. There are two
        forms; for both the size must be 1 to 2^62 bytes, otherwise False is returned:

        - Kernel, `AllReduce [Symmetric]: 64 Bytes -> Kernel K nchannels 8 nthreads 512`: added to
          `self.kernels` if the operation is a standard collective in any spelling, otherwise False
          is returned.
        - Choice, `AllReduce: 64 Bytes -> Algo RING proto LL ...`: added to `self.choices`.

        A choice must also meet these conditions; otherwise False is returned:

        - Algorithm and protocol are names of NCCL in any case, or its numbers. `_` in the algorithm
          is ignored.
        - The operation is missing, or is a standard collective. Uneven ones (`-v`) are unknown.
        - The line has a time in us, or both an operation and at least one channel. A time is read
          only if algorithm and protocol are numbers.

        A missing operation or time is stored as None.
        """
        if match := _SYMMETRIC.match(text):
            kind = standard_kind(match[1])
            if kind is None or not 0 < int(match[2]) <= _MAX_SIZE:
                return False
            self.kernels.append(
                LoggedKernel(
                    number, str(kind), int(match[2]), match[3], int(match[4]), int(match[5])
                )
            )
            return True
        line = parse_choice(text)
        if line is None or not 0 < line.choice.bytes <= _MAX_SIZE:
            return False
        operation = line.choice.operation
        kind = standard_kind(operation) if operation else None
        algorithm = _TITLE_WORDS.get(line.choice.algorithm.lower().replace("_", ""))
        protocol = line.choice.protocol.lower()
        is_complete = line.time_us is not None or (kind is not None and line.channels > 0)
        if (operation and kind is None) or algorithm is None or protocol not in PROTOCOLS:
            return False
        if is_complete:
            self.choices.append(
                LoggedChoice(
                    number,
                    None if kind is None else str(kind),
                    line.choice.bytes,
                    algorithm,
                    protocol,
                    line.time_us,
                    line.channels,
                )
            )
        return is_complete


def is_tuning_log(content: bytes) -> bool:
    """Whether a content has a line of NCCL's log, which contains `NCCL INFO`."""
    return b"NCCL INFO" in content


def read_tuning_log(content: bytes, file: str) -> TuningLog:
    """Read NCCL's tuning log; return its choices, symmetric kernels, costs, threads and settings.

    `content`: the log of one communicator; bytes that are not UTF-8 are replaced. `file`: its name,
    for messages. Only lines with `NCCL INFO` count, and of each line the first 4096 characters.
    Records are in the order of the lines, with line numbers from 1. Equal records are kept.

    - `version`, `channels`: those of the first line that has them, else "" and 0.
    - `ranks`, `nodes`: of the first communicator among those with the most ranks, else 0.
    - `settings`: texts `NAME=value`. A later value replaces an earlier one.
    - `unread`: a warning `unknown-line` for each line with `Bytes -> ` that is no readable choice,
      and for each table of costs in the form of NCCL before 2.18.

    Raises `InputError`: `too-large` above 256 MiB; `no-tuning-lines` if there are neither choices,
    kernels, costs nor `unread`. Thread counts alone are not enough.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InputError(
            "the log exceeds 256 MiB",
            cure="give the lines with 'NCCL INFO' of rank 0",
            code="too-large",
        )
    reader = _LogReader(file)
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        match = _MARK.search(line[:4096])
        if match:
            reader.read(number, match[1])
    if not reader.choices and not reader.kernels and not reader.costs and not reader.unread:
        message = "the file has no TUNING lines of NCCL"
        cure = "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
        raise InputError(message, location=Location(file), cure=cure, code="no-tuning-lines")
    return TuningLog(
        file,
        reader.version,
        reader.ranks,
        reader.nodes,
        reader.channels,
        tuple(f"{name}={value}" for name, value in reader.settings.items()),
        tuple(reader.choices),
        tuple(reader.kernels),
        tuple(reader.costs),
        tuple(reader.threads),
        tuple(reader.unread),
    )
