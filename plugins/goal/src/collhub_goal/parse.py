"""Parse GOAL text, block by block; what does not fit the grammar is refused with its line.

A block is split by one pattern and turned into columns, so that files of millions of lines are
read without a Python object for each of their operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NoReturn

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_goal.grammar import (
    BLANK,
    BLOCK,
    COMMENT,
    EXPECTED,
    FILLED_LINE,
    HEAD,
    KEYWORDS,
    OPEN_COMMENT,
    OPERATION_PARTS,
    STATEMENT,
)
from collhub_goal.schedule import GoalOperation, GoalSchedule
from hub_core.model import InputError, Location

Texts = Sequence[bytes]

MAX_BYTES = 4 << 30
MAX_RANKS = 1 << 20
# A channel of the hub is an int32, and so is a tag of txt2bin.
_LARGEST_TAG = int(np.iinfo(np.int32).max)
_COLUMNS = ("rank", "operation", "amount", "peer", "tag", "cpu", "nic", "line")
_EDGES = ("parent", "child", "early_parent", "early_child")
_WILDCARD = (
    "a receive from any rank, or with any tag, has no message of its own: who sends cannot be told"
)


def parse(content: bytes, file: str) -> GoalSchedule:
    """The schedule in a file. Raises `InputError` with the line of what is not GOAL."""
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 30} GiB",
            location=Location(file),
            code="too-large",
        )
    # Lines may end as on Windows; their numbers stay.
    text = _without_comments(content.replace(b"\r\n", b"\n"), file)
    num_ranks, place = _head(text, file)
    columns = _ScheduleColumns(file, num_ranks)
    line = 1 + text.count(b"\n", 0, place)
    ranks = 0
    while block := BLOCK.match(text, place):
        # Counted as they are passed: the number of a line is only known by those before it.
        line += text.count(b"\n", place, block.start(2))
        _check_rank(file, line, int(block[1]), ranks)
        columns.add(ranks, block[2], line)
        line += text.count(b"\n", block.start(2), block.end())
        place = block.end()
        ranks += 1
    _check_end(text, place, line, file)
    if ranks < num_ranks:
        _fail(
            file,
            line,
            f"the file ends after {ranks} of {num_ranks} ranks",
            "get the whole file",
        )
    return columns.schedule()


def _without_comments(content: bytes, file: str) -> bytes:
    """The text with all comments replaced by their line ends."""
    if b"/" not in content:
        return content
    # Looked for first, as every unclosed comment would be sought to the end of the file.
    unclosed = OPEN_COMMENT.search(content, content.rfind(b"*/") + 1)
    if unclosed:
        line = 1 + content.count(b"\n", 0, unclosed.end())
        _fail(file, line, "a comment /* is not closed")
    # Line ends stay, so that lines keep their numbers.
    return COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)


def _head(text: bytes, file: str) -> tuple[int, int]:
    """The number of ranks, and where the blocks begin."""
    head = HEAD.match(text)
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
    return num_ranks, head.end()


def _check_rank(file: str, line: int, stated: int, expected: int) -> None:
    if stated != expected:
        _fail(
            file,
            line,
            f"rank {stated} stands where rank {expected} was expected",
            "sort the ranks, leave none out",
        )


def _check_end(text: bytes, place: int, line: int, file: str) -> None:
    """Refuse what stands behind the last block, which ends at `place` in `line`."""
    # Blanks and comments may follow; comments are blanks by now.
    rest = BLANK.match(text, place)
    end = rest.end() if rest else place
    if end == len(text):
        return
    line += text.count(b"\n", place, end)
    _fail(file, line, "rank N { ... } was expected")


class _ScheduleColumns:
    """The columns of a schedule, to which blocks are added rank by rank."""

    def __init__(self, file: str, num_ranks: int) -> None:
        """Begin without rows; errors name `file`."""
        self._file = file
        self._num_ranks = num_ranks
        self._rows = 0
        empty = np.zeros(0, np.int64)
        # A part for each block, joined at the end: appending to arrays would copy them every time.
        self._columns = {name: [empty] for name in (*_COLUMNS, *_EDGES)}

    def add(self, rank: int, body: bytes, first_line: int) -> None:
        """Take the block of one rank, which begins in `first_line`."""
        found: list[tuple[bytes, ...]] = STATEMENT.findall(body)
        # The brace must stand on a line of its own, as a statement ends with its line.
        behind_last_line = body.rpartition(b"\n")[2].strip(b" \t")
        if len(found) != len(FILLED_LINE.findall(body)) or behind_last_line:
            self._refuse_line(body, first_line)
        if not found:
            return
        lines = first_line + np.flatnonzero(_is_text([*map(bytes.strip, body.split(b"\n"))]))
        label, *parts, later, word, earlier = zip(*found, strict=True)
        is_edge = _is_text(word)
        operations = {
            name: _picked(texts, ~is_edge)
            for name, texts in zip(OPERATION_PARTS, parts, strict=True)
        }
        self._add_operations(rank, operations, lines[~is_edge])
        # Labels that nothing waits for need not be unique.
        if is_edge.any():
            rows = self._rows_by_label(_picked(label, ~is_edge), lines[~is_edge])
            edges = [_picked(texts, is_edge) for texts in (earlier, later, word)]
            self._add_edges(edges, rows, lines[is_edge])
        self._rows += int(np.count_nonzero(~is_edge))

    def schedule(self) -> GoalSchedule:
        """Everything that was added, in the order of the file."""
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        return GoalSchedule(self._num_ranks, **columns)

    def _add_operations(self, rank: int, parts: Mapping[str, Texts], lines: Int64Array) -> None:
        """Add the operations of a rank, whose texts are given by `OPERATION_PARTS`."""
        columns = _operation_columns(rank, parts, lines)
        is_misplaced = _is_text(parts["tag"]) | _is_text(parts["nic"])
        is_calc = columns["operation"] == GoalOperation.CALC
        self._check(is_calc & is_misplaced, lines, "calc takes no tag and no nic")
        self._check_messages(columns)
        for name, column in columns.items():
            self._columns[name].append(column)

    def _check_messages(self, columns: Mapping[str, Int64Array]) -> None:
        """Refuse messages whose partner cannot be told."""
        lines, peer, tag = columns["line"], columns["peer"], columns["tag"]
        is_send = columns["operation"] == GoalOperation.SEND
        is_receive = columns["operation"] == GoalOperation.RECV
        # GOAL matches as MPI does, where -1 is any source or any tag.
        self._check(is_receive & ((peer == -1) | (tag == -1)), lines, _WILDCARD)
        self._check(is_send & (tag == -1), lines, "a send needs a tag of at least 0")
        self._check(
            (is_send | is_receive) & (peer >= self._num_ranks),
            lines,
            f"the peer is no rank of 0..{self._num_ranks - 1}",
        )
        self._check(tag > _LARGEST_TAG, lines, "the tag is larger than 2^31 - 1")

    def _rows_by_label(self, names: Texts, lines: Int64Array) -> dict[bytes, int]:
        """Row of every label of the block, in which it must be unique."""
        labels = {name: self._rows + row for row, name in enumerate(names) if name}
        if len(labels) < sum(map(bool, names)):
            self._refuse_repeated_label(names, lines)
        self._check_keywords(labels, lines)
        return labels

    def _check_keywords(self, labels: Mapping[bytes, int], lines: Int64Array) -> None:
        """Refuse labels that txt2bin would read as the begin of a statement."""
        keywords = KEYWORDS & labels.keys()
        if keywords:
            name = min(keywords)
            line = lines[labels[name] - self._rows]
            _fail(self._file, int(line), f"{name.decode()} is a keyword, not a label")

    def _refuse_repeated_label(self, names: Texts, lines: Int64Array) -> None:
        """Find the first label that stands twice."""
        seen: set[bytes] = set()
        for row, name in enumerate(names):
            if name and name in seen:
                message = f"the label {name.decode()[:80]} stands twice in its rank"
                _fail(self._file, int(lines[row]), message)
            seen.add(name)

    def _add_edges(
        self, texts: Sequence[Texts], rows: Mapping[bytes, int], lines: Int64Array
    ) -> None:
        """Add dependencies, given as labels of the earlier and the later operation, and words."""
        earlier, later, word = texts
        for names in (earlier, later):
            self._check_labels(names, rows, lines)
        parent, child = _looked_up(earlier, rows), _looked_up(later, rows)
        is_early = np.asarray(word) == b"irequires"
        self._columns["parent"].append(parent[~is_early])
        self._columns["child"].append(child[~is_early])
        self._columns["early_parent"].append(parent[is_early])
        self._columns["early_child"].append(child[is_early])

    def _check_labels(self, names: Texts, rows: Mapping[bytes, int], lines: Int64Array) -> None:
        """Refuse a dependency on a label that its block does not have."""
        # A label may stand in a dependency before its operation: the whole block is known here.
        unknown = set(names) - rows.keys()
        if unknown:
            first = next(index for index, name in enumerate(names) if name in unknown)
            label = names[first].decode()[:80]
            message = f"no operation of this rank has the label {label}"
            _fail(self._file, int(lines[first]), message)

    def _check(self, is_wrong: BoolArray, lines: Int64Array, message: str) -> None:
        """Refuse the first line for which something is wrong.

        `is_wrong`: by operation, as `lines`.
        """
        if is_wrong.any():
            first = int(is_wrong.argmax())
            _fail(self._file, int(lines[first]), message)

    def _refuse_line(self, body: bytes, first_line: int) -> NoReturn:
        """Find the line of a block that is no statement."""
        lines = body.split(b"\n")
        # Line by line this time, as one pattern for the block does not tell where it stopped.
        for number, line in enumerate(lines, first_line):
            if line.strip(b" \t") and not STATEMENT.match(line):
                text = line.strip().decode("utf-8", "replace")[:80]
                _fail(self._file, number, f"{text!r} is no statement: {EXPECTED}")
        _fail(
            self._file,
            first_line + len(lines) - 1,
            "a statement ends with its line; } stands on the next one",
        )


def _operation_columns(
    rank: int, parts: Mapping[str, Texts], lines: Int64Array
) -> dict[str, Int64Array]:
    """Columns of a schedule, by the texts of operations; a part that is not stated is empty."""
    kinds = [_is_text(parts["send"]), _is_text(parts["recv"])]
    operations = [GoalOperation.SEND, GoalOperation.RECV]
    # An operation states one of the three sizes.
    amounts = [_numbers(parts[name], 0) for name in ("calc", "send", "recv")]
    peers = [_numbers(parts[name], -1) for name in ("to", "from")]
    return {
        "rank": np.full(len(lines), rank, np.int64),
        "operation": np.select(kinds, operations, GoalOperation.CALC).astype(np.int64),
        "amount": sum(amounts, np.zeros(len(lines), np.int64)),
        "peer": np.select(kinds, peers, -1),
        "tag": _numbers(parts["tag"], 0),
        "cpu": _numbers(parts["cpu"], -1),
        "nic": _numbers(parts["nic"], -1),
        "line": lines,
    }


def _picked(texts: Texts, is_picked: BoolArray) -> Texts:
    """The texts of some rows."""
    return list(compress(texts, is_picked.tolist()))


def _is_text(texts: Texts) -> BoolArray:
    """Whether each text is not empty: bool, by row."""
    return np.fromiter(map(bool, texts), np.bool_, len(texts))


def _numbers(texts: Texts, default: int) -> Int64Array:
    """The numbers of texts, with a default for empty ones."""
    numbers = (int(text) if text else default for text in texts)
    return np.fromiter(numbers, np.int64, len(texts))


def _looked_up(names: Texts, rows: Mapping[bytes, int]) -> Int64Array:
    """Row of every label."""
    return np.fromiter(map(rows.__getitem__, names), np.int64, len(names))


def _fail(file: str, line: int, message: str, cure: str = "") -> NoReturn:
    """Refuse the file because of one line."""
    raise InputError(
        message,
        location=Location(file, line),
        cure=cure,
        code="invalid-goal",
    )
