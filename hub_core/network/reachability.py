"""Find ranks of a collective that cannot exchange their data on a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hub_core.columns import BoolArray, Int64Array
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.quantities import format_ranks
from hub_core.network.topology import Topology
from hub_core.network.traffic import Traffic, dependent_pairs

# Maximum names, and characters of a list of numbers, in a message.
_MAX_NAMES = 8
_MAX_LIST_WIDTH = 60


def find_reached(topology: Topology, start: int, *, backwards: bool = False) -> BoolArray:
    """Find the nodes that a node reaches over links: bool[nodes], true for the node itself too.

    With `backwards`, find the nodes that reach this node instead. Planes are not distinguished.
    Takes time linear in nodes and links.
    """
    hops = topology.arcs(backwards=backwards).hops(np.asarray([start]))[0]
    is_reached: BoolArray = hops >= 0
    return is_reached


def find_unreachable_pair(topology: Topology, npus: Sequence[int]) -> tuple[int, int] | None:
    """Find two of the NPUs without a path from the first to the second; None if there are none.

    Only paths from and to `npus[0]` are examined: if it reaches all NPUs and all reach it,
    all reach one another. The result is (`npus[0]`, the earliest one that it does not
    reach) if there is one, else (the earliest one that does not reach `npus[0]`,
    `npus[0]`). Paths may use all nodes. `npus` must not be empty (else `IndexError`).
    """
    pair = _find_pair_at(topology, npus, npus[0])
    return pair or _find_pair_at(topology, npus, npus[0], backwards=True)


def check_paths(collective: Collective, topology: Topology, npus: tuple[int, ...]) -> None:
    """Raise `InputError` (`disconnected`) if data cannot reach an NPU that needs them.

    Rank r runs on NPU `npus[r]`; all other nodes may forward. Data from or to a root need paths
    only in this direction, and empty parts of uneven collectives need none. Custom collectives are
    not examined.
    """
    separated = _find_separated_npus(collective, topology, npus)
    if separated is not None:
        source, destination = separated
        raise unreachable_error(topology, source, destination, find_reached(topology, source))


# Every synthesizer of a portfolio gets the same collective and network.
@lru_cache(maxsize=4)
def _find_separated_npus(
    collective: Collective, topology: Topology, npus: tuple[int, ...]
) -> tuple[int, int] | None:
    """Find two NPUs (source, destination) without a path for data of the collective.

    Rank r is NPU `npus[r]`. Returns None if all data can arrive, for fewer than two NPUs, and for
    custom collectives. Otherwise the first rule that applies:

    - With a root: (root, the first rank that the root does not reach). If data go to the root: (the
      first rank that does not reach the root, root).
    - Not uneven: the pair of `find_unreachable_pair`.
    - Uneven: source is the first rank with data for a rank that it does not reach; destination is
      the first such rank. Ranks without data for each other need no path.

    "First" is by rank, and the result has numbers of NPUs. The results of the last four different
    calls are cached.
    """
    traits = collective.kind.traits
    if len(npus) < 2 or not Traffic(collective, 1).is_known:
        return None
    if collective.root is not None:
        return _find_pair_at(topology, npus, npus[collective.root], backwards=traits.to_root)
    pair = find_unreachable_pair(topology, npus)
    if pair is None or not traits.is_uneven:
        return pair
    # Parts may be empty: the ranks without a path may have no data for each other.
    needs = dependent_pairs(collective)
    for rank in np.flatnonzero(needs.any(axis=1)).tolist():
        receivers = [npus[receiver] for receiver in np.flatnonzero(needs[rank]).tolist()]
        if pair := _find_pair_at(topology, receivers, npus[rank]):
            return pair
    return None


def _find_pair_at(
    topology: Topology, npus: Sequence[int], start: int, *, backwards: bool = False
) -> tuple[int, int] | None:
    """Return (`start`, the first of `npus` that it does not reach); None if it reaches all.

    With `backwards`, return (the first of `npus` that does not reach `start`, `start`), or
    None if all of them reach it. "First" is by the order of `npus`. `start` reaches itself.
    None also for empty `npus`.
    """
    is_reached = find_reached(topology, start, backwards=backwards)
    missing = next((npu for npu in npus if not is_reached[npu]), None)
    if missing is None:
        return None
    return (missing, start) if backwards else (start, missing)


def unreachable_error(
    topology: Topology, source: int, destination: int, is_reached: BoolArray
) -> InputError:
    """Return the error (`disconnected`) that `destination` cannot be reached from `source`.

    Its message is the name of the topology and the text of `describe_separation`. The
    caller raises it. `is_reached`: bool[nodes], the nodes that `source` reaches.
    """
    separation = describe_separation(topology, source, destination, is_reached)
    return InputError(
        f"topology {topology.name}: {separation}",
        cure="add the missing links, let idle NPUs forward, or leave the NPU out",
        code="disconnected",
    )


def describe_separation(
    topology: Topology, source: int, destination: int, is_reached: BoolArray
) -> str:
    """Return the text `SOURCE cannot reach DESTINATION: no link leaves NODES`.

    NODES are the NPUs and switches that `source` reaches, including itself; they prove that
    there is no path. `is_reached`: bool[nodes], these nodes. Nodes are described by
    `describe_nodes`.
    """
    names = [describe_nodes(topology, [npu]) for npu in (source, destination)]
    closed = np.flatnonzero(is_reached)
    cut = describe_nodes(topology, closed[closed < topology.num_npus])
    switches = closed[closed >= topology.num_npus]
    if len(switches):
        cut += f" and {describe_nodes(topology, switches)}"
    return f"{names[0]} cannot reach {names[1]}: no link leaves {cut}"


def describe_nodes(topology: Topology, nodes: Sequence[int] | Int64Array) -> str:
    """Describe NPUs, or switches, as a text such as `NPUs 0-3`; long lists are shortened.

    NPUs without names are listed as ranges. A list of more than `_MAX_LIST_WIDTH`
    characters is cut at a comma and continued by `,...`. Nodes with names, and switches,
    are listed by name: the first 8, then `and N more`. A list of switches has no word
    before it. `nodes` must not be empty, and must not contain both kinds.
    """
    chosen = [int(node) for node in nodes]
    noun = "NPU" if len(chosen) == 1 else "NPUs"
    is_npu = chosen[0] < topology.num_npus
    if is_npu and not topology.node_names:
        ranks = format_ranks(chosen)
        if len(ranks) > _MAX_LIST_WIDTH:
            ranks = f"{ranks[: ranks.rindex(',', 0, _MAX_LIST_WIDTH)]},..."
        return f"{noun} {ranks}"
    shown = ", ".join(topology.node_name(node) for node in chosen[:_MAX_NAMES])
    if len(chosen) > _MAX_NAMES:
        shown += f" and {len(chosen) - _MAX_NAMES} more"
    # Names of switches contain the word already.
    return f"{noun} {shown}" if is_npu else shown
