"""Tables of the elements of a scanned file, one row per element, with line numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collhub_msccl.numbers import NumberState, parse_number
from hub_core.columns import Int64Array


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
        """Code of missing attributes; -1 if no attribute is missing."""
        if None not in self._texts:
            return -1
        return self._texts.index(None)

    @cached_property
    def numbers(self) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Value (int64) and `NumberState` (uint8) of every text, indexed by code."""
        values: list[int] = []
        states: list[int] = []
        for text in self._texts:
            value, state = (0, NumberState.NO_NUMBER) if text is None else parse_number(text)
            values.append(value)
            states.append(state)
        return np.asarray(values, np.int64), np.asarray(states, np.uint8)

    def positions_in(self, words: Sequence[str]) -> Int64Array:
        """Index in `words` of every text, int64 by code; -1 if not included."""
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
    `is_short`: steps are written as `<op>`, see `short_form`.
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
        """The table of a tag: `gpu`, `tb` or `step`."""
        tables = {"gpu": self.gpus, "tb": self.thread_blocks, "step": self.steps}
        return tables[tag]

    def name(self, tag: str, row: int) -> str:
        """Name of a row for messages, with the ids as written."""
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
        """Rank of every row of a tag's table, int64; -1 if the id is not a number."""
        values, states = self.texts.numbers
        ids = self.gpus.column("id")
        rank = np.where(states[ids] == NumberState.FINE, values[ids], -1)
        # An element has the rank of its parent: repeat it once per level of the tree.
        if tag in ("tb", "step"):
            rank = np.repeat(rank, np.diff(self.gpus.first_child))
        if tag == "step":
            rank = np.repeat(rank, np.diff(self.thread_blocks.first_child))
        return rank
