"""Parse GOAL text, block by block; the grammar is that of txt2bin, and what does not fit is refused with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from collhub_goal.schedule import Int64Array, Operation, Schedule
from hub_core.model import InputError, Location

MAX_BYTES = 4 << 30
MAX_RANKS = 1 << 20
_KEYWORDS = frozenset(
    (
        b"num_ranks",
        b"rank",
        b"calc",
        b"send",
        b"recv",
        b"to",
        b"from",
        b"tag",
        b"cpu",
        b"nic",
        b"requires",
        b"irequires",
    )
)
_HEAD = re.compile(rb"\s*num_ranks[ \t]+([0-9]{1,9})[ \t]*\n")
_BLOCK = re.compile(rb"\s*rank[ \t]+([0-9]{1,9})[ \t]*\{([^{}]*)\}")
_COMMENT = re.compile(rb"(?m)^[ \t]*(//[^\n]*|/\*(?s:.*?)\*/)")
_LABEL = rb"[A-Za-z][A-Za-z0-9_]{0,254}"
_NUMBER = rb"[0-9]{1,18}"
_LINE = re.compile(
    rb"(?m)^[ \t]*(?:"
    rb"(?:(" + _LABEL + rb")[ \t]*:[ \t]*)?(?:"
    rb"calc[ \t]+(" + _NUMBER + rb")"
    rb"|send[ \t]+(" + _NUMBER + rb")b[ \t]+to[ \t]+(" + _NUMBER + rb")"
    rb"|recv[ \t]+(" + _NUMBER + rb")b[ \t]+from[ \t]+(" + _NUMBER + rb"|-1)"
    rb")(?:[ \t]+tag[ \t]+([0-9]{1,18}|-1))?(?:[ \t]+cpu[ \t]+([0-9]{1,9}))?(?:[ \t]+nic[ \t]+([0-9]{1,9}))?"
    rb"|(" + _LABEL + rb")[ \t]+(i?requires)[ \t]+(" + _LABEL + rb")"
    rb")[ \t]*$"
)
_FILLED = re.compile(rb"(?m)^[ \t]*[^ \t\n]")
_EXPECTED = "expected calc N, send Nb to R, recv Nb from R (then tag, cpu, nic in this order), or LABEL requires LABEL"
_COLUMNS = ("rank", "operation", "amount", "peer", "tag", "cpu", "nic", "line")
_EDGES = ("parent", "child", "early_parent", "early_child")

_Match = tuple[bytes, ...]


def parse(content: bytes, file: str) -> Schedule:
    """The schedule in a file. Raises `InputError` with the line of what is not GOAL."""
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 30} GiB",
            location=Location(file),
            code="too-large",
        )
    text = _without_comments(content, file) if b"/" in content else content
    head = _HEAD.match(text)
    if head is None:
        _fail(
            file,
            1,
            "num_ranks N was expected, on a line of its own",
            "give a GOAL schedule as text, not the binary of txt2bin",
        )
    num_ranks = int(head[1])
    if not 1 <= num_ranks <= MAX_RANKS:
        _fail(file, 1, f"num_ranks {num_ranks} is not in 1..{MAX_RANKS}")
    reader = _Reader(file, num_ranks)
    place, line = head.end(), 1 + text.count(b"\n", 0, head.end())
    while block := _BLOCK.match(text, place):
        line += text.count(b"\n", place, block.start(2))
        reader.add(int(block[1]), block[2], line)
        line += text.count(b"\n", block.start(2), block.end())
        place = block.end()
    rest = re.compile(rb"\s*").match(text, place)
    if rest is None or rest.end() < len(text):
        _fail(
            file,
            line + text.count(b"\n", place, rest.end() if rest else place),
            "rank N { ... } was expected",
        )
    if reader.ranks < num_ranks:
        _fail(
            file,
            line,
            f"the file ends after {reader.ranks} of {num_ranks} ranks",
            "get the whole file",
        )
    return reader.schedule()


def _without_comments(content: bytes, file: str) -> bytes:
    """The text with all comments replaced by their line ends."""
    # Looked for first, as every unclosed comment would be sought to the end of the file.
    if unclosed := re.compile(rb"(?m)^[ \t]*/\*").search(content, content.rfind(b"*/") + 1):
        _fail(file, 1 + content.count(b"\n", 0, unclosed.end()), "a comment /* is not closed")
    return _COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)


class _Reader:
    """Collects blocks as columns."""

    def __init__(self, file: str, num_ranks: int) -> None:
        self.ranks = 0
        self._file = file
        self._num_ranks = num_ranks
        self._rows = 0
        self._columns: dict[str, list[Int64Array]] = {
            name: [np.zeros(0, np.int64)] for name in (*_COLUMNS, *_EDGES)
        }

    def add(self, rank: int, body: bytes, first_line: int) -> None:
        """Take the block of one rank, which begins in `first_line`."""
        if rank != self.ranks:
            _fail(
                self._file,
                first_line,
                f"rank {rank} stands where rank {self.ranks} was expected",
                "sort the ranks, leave none out",
            )
        self.ranks += 1
        found: list[_Match] = _LINE.findall(body)
        if len(found) != len(_FILLED.findall(body)) or body.rpartition(b"\n")[2].strip(b" \t"):
            self._refuse_line(body, first_line)
        if not found:
            return
        texts = body.split(b"\n")
        numbers = first_line + np.flatnonzero(
            np.fromiter(map(bool, map(bytes.strip, texts)), np.bool_, len(texts))
        )
        fields: list[Sequence[bytes]] = list(zip(*found, strict=True))
        is_edge = np.fromiter(map(bool, fields[10]), np.bool_, len(found))
        rows = np.flatnonzero(~is_edge)
        self._operations(
            [[column[row] for row in rows.tolist()] for column in fields[:9]], numbers[rows], rank
        )
        if len(rows) < len(found):
            labels = self._labels([fields[0][row] for row in rows.tolist()], numbers[rows])
            self._dependencies(
                [found[row] for row in np.flatnonzero(is_edge).tolist()], labels, numbers[is_edge]
            )
        self._rows += len(rows)

    def schedule(self) -> Schedule:
        """Everything that was added."""
        return Schedule(
            self._num_ranks,
            **{name: np.concatenate(parts) for name, parts in self._columns.items()},
        )

    def _operations(self, fields: Sequence[Sequence[bytes]], lines: Int64Array, rank: int) -> None:
        _, calc, send, to, receive, source, tag, cpu, nic = fields
        rows = len(calc)
        is_send, is_receive = (
            np.fromiter(map(bool, column), np.bool_, rows) for column in (send, receive)
        )
        columns = {
            "rank": np.full(rows, rank, np.int64),
            "operation": np.select(
                [is_send, is_receive], [Operation.SEND, Operation.RECV], Operation.CALC
            ).astype(np.int64),
            "amount": _numbers(calc, 0) + _numbers(send, 0) + _numbers(receive, 0),
            "peer": np.select([is_send, is_receive], [_numbers(to, -1), _numbers(source, -1)], -1),
            "tag": _numbers(tag, 0),
            "cpu": _numbers(cpu, -1),
            "nic": _numbers(nic, -1),
            "line": lines,
        }
        is_message = is_send | is_receive
        misplaced = ~is_message & np.fromiter(
            (bool(t or n) for t, n in zip(tag, nic, strict=True)), np.bool_, rows
        )
        peer = columns["peer"]
        outside = f"is no rank of 0..{self._num_ranks - 1}"
        self._check(misplaced, lines, "calc takes no tag and no nic")
        self._check(is_receive & ((peer == -1) | (columns["tag"] == -1)), lines, _WILDCARD)
        self._check(is_send & (columns["tag"] == -1), lines, "a send needs a tag of at least 0")
        self._check(is_message & (peer >= self._num_ranks), lines, f"the peer {outside}")
        self._check(
            columns["tag"] > np.iinfo(np.int32).max, lines, "the tag is larger than 2^31 - 1"
        )
        for name, column in columns.items():
            self._columns[name].append(column)

    def _labels(self, names: Sequence[bytes], lines: Int64Array) -> dict[bytes, int]:
        """Row of every label of the block."""
        labels = {name: self._rows + row for row, name in enumerate(names) if name}
        if len(labels) < sum(map(bool, names)):
            seen: set[bytes] = set()
            for row, name in enumerate(names):
                if name and name in seen:
                    _fail(
                        self._file,
                        int(lines[row]),
                        f"the label {name.decode()[:80]} stands twice in its rank",
                    )
                seen.add(name)
        if wrong := _KEYWORDS & labels.keys():
            name = min(wrong)
            _fail(
                self._file,
                int(lines[labels[name] - self._rows]),
                f"{name.decode()} is a keyword, not a label",
            )
        return labels

    def _dependencies(
        self, found: Sequence[_Match], labels: dict[bytes, int], lines: Int64Array
    ) -> None:
        names = [[match[column] for match in found] for column in (11, 9)]
        for column in names:
            if unknown := set(column) - labels.keys():
                row = next(row for row, name in enumerate(column) if name in unknown)
                _fail(
                    self._file,
                    int(lines[row]),
                    f"no operation of this rank has the label {column[row].decode()[:80]}",
                )
        parent, child = (
            np.fromiter(map(labels.__getitem__, column), np.int64, len(found)) for column in names
        )
        is_early = np.fromiter((match[10] == b"irequires" for match in found), np.bool_, len(found))
        for name, ends, rows in zip(
            _EDGES, (parent, child) * 2, (~is_early, ~is_early, is_early, is_early), strict=True
        ):
            self._columns[name].append(ends[rows])

    def _check(
        self, is_wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], lines: Int64Array, message: str
    ) -> None:
        if is_wrong.any():
            _fail(self._file, int(lines[int(is_wrong.argmax())]), message)

    def _refuse_line(self, body: bytes, first_line: int) -> NoReturn:
        lines = body.split(b"\n")
        for number, line in enumerate(lines, first_line):
            if line.strip(b" \t") and not _LINE.match(line):
                _fail(
                    self._file,
                    number,
                    f"{line.strip().decode('utf-8', 'replace')[:80]!r} is no statement: {_EXPECTED}",
                )
        _fail(
            self._file,
            first_line + len(lines) - 1,
            "a statement ends with its line; } stands on the next one",
        )


_WILDCARD = (
    "a receive from any rank, or with any tag, has no message of its own: who sends cannot be told"
)


def _numbers(texts: Sequence[bytes], default: int) -> Int64Array:
    return np.fromiter((int(text) if text else default for text in texts), np.int64, len(texts))


def _fail(file: str, line: int, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(file, line), cure=cure, code="invalid-goal")
