"""Tables of elements under construction: attribute values are encoded in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from collhub_msccl.reading.alike_steps import StepRun
from collhub_msccl.reading.element_tables import ElementTable

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
        """Append an element. `pairs`: alternating names and values (expat's ordered attributes)."""
        names = pairs[::2]
        if names != self._layout:
            self._change_layout(names)
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
        """Append the elements of a run except the first, which was appended last."""
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
        """Table of all appended elements; `child_rows`: length of the child table."""
        self._flush()
        codes = np.concatenate(self._pieces).reshape(-1, len(self.attributes))
        first_child = np.asarray([*self.first_child, child_rows], np.int64)
        lines = np.asarray(self.lines, np.int64)
        return ElementTable(self.attributes, codes, lines, first_child)

    def _change_layout(self, names: list[str]) -> None:
        """Store the layout of an element; a missing known attribute gets position -1."""
        position = {name: index for index, name in enumerate(names)}
        order = [position.get(attribute, -1) for attribute in self.attributes]
        is_ours = order == list(range(len(names)))
        self._layout = names
        self._order = None if is_ours else order

    def _count_unknown(self, names: list[str]) -> None:
        """Count the attributes that no runtime knows in `unknown`."""
        self.unknown.update(name for name in names if name not in self.attributes)

    def _flush(self) -> None:
        """Encode the pending texts and append their codes."""
        codes = map(self._codes.__getitem__, self._texts)
        self._pieces.append(np.fromiter(codes, np.int32, len(self._texts)))
        self._texts.clear()
