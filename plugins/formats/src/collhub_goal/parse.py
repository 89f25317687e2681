"""Parse GOAL text block by block; text outside of the grammar is refused with its line.

One pattern splits a block into columns, so that files of millions of lines are read without a
Python object per operation.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NoReturn

import numpy as np

from collhub_goal.schedule import (
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
    GoalOperation,
    GoalSchedule,
)
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError, Location

Texts = Sequence[bytes]

MAX_BYTES = 4 << 30
MAX_RANKS = 1 << 20
_COLUMNS = ("rank", "operation", "amount", "peer", "tag", "cpu", "nic", "line")
_EDGES = ("parent", "child", "early_parent", "early_child")
_WILDCARD = (
    "a receive from any rank, or with any tag, matches no particular message: its sender is unknown"
)


def parse_goal(content: bytes, file: str) -> GoalSchedule:
    """Parse a GOAL file into a schedule: the head `num_ranks N`, then one block for each rank.

    A block is `rank R { ... }` with one statement per line; it may be empty. The ranks must be
    0, 1, ... N - 1 in this order. A UTF-8 byte order mark, comments and Windows line ends are
    removed. `file`: name for errors.

    Raises `InputError` for the first of these errors, all but `too-large` with a line:

    - `too-large`: above `MAX_BYTES` (4 GiB); `goal-syntax`: an unclosed comment `/*`
    - the errors of `_parse_head`
    - block by block: `goal-ranks` for a rank that is not the next one, or is above N - 1; then
      the errors of the block's statements (`_ScheduleColumns.add`)
    - `goal-syntax`: other text after the last block; `goal-ranks`: fewer than N blocks
    """
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 30} GiB",
            location=Location(file),
            code="too-large",
        )
    # Lines may have Windows line ends; their numbers stay.
    plain = content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")
    text = _remove_comments(plain, file)
    num_ranks, offset = _parse_head(text, file)
    columns = _ScheduleColumns(file, num_ranks)
    line = 1 + text.count(b"\n", 0, offset)
    ranks = 0
    while block := BLOCK.match(text, offset):
        # Lines are counted while the text is processed, which costs linear time.
        line += text.count(b"\n", offset, block.start(2))
        rank = int(block[1])
        if rank != ranks:
            message = f"found rank {rank}, expected rank {ranks}"
            _fail(file, line, "goal-ranks", message, "list all ranks in ascending order")
        if rank >= num_ranks:
            _fail(
                file,
                line,
                "goal-ranks",
                f"rank {rank} is not in 0..{num_ranks - 1}, the ranks of `num_ranks {num_ranks}`",
                "correct `num_ranks`, or remove the block",
            )
        columns.add(ranks, block[2], line)
        line += text.count(b"\n", block.start(2), block.end())
        offset = block.end()
        ranks += 1
    # Only white space may follow the last block; comments have become blanks.
    rest = BLANK.match(text, offset)
    stop = rest.end() if rest else offset
    if stop < len(text):
        line += text.count(b"\n", offset, stop)
        _fail(file, line, "goal-syntax", "rank N { ... } was expected")
    if ranks < num_ranks:
        message = f"the file ends after {ranks} of {num_ranks} ranks"
        _fail(file, line, "goal-ranks", message, "get the complete file")
    return columns.build_schedule()


def _remove_comments(content: bytes, file: str) -> bytes:
    """Return the text without comments; only their line ends remain, so that line numbers stay.

    A comment is `// ...` to the end of the line, or `/* ... */`, which may have several lines. Only
    blanks and tabs may precede it in its line; they are removed too. Text after `*/` stays, and a
    comment after other text of a line is not removed.

    Raises `InputError` (`goal-syntax`) if a comment `/*` begins after the last `*/` of the file,
    with the line of the first such comment.
    """
    if b"/" not in content:
        return content
    # Checked first: the pattern would search the end of the file for every unclosed comment.
    unclosed = OPEN_COMMENT.search(content, content.rfind(b"*/") + 1)
    if unclosed:
        line = 1 + content.count(b"\n", 0, unclosed.end())
        _fail(file, line, "goal-syntax", "a comment /* is not closed")
    # Line ends stay, so that lines keep their numbers.
    return COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)


def _parse_head(text: bytes, file: str) -> tuple[int, int]:
    """Parse the first line that is not blank, `num_ranks N`; return (N, offset of the next line).

    Spaces may surround the words; comments are not accepted. Raises `InputError`, always with line
    1:

    - `goal-syntax`: the text does not begin with this line, the line has no line end, or N has more
      than nine digits
    - `goal-ranks`: N is not in 1..`MAX_RANKS`
    """
    head = HEAD.match(text)
    if head is None:
        _fail(
            file,
            1,
            "goal-syntax",
            "num_ranks N was expected, on a separate line",
            "give a GOAL schedule as text, not the binary of txt2bin",
        )
    num_ranks = int(head[1])
    if not 1 <= num_ranks <= MAX_RANKS:
        _fail(file, 1, "goal-ranks", f"num_ranks {num_ranks} is not in 1..{MAX_RANKS}")
    return num_ranks, head.end()


class _ScheduleColumns:
    """Columns of a schedule, to which blocks are added rank by rank."""

    def __init__(self, file: str, num_ranks: int) -> None:
        """Create empty columns; `add` then appends the blocks of ranks.

        `file` is the name for error messages. `num_ranks` is the declared number of ranks; every
        peer must be smaller.
        """
        self._file = file
        self._num_ranks = num_ranks
        self._rows = 0
        empty = np.zeros(0, np.int64)
        # One array per block, concatenated at the end: appending to arrays would copy them every
        # time.
        self._columns = {name: [empty] for name in (*_COLUMNS, *_EDGES)}

    def add(self, rank: int, body: bytes, first_line: int) -> None:
        """Append the operations and dependencies of one rank, in the order of their lines.

        `body` is the text between the braces, and `first_line` the line in which it begins. Labels
        are valid in this rank only. A body without statements adds nothing. Raises `InputError` for
        the first of these rules that is violated anywhere in the body, with the first line that
        violates it:

        - Every line is blank or one statement, and the closing brace is on a separate line
          (`goal-syntax`, `_refuse_line`).
        - A calc has no tag and no nic (`goal-syntax`).
        - The rules for messages (`goal-syntax`, `_check_messages`).
        - Only if the rank has dependencies: no label occurs twice, no label is a keyword, and every
          label in a dependency belongs to an operation of the rank (`goal-label`).

        After an error the columns may be incomplete.
        """
        statements: list[tuple[bytes, ...]] = STATEMENT.findall(body)
        # The closing brace must be on a separate line, because a statement ends with its line.
        last_line = body.rpartition(b"\n")[2].strip(b" \t")
        if len(statements) != len(FILLED_LINE.findall(body)) or last_line:
            self._refuse_line(body, first_line)
        if not statements:
            return
        lines = first_line + np.flatnonzero(_is_text([*map(bytes.strip, body.split(b"\n"))]))
        label, *parts, later, word, earlier = zip(*statements, strict=True)
        is_edge = _is_text(word)
        operations = {
            name: _select_texts(texts, ~is_edge)
            for name, texts in zip(OPERATION_PARTS, parts, strict=True)
        }
        columns = _build_columns(rank, operations, lines[~is_edge])
        is_misplaced = _is_text(operations["tag"]) | _is_text(operations["nic"])
        is_calc = columns["operation"] == GoalOperation.CALC
        self._check(is_calc & is_misplaced, columns["line"], "calc takes no tag and no nic")
        self._check_messages(columns)
        for name, column in columns.items():
            self._columns[name].append(column)
        # Labels without dependencies need not be unique.
        if is_edge.any():
            rows = self._map_labels(_select_texts(label, ~is_edge), lines[~is_edge])
            edges = [_select_texts(texts, is_edge) for texts in (earlier, later, word)]
            self._add_edges(edges, rows, lines[is_edge])
        self._rows += int(np.count_nonzero(~is_edge))

    def build_schedule(self) -> GoalSchedule:
        """Return the schedule of all appended blocks, in the order of the file.

        Without blocks its columns are empty.
        """
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        return GoalSchedule(self._num_ranks, **columns)

    def _check_messages(self, columns: Mapping[str, Int64Array]) -> None:
        """Raise `InputError` for a message with an indefinite or invalid partner or tag.

        The rules are checked in this order, and the error has the line of the first message that
        violates one:

        - A receive has neither the peer -1 (any rank) nor the tag -1 (any tag).
        - A send does not have the tag -1.
        - The peer is a rank of the schedule.
        """
        lines, peer, tag = columns["line"], columns["peer"], columns["tag"]
        is_send = columns["operation"] == GoalOperation.SEND
        is_receive = columns["operation"] == GoalOperation.RECV
        # GOAL matches like MPI, where -1 means any source or any tag.
        self._check(is_receive & ((peer == -1) | (tag == -1)), lines, _WILDCARD)
        self._check(is_send & (tag == -1), lines, "a send needs a tag of at least 0")
        self._check(
            (is_send | is_receive) & (peer >= self._num_ranks),
            lines,
            f"the peer is no rank of 0..{self._num_ranks - 1}",
        )

    def _map_labels(self, names: Texts, lines: Int64Array) -> dict[bytes, int]:
        """Map every label of a rank's block to the row of its operation in the entire schedule.

        `names`: the label of every operation of the block, empty for none; `lines`: the line of
        each operation. Row i of the block is row `self._rows` + i of the schedule. Operations
        without a label are left out. Nothing is changed.

        Raises `InputError` (`goal-label`). A repeated label is refused first, at the line of its
        second occurrence; of several, the second occurrence that comes first. Then a label that is
        a keyword of the grammar is refused at its line; of several, the alphabetically first.
        """
        labels = {name: self._rows + row for row, name in enumerate(names) if name}
        if len(labels) < sum(map(bool, names)):
            self._refuse_repeated_label(names, lines)
        keywords = KEYWORDS & labels.keys()
        if keywords:
            name = min(keywords)
            line = lines[labels[name] - self._rows]
            _fail(self._file, int(line), "goal-label", f"{name.decode()} is a keyword, not a label")
        return labels

    def _refuse_repeated_label(self, names: Texts, lines: Int64Array) -> None:
        """Raise `InputError` at the line of the first label that has occurred before in the rank.

        Empty names are not labels. Returns normally if no label is repeated.
        """
        seen: set[bytes] = set()
        for row, name in enumerate(names):
            if name and name in seen:
                message = f"the label {name.decode()[:80]} occurs twice in its rank"
                _fail(self._file, int(lines[row]), "goal-label", message)
            seen.add(name)

    def _add_edges(
        self, texts: Sequence[Texts], rows: Mapping[bytes, int], lines: Int64Array
    ) -> None:
        """Append the dependencies of a block, in the order of their lines.

        `texts` has three columns: the label that is awaited, the label that waits, and the keyword.
        The keyword `requires` waits for the end of an operation, `irequires` for its start; they go
        to different columns. `rows` has the row by label. Raises `InputError` (`goal-label`) for
        the first awaited label that no operation of the block has, then for the first waiting one.
        """
        earlier, later, word = texts
        for names in (earlier, later):
            # A dependency may precede the operations of its labels, so the block must be complete.
            unknown = set(names) - rows.keys()
            if unknown:
                first = next(index for index, name in enumerate(names) if name in unknown)
                label = names[first].decode()[:80]
                message = f"no operation of this rank has the label {label}"
                _fail(self._file, int(lines[first]), "goal-label", message)
        parent, child = _look_up_rows(earlier, rows), _look_up_rows(later, rows)
        is_early = np.asarray(word) == b"irequires"
        self._columns["parent"].append(parent[~is_early])
        self._columns["child"].append(child[~is_early])
        self._columns["early_parent"].append(parent[is_early])
        self._columns["early_child"].append(child[is_early])

    def _check(self, is_wrong: BoolArray, lines: Int64Array, message: str) -> None:
        """Raise `InputError` at the line of the first operation marked in `is_wrong`."""
        if is_wrong.any():
            first = int(is_wrong.argmax())
            _fail(self._file, int(lines[first]), "goal-syntax", message)

    def _refuse_line(self, body: bytes, first_line: int) -> NoReturn:
        """Raise `InputError` (`goal-syntax`) at the first line of a block that is not a statement.

        If every line is a statement, the error has the last line: there the closing brace follows a
        statement, which is not permitted.
        """
        lines = body.split(b"\n")
        # Line by line, because the pattern for a block does not report where it failed.
        for number, line in enumerate(lines, first_line):
            if line.strip(b" \t") and not STATEMENT.match(line):
                text = line.strip().decode("utf-8", "replace")[:80]
                _fail(self._file, number, "goal-syntax", f"{text!r} is not a statement: {EXPECTED}")
        _fail(
            self._file,
            first_line + len(lines) - 1,
            "goal-syntax",
            "a statement ends with its line; } must be on the next one",
        )


def _build_columns(
    rank: int, parts: Mapping[str, Texts], lines: Int64Array
) -> dict[str, Int64Array]:
    """Convert the texts of a rank's operations to int64 arrays by name of the column (`_COLUMNS`).

    `parts`: texts by `OPERATION_PARTS`, one per operation, "" if omitted. Each array has one entry
    per operation, in the given order:

    - `rank`, `line`: `rank` in every entry, and `lines` itself.
    - `operation`: SEND with a text in `send`, else RECV with one in `recv`, else CALC.
    - `amount`: the sum of `calc` (ns), `send` and `recv` (bytes), each 0 if omitted.
    - `peer`: `to` of a SEND, `from` of a RECV; -1 if omitted and for CALC.
    - `tag`: 0 if omitted. `cpu`, `nic`: -1 if omitted.

    Raises `ValueError` for a text that is no integer, and `OverflowError` for one outside of int64.
    """
    kinds = [_is_text(parts["send"]), _is_text(parts["recv"])]
    operations = [GoalOperation.SEND, GoalOperation.RECV]
    # An operation has one of the three sizes.
    amounts = [_parse_numbers(parts[name], 0) for name in ("calc", "send", "recv")]
    peers = [_parse_numbers(parts[name], -1) for name in ("to", "from")]
    return {
        "rank": np.full(len(lines), rank, np.int64),
        "operation": np.select(kinds, operations, GoalOperation.CALC).astype(np.int64),
        "amount": sum(amounts, np.zeros(len(lines), np.int64)),
        "peer": np.select(kinds, peers, -1),
        "tag": _parse_numbers(parts["tag"], 0),
        "cpu": _parse_numbers(parts["cpu"], -1),
        "nic": _parse_numbers(parts["nic"], -1),
        "line": lines,
    }


def _select_texts(texts: Texts, is_selected: BoolArray) -> Texts:
    """Texts of the selected rows."""
    return list(compress(texts, is_selected.tolist()))


def _is_text(texts: Texts) -> BoolArray:
    """Whether each text is not empty: bool by row."""
    return np.fromiter(map(bool, texts), np.bool_, len(texts))


def _parse_numbers(texts: Texts, default: int) -> Int64Array:
    """Parse decimal texts to int64, in their order; an empty text becomes `default`.

    Raises `ValueError` for a text that is not an integer, and `OverflowError` for an integer
    outside -2^63..2^63 - 1.
    """
    numbers = (int(text) if text else default for text in texts)
    return np.fromiter(numbers, np.int64, len(texts))


def _look_up_rows(names: Texts, rows: Mapping[bytes, int]) -> Int64Array:
    """Row of every label."""
    return np.fromiter(map(rows.__getitem__, names), np.int64, len(names))


def _fail(file: str, line: int, rule: str, message: str, cure: str = "") -> NoReturn:
    """Raise `InputError` of a rule at a line of the file."""
    raise InputError(
        message,
        location=Location(file, line),
        cure=cure,
        code=rule,
    )
