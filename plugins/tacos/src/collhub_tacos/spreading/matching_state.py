"""Beginning of a spreading by matchings: every chunk at its origin, and nothing sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from hub_core.columns import BoolArray, Int64Array

if TYPE_CHECKING:
    # Importing it takes a second: numba.
    from collhub_tacos.spreading.matching_kernel import SpreadState


def new_state(
    network: LinkNetwork,
    origin: Int64Array,
    near: npt.NDArray[np.int16] | Int64Array,
    needed: BoolArray,
    seed: int,
) -> SpreadState:
    """State in which chunk x is at `origin[x]`, `near[x]` from every node, and all links are free.

    `needed`: bool per node, who must get the chunks.
    """
    from collhub_tacos.spreading.matching_kernel import SpreadState

    chunks = len(origin)
    held = np.zeros((chunks, network.num_nodes), np.bool_)
    held[np.arange(chunks), origin] = True
    # Pairs of a chunk and who must still get it.
    missing = chunks * int(needed.sum()) - int(needed[origin].sum())
    chunk, link, step = np.zeros((3, chunks * network.num_nodes), np.int64)
    return SpreadState(
        held,
        held.copy(),
        near,
        chunk,
        link,
        step,
        np.asarray([0, 0, 0, missing, 0], np.int64),
        np.ones(network.num_links, np.bool_),
        np.asarray([seed], np.uint64),
    )
