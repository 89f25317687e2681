"""Networks that look alike from every node, as tori do: one node's part of an all-gather, moved to all the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.networks.reach import unreachable
from collhub_tacos.schedules.arrival_log import ArrivalLog, Identifiers, identifier_type

Int64Array = npt.NDArray[np.int64]

_CELLS_AT_ONCE = 1 << 22
_MOST_SHAPES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Translations:
    """Adding any node to all nodes, digit by digit modulo `moduli`, maps the network to itself.

    `difference`: int64[degree], destination less source, per in-link of a node; `in_link`: int64[nodes, degree], the
    link of this difference at every node.
    """

    moduli: tuple[int, ...]
    difference: Int64Array
    in_link: Int64Array

    @classmethod
    def of(
        cls, network: LinkNetwork, origin: Int64Array, times: LinkTimes | None = None
    ) -> Translations | None:
        """The translations that keep links, numbers of chunks and, where given, the times of links; None for none.

        Tried are the stated dimensions of a regular network, and every way to number the nodes in dimensions.
        """
        degrees, own = np.diff(network.indptr), np.bincount(origin, minlength=network.num_nodes)
        if not network.num_links or np.any(degrees != degrees[0]) or np.any(own != own[0]):
            return None
        stated = tuple(dimension.size for dimension in network.topology.dimensions)
        shapes = (
            shape
            for shape in (stated, *_shapes(network.num_npus))
            if math.prod(shape) == network.num_npus
        )
        tried = (_invariance(network, shape, times) for shape in islice(shapes, _MOST_SHAPES))
        return next((found for found in tried if found is not None), None)

    def minus(self, nodes: Int64Array, offsets: Int64Array) -> Int64Array:
        """`nodes` less `offsets`, digit by digit; arrays that numpy can broadcast."""
        return _difference(nodes, offsets, self.moduli)

    def source_of(self, offset: int) -> int:
        """The node whose chunks come to node 0 over `offset`."""
        return int(_difference(np.zeros(1, np.int64), np.asarray([offset]), self.moduli)[0])

    def cell_shift(self, own: int) -> Int64Array:
        """int64[degree, cells]: cell `g * own + r` is chunk r of the node that lies g back; at the source of an in-link
        it is the cell of column g, here the one that stands there."""
        cells = np.arange(len(self.in_link) * own)
        back = _difference(np.zeros(1, np.int64), self.difference, self.moduli)
        return self.minus(cells // own, back[:, None]) * own + cells % own


def _difference(left: Int64Array, right: Int64Array, moduli: tuple[int, ...]) -> Int64Array:
    result, stride = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64), 1
    for modulus in moduli:
        result += (left // stride - right // stride) % modulus * stride
        stride *= modulus
    return result


def _shapes(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """All sizes of dimensions, each at least 2, whose product is `num_nodes`; fewest dimensions first where they begin alike."""
    if num_nodes > 1:
        yield (num_nodes,)
    for first in range(2, num_nodes // 2 + 1):
        if num_nodes % first == 0:
            yield from ((first, *rest) for rest in _shapes(num_nodes // first))


def _invariance(
    network: LinkNetwork, moduli: tuple[int, ...], times: LinkTimes | None
) -> Translations | None:
    num_nodes = network.num_npus
    source = network.source.reshape(num_nodes, -1)
    # Most shapes fail at some of a few nodes, which is much faster to see.
    few = np.unique(np.linspace(0, num_nodes - 1, 5, dtype=np.int64))
    if not _is_alike(np.sort(_difference(few[:, None], source[few], moduli), axis=1)):
        return None
    difference = _difference(np.arange(num_nodes)[:, None], source, moduli)
    order = np.argsort(difference, axis=1, kind="stable")
    in_order, in_link = (
        np.take_along_axis(difference, order, axis=1),
        network.indptr[:-1, None] + order,
    )
    columns = (
        [in_order] if times is None else [in_order, times.busy[in_link], times.arrival[in_link]]
    )
    return Translations(moduli, in_order[0], in_link) if all(map(_is_alike, columns)) else None


def _is_alike(rows: Int64Array) -> bool:
    return bool(np.all(rows == rows[0]))


def symmetric_all_gather(
    network: LinkNetwork,
    translations: Translations,
    busy_ps: int,
    arrival_ps: int,
    origin: Int64Array,
    seed: int,
) -> ArrivalLog:
    """Every node does what node 0 does, moved to it. Raises `InputError` where the network is not connected.

    What node 0 does is the lockstep matching of `collhub_tacos.spreading.lockstep_kernel` on chunks named by how far they come. On all tori
    that were tried this meets the bound; the same matching on all nodes, each for itself, takes a step more.
    """
    # Importing numba takes a second.
    from collhub_tacos.spreading.lockstep_kernel import advance_cells

    num_nodes = network.num_npus
    own = len(origin) // num_nodes
    taken = advance_cells(translations.cell_shift(own), own, -(-arrival_ps // busy_ps), seed)
    missing = np.setdiff1d(np.arange(own, len(origin)), taken[taken >= 0])
    if len(missing):
        raise unreachable(network, translations.source_of(int(missing[0]) // own), 0)
    counts = np.full(num_nodes, own, np.int64)
    log = _moved_log(translations, taken, np.argsort(origin, kind="stable").reshape(num_nodes, own))
    return ArrivalLog(
        network, busy_ps, arrival_ps, log, counts, _moved_bits(network, translations, taken)
    )


def _moved_log(translations: Translations, taken: Int64Array, chunk_of: Int64Array) -> Identifiers:
    """Logs of all nodes; nodes whose in-links stand in the same order of differences are done together."""
    num_nodes, own = chunk_of.shape
    log = np.empty((num_nodes, chunk_of.size), identifier_type(chunk_of.size))
    orders, which = np.unique(np.argsort(translations.in_link, axis=1), axis=0, return_inverse=True)
    batch = max(1, _CELLS_AT_ONCE // chunk_of.size)
    for number, order in enumerate(orders):
        cells = taken[:, order].ravel()
        cells = np.concatenate([np.arange(own), cells[cells >= 0]])
        alike = np.flatnonzero(which.ravel() == number)
        for first in range(0, len(alike), batch):
            nodes = alike[first : first + batch]
            log[nodes] = chunk_of[translations.minus(nodes[:, None], cells // own), cells % own]
    return log


def _moved_bits(
    network: LinkNetwork, translations: Translations, taken: Int64Array
) -> npt.NDArray[np.uint8]:
    carried = np.empty((len(taken), -(-network.num_links // 8)), np.uint8)
    batch = max(1, _CELLS_AT_ONCE // network.num_links)
    used = np.empty((batch, network.num_links), np.bool_)
    for first in range(0, len(taken), batch):
        rows = taken[first : first + batch] >= 0
        used[: len(rows), translations.in_link] = rows[:, None, :]
        carried[first : first + len(rows)] = np.packbits(
            used[: len(rows)], axis=1, bitorder="little"
        )
    return carried
