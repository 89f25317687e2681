"""From decoded records, each of which stands for many nodes, to the columns of all nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collhub_job_traces.node import DecodedNode
from hub_core.columns import Int64Array, expanded_ranges, row_pointer

_NUMBERS = (
    *("kind", "duration_ns", "operations", "bytes", "collective", "root", "peer"),
    *("tag", "dimensions", "on_host", "algorithm"),
)
_TEXTS = ("name", "extra", "group")
_Edges = tuple[Int64Array, Int64Array]


class RecordTable:
    """Columns of the nodes of all files.

    `columns`: by name, one entry a node; `texts`: the texts that `name`, `extra` and `group` index,
    in the order of their first nodes; `data`, `control`: (parent rows, child rows).
    """

    def __init__(self, decoded: Sequence[DecodedNode], which: Sequence[Int64Array]) -> None:
        """`which`: for every file, the record of each of its nodes; ids are unique in a file."""
        whole = np.concatenate([np.zeros(0, np.int64), *which])
        # Those that were replaced stand for no node.
        used, index = np.unique(whole, return_inverse=True)
        records = [decoded[at] for at in used.tolist()]
        self.columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.asarray([getattr(node, name) for node in records], np.int64)[index]
            for name in _NUMBERS
        }
        identities = np.asarray([node.identity for node in records], np.uint64)
        self.columns["identity"] = identities[index]
        self.columns["rank"] = np.repeat(np.arange(len(which)), [len(rows) for rows in which])
        self.texts: dict[str, tuple[str, ...]] = {}
        for name in _TEXTS:
            indices, self.texts[name] = _numbered([getattr(node, name) for node in records])
            self.columns[name] = indices[index]
        rows = row_pointer([len(part) for part in which])
        self.data = _edges([node.data for node in records], identities[index], index, rows)
        self.control = _edges([node.control for node in records], identities[index], index, rows)


def _numbered(texts: Sequence[str]) -> tuple[Int64Array, tuple[str, ...]]:
    """The index of every text, -1 for none, and the texts."""
    known: dict[str, int] = {}
    indices = [known.setdefault(text, len(known)) if text else -1 for text in texts]
    return np.asarray(indices, np.int64), tuple(known)


def _edges(
    parents: Sequence[Sequence[int]],
    identities: npt.NDArray[np.uint64],
    index: Int64Array,
    file_rows: Int64Array,
) -> _Edges:
    """(parent rows, child rows); `parents`: ids by record, `file_rows`: first rows of the files."""
    indptr = row_pointer([len(ids) for ids in parents])
    ids = np.asarray([one for some in parents for one in some], np.uint64)
    # A record has the same parents, by id, in every file.
    counts = np.diff(indptr)[index]
    children = np.repeat(np.arange(len(index)), counts)
    wanted = ids[expanded_ranges(indptr[:-1][index], counts)]
    edge_rows = np.searchsorted(children, file_rows)
    found = [np.zeros(0, np.int64)]
    for file, first in enumerate(file_rows[:-1].tolist()):
        own = identities[first : file_rows[file + 1]]
        # Ids are those of one file: each is searched by itself.
        order = np.argsort(own, kind="stable")
        asked = wanted[edge_rows[file] : edge_rows[file + 1]]
        found.append(first + order[np.searchsorted(own[order], asked)])
    return np.concatenate(found), children
