"""Elements under construction: their values as codes, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from collhub_msccl.reading.alike_steps import StepRun
from collhub_msccl.reading.element_tables import ElementTable

# Texts are encoded in batches, so that few Python strings are alive at a time.
_FLUSH_TEXTS = 1 << 13
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}


class ElementRows:
    """The elements of one name so far."""

    def __init__(self, name: str, codes: Mapping[str | None, int]) -> None:
        self.attributes = _ATTRIBUTES[name]
        self.lines: list[int] = []
        self.first_child: list[int] = []
        self.unknown: Counter[str] = Counter()
        self._codes = codes
        self._texts: list[str | None] = []
        self._pieces: list[npt.NDArray[np.int32]] = []
        # Attributes in the order of the last element, and where ours stand there. Elements of one
        # file look alike, so the order is compared once an element and computed once a file; None
        # for elements that have just our attributes in our order.
        self._layout: list[str] = []
        self._order: list[int] | None = None

    def add(self, pairs: list[str], line: int) -> None:
        """Take an element: names and values in turn, as expat gives ordered attributes."""
        names = pairs[::2]
        if names != self._layout:
            self._change_layout(names)
        texts: list[str | None] = pairs[1::2]  # type: ignore[assignment]
        # Rare: most files print just the ten attributes of a step, in one order.
        if self._order is not None:
            texts = [texts[position] if position >= 0 else None for position in self._order]
            self._count_unknown(names)
        self._texts.extend(texts)
        self.lines.append(line)
        if len(self._texts) >= _FLUSH_TEXTS:
            self._flush()

    def add_run(self, run: StepRun) -> None:
        """Take the elements of a run after the first, which was added last."""
        self._flush()
        known = np.fromiter(map(self._codes.__getitem__, run.texts), np.int32, len(run.texts))
        codes = known[run.codes[1:]]
        if self._order is not None:
            # A missing attribute is read from a last column.
            missing = np.full(len(codes), self._codes[None], np.int32)
            codes = np.column_stack([codes, missing])[:, self._order]
            self._count_unknown(self._layout * len(codes))
        self._pieces.append(codes.ravel())
        # A run may stand in one line.
        lines = self.lines[-1] + run.lines * np.arange(1, len(run.codes))
        self.lines.extend(lines.tolist())

    def table(self, child_rows: int) -> ElementTable:
        """Everything that was added; `child_rows`: length of the child table."""
        self._flush()
        codes = np.concatenate(self._pieces).reshape(-1, len(self.attributes))
        first_child = np.asarray([*self.first_child, child_rows], np.int64)
        lines = np.asarray(self.lines, np.int64)
        return ElementTable(self.attributes, codes, lines, first_child)

    def _change_layout(self, names: list[str]) -> None:
        """Find our attributes among those of an element; a missing one stands at -1."""
        position = {name: index for index, name in enumerate(names)}
        order = [position.get(attribute, -1) for attribute in self.attributes]
        is_ours = order == list(range(len(names)))
        self._layout = names
        self._order = None if is_ours else order

    def _count_unknown(self, names: list[str]) -> None:
        self.unknown.update(name for name in names if name not in self.attributes)

    def _flush(self) -> None:
        """Replace the texts that wait by their codes."""
        codes = map(self._codes.__getitem__, self._texts)
        self._pieces.append(np.fromiter(codes, np.int32, len(self._texts)))
        self._texts.clear()
