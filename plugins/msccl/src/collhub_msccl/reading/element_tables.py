"""Tables of the elements of a scanned file, one row per element, with line numbers.

Tables under construction encode attribute values in batches.

The short form of the `ncclize` programs has `<op>` instead of `<step>`, with one location each.
Source: msccl-tools 030a750 and TACCL 426bd1e, `ncclize` with `old_format` false. No runtime reads
it. An operation has one location: that a send reads or a receive writes. Counts, dependencies and
most attributes of `<algo>` are omitted if they have the usual value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import NumberState, parse_number
from collhub_msccl.reading.alike_steps import StepRun
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location


class Texts:
    """Distinct attribute values of a file; None represents a missing attribute.

    Tables contain indices into it ("codes").
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        """Store the texts; the index of a text is its code."""
        self._texts = texts

    def __getitem__(self, code: int) -> str | None:
        """The text of a code; None for a missing attribute."""
        return self._texts[code]

    @cached_property
    def missing(self) -> int:
        """Return the code of a missing attribute in the tables.

        -1, which no entry has, if no attribute is missing.
        """
        if None not in self._texts:
            return -1
        return self._texts.index(None)

    @cached_property
    def numbers(self) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Return the value (int64) and the `NumberState` (uint8) of every text, indexed by code.

        They are those of `parse_number`. A missing attribute has the value 0 and NO_NUMBER.
        """
        values: list[int] = []
        states: list[int] = []
        for text in self._texts:
            value, state = (0, NumberState.NO_NUMBER) if text is None else parse_number(text)
            values.append(value)
            states.append(state)
        return np.asarray(values, np.int64), np.asarray(states, np.uint8)

    def positions_in(self, words: Sequence[str]) -> Int64Array:
        """Return for every code the index of its text in `words`: int64, -1 if it is not there.

        A missing attribute has -1. Of a word that occurs repeatedly, the last index counts.
        """
        known: dict[str | None, int] = {word: index for index, word in enumerate(words)}
        return np.asarray([known.get(text, -1) for text in self._texts], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ElementTable:
    """Elements of one tag in document order.

    `codes`: int32[rows, attributes], indices into `Texts`; `line`: int64[rows]; `first_child`:
    int64[rows + 1], row pointer into the child table.
    """

    attributes: tuple[str, ...]
    codes: npt.NDArray[np.int32]
    line: Int64Array
    first_child: Int64Array

    def __len__(self) -> int:
        return len(self.line)

    def column(self, attribute: str) -> npt.NDArray[np.int32]:
        """Codes of one attribute, int32 per row."""
        return self.codes[:, self.attributes.index(attribute)]


@dataclass(frozen=True, slots=True)
class ScannedXml:
    """A scanned file: attributes of `<algo>` verbatim, and the tables of its elements.

    `copies`: `<gpu>` row, attributes and line of every `<copy>`, which no runtime reads.
    `is_short`: steps are written as `<op>`, see `to_step`.
    """

    algo: Mapping[str, str]
    algo_line: int
    gpus: ElementTable
    thread_blocks: ElementTable
    steps: ElementTable
    texts: Texts
    copies: Sequence[tuple[int, Mapping[str, str], int]] = ()
    is_short: bool = False

    def table(self, tag: str) -> ElementTable:
        """Return the table with one row per element of a tag: `gpu`, `tb` or `step`.

        Raises `KeyError` for another tag.
        """
        tables = {"gpu": self.gpus, "tb": self.thread_blocks, "step": self.steps}
        return tables[tag]

    def name(self, tag: str, row: int) -> str:
        """Return the name of a row for messages.

        For a `<gpu>` or `<tb>` it is like `<tb> with id 3`, for a step like `thread block 3,
        step 0`. Ids are as written in the file, `None` if missing. Steps are counted from 0 in
        their thread block.
        """
        if tag != "step":
            code = self.table(tag).column("id")[row]
            return f"<{tag}> with id {self.texts[code]}"
        first_step = self.thread_blocks.first_child
        # The last thread block that begins at or before the step; empty ones share their beginning
        # with the next.
        block = int(np.searchsorted(first_step[:-1], row, "right")) - 1
        code = self.thread_blocks.column("id")[block]
        return f"thread block {self.texts[code]}, step {row - int(first_step[block])}"

    def ranks(self, tag: str) -> Int64Array:
        """Return the rank of every row of a tag's table, int64: the id of the `<gpu>` around it.

        `tag`: `gpu`, `tb` or `step`. The rank is -1 if the id is missing, is not a number below
        2^31, or has further characters. An id that exceeds the number of ranks, or is negative,
        is returned unchanged.
        """
        values, states = self.texts.numbers
        ids = self.gpus.column("id")
        rank = np.where(states[ids] == NumberState.FINE, values[ids], -1)
        # An element has the rank of its parent: repeat it once per level of the tree.
        if tag in ("tb", "step"):
            rank = np.repeat(rank, np.diff(self.gpus.first_child))
        if tag == "step":
            rank = np.repeat(rank, np.diff(self.thread_blocks.first_child))
        return rank


# Texts are encoded in batches, so that few Python strings exist at a time.
_FLUSH_TEXTS = 1 << 13
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}


class ElementRows:
    """Elements of one tag (gpu, tb or step) that were scanned so far.

    `lines`: their lines; `first_child`: the caller appends the first row in the child table;
    `unknown`: number of occurrences of ignored attributes.
    """

    def __init__(self, name: str, codes: Mapping[str | None, int]) -> None:
        self.attributes = _ATTRIBUTES[name]
        self.lines: list[int] = []
        self.first_child: list[int] = []
        self.unknown: Counter[str] = Counter()
        self._codes = codes
        self._texts: list[str | None] = []
        self._pieces: list[npt.NDArray[np.int32]] = []
        # Attribute names of the last element, and the positions of the known attributes among them.
        # Elements of one file have the same layout, so it is compared once per element and computed
        # once per file; `_order` is None if it is exactly the known attributes in order.
        self._layout: list[str] = []
        self._order: list[int] | None = None

    def add(self, pairs: list[str], line: int) -> None:
        """Append an element with the given attributes, which is in line `line` of the file.

        `pairs`: alternating names and values (expat's ordered attributes). Unknown attributes are
        counted in `unknown` and dropped. Missing attributes are stored as None. Texts are collected
        and converted to codes in batches of at least 8 192.
        """
        names = pairs[::2]
        if names != self._layout:
            # A missing known attribute gets position -1.
            position = {name: index for index, name in enumerate(names)}
            order = [position.get(attribute, -1) for attribute in self.attributes]
            is_ours = order == list(range(len(names)))
            self._layout = names
            self._order = None if is_ours else order
        texts: list[str | None] = pairs[1::2]  # type: ignore[assignment]
        # Rare: most files have exactly the known attributes in one order.
        if self._order is not None:
            texts = [texts[position] if position >= 0 else None for position in self._order]
            self._count_unknown(names)
        self._texts.extend(texts)
        self.lines.append(line)
        if len(self._texts) >= _FLUSH_TEXTS:
            self._flush()

    def add_run(self, run: StepRun) -> None:
        """Append the elements of a run, except the first one, which was appended last.

        All elements of a run have the attributes of the first one; missing attributes are stored as
        missing, and unknown ones are counted in `unknown` for each element. Each element is
        `run.lines` lines after the previous one.
        """
        self._flush()
        known = np.fromiter(map(self._codes.__getitem__, run.texts), np.int32, len(run.texts))
        codes = known[run.codes[1:]]
        if self._order is not None:
            # The index -1 of a missing attribute selects the last column.
            missing = np.full(len(codes), self._codes[None], np.int32)
            codes = np.column_stack([codes, missing])[:, self._order]
            self._count_unknown(self._layout * len(codes))
        self._pieces.append(codes.ravel())
        # `run.lines` is 0 if the steps are in one line.
        lines = self.lines[-1] + run.lines * np.arange(1, len(run.codes))
        self.lines.extend(lines.tolist())

    def build_table(self, child_rows: int) -> ElementTable:
        """Build the table of all appended elements.

        It has one row of codes per element with one column per known attribute, the line of
        each element, and the row of its first child. The last entry of `first_child` in the
        table is `child_rows`, the length of the child table. Pending texts are converted to
        codes first.
        """
        self._flush()
        codes = np.concatenate(self._pieces).reshape(-1, len(self.attributes))
        first_child = np.asarray([*self.first_child, child_rows], np.int64)
        lines = np.asarray(self.lines, np.int64)
        return ElementTable(self.attributes, codes, lines, first_child)

    def _count_unknown(self, names: list[str]) -> None:
        """Count the attributes that no runtime knows in `unknown`."""
        self.unknown.update(name for name in names if name not in self.attributes)

    def _flush(self) -> None:
        """Encode the pending texts of attributes, append their codes, and clear the pending texts.

        Codes are int32. A text without a code gets the next number in the mapping of codes,
        which the rows of all tags share.
        """
        codes = map(self._codes.__getitem__, self._texts)
        self._pieces.append(np.fromiter(codes, np.int32, len(self._texts)))
        self._texts.clear()


_DEFAULT_ATTRIBUTES = (("cnt", "1"), ("depid", "-1"), ("deps", "-1"), ("hasdep", "0"))
# The collectives for which TACCL's normal header has inplace="1".
_IN_PLACE_COLLECTIVES = frozenset({"allgather", "allreduce", "reduce_scatter"})
_TACCL_NAME = "taccl"


def to_step(attributes: list[str], file: str, line: int) -> list[str]:
    """Convert the attributes of an `<op>` to those of a `<step>`; return a new list.

    Both lists alternate names and values. The result has, in this order:

    - `s`: the attribute `step` of the `<op>`
    - `srcbuf` and `srcoff`, `dstbuf` and `dstoff`: its `buf` and `off`, equal for both ends
    - `cnt`, `depid`, `deps`, `hasdep`: its values, by default 1, -1, -1 and 0
    - all other attributes of the `<op>`, also unknown ones, in their order

    `step`, `buf` and `off` become "" if they are missing. An attribute of the `<op>` that is
    itself called `s`, `srcbuf`, `srcoff`, `dstbuf` or `dstoff` keeps its value. Values are not
    checked.

    Raises `InputError` (`short-form`) at `line` of `file` for the types `cpy` and `re` (local
    copy and reduction). They need two locations, and an `<op>` has one.
    """
    given_attributes = dict(zip(attributes[::2], attributes[1::2], strict=True))
    kind = given_attributes.get("type", "")
    if kind in ("cpy", "re"):
        raise InputError(
            f"an <op> of type {kind!r} has two locations, but the short form gives only one",
            location=Location(file, line),
            cure="write the file with old_format",
            code="short-form",
        )
    location = {"buf": given_attributes.pop("buf", ""), "off": given_attributes.pop("off", "")}
    step = {"s": given_attributes.pop("step", "")}
    for end in ("src", "dst"):
        step |= {f"{end}{name}": text for name, text in location.items()}
    step |= dict(_DEFAULT_ATTRIBUTES) | given_attributes
    return [text for pair in step.items() for text in pair]


def complete_header(document: ScannedXml, collective: str | None, file: str) -> ScannedXml:
    """Return a document with the attributes of `<algo>` that the short form of ncclize omits.

    The result is a copy with these attributes. Those that the file has keep their texts:

    - `coll`: `collective`
    - `proto`: Simple
    - `ngpus`: the number of `<gpu>` elements
    - `nchunksperloop`: the largest `i_chunks` or `o_chunks` of all `<gpu>`, at least 1
    - `inplace`: 1 if the file's `name` is `taccl` and the resulting `coll` is allgather, allreduce
      or reduce_scatter; otherwise 0

    Raises `InputError` (`short-form`), at the line of `<algo>` in `file`, without any `coll`. A
    document in the long form (not `is_short`) gets `coll` only, in the same way; without a change
    it is returned itself, and no error is raised.
    """
    if not document.is_short:
        if collective is None or "coll" in document.algo:
            return document
        return replace(document, algo={**document.algo, "coll": collective})
    name = document.algo.get("coll", collective)
    if name is None:
        raise InputError(
            "this is the short form of ncclize, with <op>: it does not name its collective, "
            "and no runtime reads it",
            location=Location(file, document.algo_line),
            cure="give the collective: -O collective=allgather, or write it with old_format",
            code="short-form",
        )
    gpus, texts = document.gpus, document.texts
    unit_count = max(_find_maximum(gpus, texts, "i_chunks"), _find_maximum(gpus, texts, "o_chunks"))
    is_of_taccl = document.algo.get("name") == _TACCL_NAME
    usual: Mapping[str, str] = {
        "coll": name,
        "proto": "Simple",
        "ngpus": str(len(gpus)),
        "nchunksperloop": str(unit_count),
        "inplace": str(int(is_of_taccl and name in _IN_PLACE_COLLECTIVES)),
    }
    return replace(document, algo={**usual, **document.algo})


def _find_maximum(gpus: ElementTable, texts: Texts, attribute: str) -> int:
    """Return the maximum of a numeric attribute of all `<gpu>`, at least 1.

    Numbers are parsed by `parse_number`: text after a number is ignored. A missing
    attribute, a text that begins with no number, and a number out of range count as 0.
    """
    values, _ = texts.numbers
    return int(np.max(values[gpus.column(attribute)], initial=1))
