"""Networks that look alike from every node, as tori do: one node's part of an all-gather, moved to all the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.arrival_log import ArrivalLog, Identifiers, identifier_type
from collhub_tacos.network import Network
from collhub_tacos.reach import unreachable

__all__ = ["Translations", "symmetric_all_gather"]

Int64Array = npt.NDArray[np.int64]

_CELLS_AT_ONCE = 1 << 22


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
    def of(cls, network: Network, origin: Int64Array) -> Translations | None:
        """The translations by the dimensions of a regular network, or along one circle; None where neither holds.

        Nor are there any where nodes start with different numbers of chunks.
        """
        degrees, own = np.diff(network.indptr), np.bincount(origin, minlength=network.num_nodes)
        if not network.num_links or np.any(degrees != degrees[0]) or np.any(own != own[0]):
            return None
        sizes = tuple(dimension.size for dimension in network.topology.dimensions)
        tried = (_invariance(network, moduli) for moduli in (sizes, (network.num_npus,)) if math.prod(moduli) == network.num_npus)
        return next((found for found in tried if found is not None), None)

    def minus(self, nodes: Int64Array, offsets: Int64Array) -> Int64Array:
        """`nodes` less `offsets`, digit by digit; arrays that numpy can broadcast."""
        return _difference(nodes, offsets, self.moduli)


def _difference(left: Int64Array, right: Int64Array, moduli: tuple[int, ...]) -> Int64Array:
    result, stride = np.zeros(np.broadcast_shapes(left.shape, right.shape), np.int64), 1
    for modulus in moduli:
        result += (left // stride - right // stride) % modulus * stride
        stride *= modulus
    return result


def _invariance(network: Network, moduli: tuple[int, ...]) -> Translations | None:
    nodes = np.arange(network.num_npus)
    difference = _difference(nodes[:, None], network.source.reshape(len(nodes), -1), moduli)
    order = np.argsort(difference, axis=1, kind="stable")
    in_order = np.take_along_axis(difference, order, axis=1)
    if np.any(in_order != in_order[0]):
        return None
    return Translations(moduli, in_order[0], network.indptr[:-1, None] + order)


def symmetric_all_gather(
    network: Network, translations: Translations, busy_ps: int, arrival_ps: int, origin: Int64Array, seed: int
) -> ArrivalLog:
    """Every node does what node 0 does, moved to it. Raises `InputError` where the network is not connected.

    What node 0 does is the lockstep matching of `collhub_tacos.lockstep` on chunks named by how far they come. On all tori
    that were tried this meets the bound; the same matching on all nodes, each for itself, takes a step more.
    """
    # Importing numba takes a second.
    from collhub_tacos.lockstep import advance_cells

    num_nodes = network.num_npus
    own = len(origin) // num_nodes
    cells = np.arange(len(origin))
    zero = _difference(np.zeros(1, np.int64), translations.difference, translations.moduli)
    shift = translations.minus(cells // own, zero[:, None]) * own + cells % own
    taken = advance_cells(shift, own, -(-arrival_ps // busy_ps), seed)
    missing = np.setdiff1d(cells[own:], taken[taken >= 0])
    if len(missing):
        source = translations.minus(np.zeros(1, np.int64), missing[:1] // own)
        raise unreachable(network, int(source[0]), 0)
    counts = np.full(num_nodes, own, np.int64)
    log = _moved_log(translations, taken, np.argsort(origin, kind="stable").reshape(num_nodes, own))
    return ArrivalLog(network, busy_ps, arrival_ps, log, counts, _moved_bits(network, translations, taken))


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


def _moved_bits(network: Network, translations: Translations, taken: Int64Array) -> npt.NDArray[np.uint8]:
    carried = np.empty((len(taken), -(-network.num_links // 8)), np.uint8)
    batch = max(1, _CELLS_AT_ONCE // network.num_links)
    used = np.empty((batch, network.num_links), np.bool_)
    for first in range(0, len(taken), batch):
        rows = taken[first : first + batch] >= 0
        used[: len(rows), translations.in_link] = rows[:, None, :]
        carried[first : first + len(rows)] = np.packbits(used[: len(rows)], axis=1, bitorder="little")
    return carried
