"""All-gather in lockstep on networks that look alike: one node's part, moved to all the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.reach import unreachable
from collhub_tacos.networks.translation import Translations
from collhub_tacos.schedules.arrival_log import ArrivalLog, Identifiers, identifier_type
from hub_core.columns import Int64Array

_CELLS_AT_ONCE = 1 << 22


def symmetric_all_gather(
    network: LinkNetwork,
    translations: Translations,
    busy_ps: int,
    arrival_ps: int,
    origin: Int64Array,
    seed: int,
) -> ArrivalLog:
    """Every node does what node 0 does, moved to it.

    What node 0 does is the lockstep matching of `lockstep_kernel` on chunks named by how far they
    come. On all tori that were tried this meets the bound; the same matching on all nodes, each
    for itself, takes a step more. Raises `InputError` where the network is not connected.
    """
    # Imported here: numba takes a second.
    from collhub_tacos.spreading.lockstep_kernel import advance_cells

    num_nodes = network.num_npus
    own = len(origin) // num_nodes
    lag = -(-arrival_ps // busy_ps)
    taken = advance_cells(translations.cell_shift(own), own, lag, seed)
    missing = np.setdiff1d(np.arange(own, len(origin)), taken[taken >= 0])
    if len(missing):
        far = translations.source_of(int(missing[0]) // own)
        raise unreachable(network, far, 0)
    by_node = np.argsort(origin, kind="stable").reshape(num_nodes, own)
    return ArrivalLog(
        network=network,
        busy_ps=busy_ps,
        arrival_ps=arrival_ps,
        log=_moved_log(translations, taken, by_node),
        own=np.full(num_nodes, own, np.int64),
        carried=_moved_bits(network, translations, taken),
    )


def _moved_log(translations: Translations, taken: Int64Array, chunk_of: Int64Array) -> Identifiers:
    """Logs of all nodes; nodes whose in-links have the same order of differences go together."""
    num_nodes, own = chunk_of.shape
    log = np.empty((num_nodes, chunk_of.size), identifier_type(chunk_of.size))
    in_order = np.argsort(translations.in_link, axis=1)
    orders, which = np.unique(in_order, axis=0, return_inverse=True)
    batch = max(1, _CELLS_AT_ONCE // chunk_of.size)
    for number, order in enumerate(orders):
        cells = taken[:, order].ravel()
        cells = np.concatenate([np.arange(own), cells[cells >= 0]])
        offset, place = cells // own, cells % own
        alike = np.flatnonzero(which.ravel() == number)
        for first in range(0, len(alike), batch):
            nodes = alike[first : first + batch]
            log[nodes] = chunk_of[translations.minus(nodes[:, None], offset), place]
    return log


def _moved_bits(
    network: LinkNetwork, translations: Translations, taken: Int64Array
) -> npt.NDArray[np.uint8]:
    """Bit per link and step, uint8[steps, ceil(links / 8)]: what node 0 uses, at every node."""
    links = network.num_links
    carried = np.empty((len(taken), -(-links // 8)), np.uint8)
    batch = max(1, _CELLS_AT_ONCE // links)
    used = np.empty((batch, links), np.bool_)
    for first in range(0, len(taken), batch):
        rows = taken[first : first + batch] >= 0
        steps = len(rows)
        used[:steps, translations.in_link] = rows[:, None, :]
        bits = np.packbits(used[:steps], axis=1, bitorder="little")
        carried[first : first + steps] = bits
    return carried
