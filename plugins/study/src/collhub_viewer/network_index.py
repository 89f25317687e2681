"""The parts of a page's index on a network: positions of nodes, links, and transfers on links."""

from __future__ import annotations

import numpy as np
from collhub_drawing.layout import place_irregular_nodes, place_regular_nodes

from collhub_viewer.columns import ColumnLines, compute_gaps
from hub_core.columns import Int64Array, group_pointer
from hub_core.network import Topology
from hub_core.plugin_api import SimulationResult

MAX_DRAWN_NODES = 4096
"""Nodes of a network beyond which it is not drawn."""


def index_topology(topology: Topology) -> dict[str, object] | None:
    """Return the nodes and links of a network for the page, as {"nodes": list, "links": list}.

    Returns None if the network has more than 4096 nodes, switches included. Nodes are in the
    order of their numbers (NPUs, then switches), links in the order of the topology. Each is a
    dict:

    - node: `name`, `kind` (`npu` or `switch`), and position `x`, `y` in pixels, rounded to 0.1
    - link: `from`, `to` (node numbers), `name` (`A -> B`), `bandwidth` (bytes/s), `latency_ns`

    The positions are those of `place_regular_nodes` if the topology has dimensions, otherwise
    those of `place_irregular_nodes`. Without links the list is empty.
    """
    if topology.num_nodes > MAX_DRAWN_NODES:
        return None
    place = place_regular_nodes if topology.dimensions else place_irregular_nodes
    # Rounded, so that floating-point differences between platforms do not change the bytes.
    places = np.round(place(topology), 1).tolist()
    nodes = [
        {
            "name": topology.node_name(node),
            "kind": "npu" if node < topology.num_npus else "switch",
            "x": x,
            "y": y,
        }
        for node, (x, y) in enumerate(places)
    ]
    columns = (
        topology.source,
        topology.destination,
        topology.bandwidth_bytes_per_s,
        topology.latency_ns,
    )
    links = [
        {
            "from": source,
            "to": destination,
            "name": f"{nodes[source]['name']} -> {nodes[destination]['name']}",
            "bandwidth": bandwidth,
            "latency_ns": latency,
        }
        for source, destination, bandwidth, latency in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return {"nodes": nodes, "links": links}


def index_links(
    topology: Topology, result: SimulationResult, position: Int64Array, lines: ColumnLines
) -> dict[str, object] | None:
    """Describe the links of a network and their transfers for the page; add columns to `lines`.

    The result is None, and no column is added, without `result.transfers` or with more than 4096
    nodes. `position`: number of each row of the step table. Transfers of rows with -1 (not shown)
    are omitted. The others are sorted by link, then start; equal ones keep their order. The values
    of the result are references to the columns, except `names`:

    - per link: `names` (texts `A -> B`), `from` and `to` (nodes), `capacity` (bytes/s)
    - `first`: position of each link's first transfer, then the number of all transfers
    - per transfer, in ns: `gap` (from the end of the previous listed transfer of the link, or time
      0, to the start), `duration` (of the use of the link), `queued` (from the arrival at the link
      to the start; None if the page has no room)
    - `step`: `position` of the row of each transfer
    """
    transfers = result.transfers
    if transfers is None or topology.num_nodes > MAX_DRAWN_NODES:
        return None
    rows = np.flatnonzero(position[transfers.row] >= 0)
    rows = rows[np.lexsort((transfers.start_ns[rows], transfers.link[rows]))]
    link, start = transfers.link[rows], transfers.start_ns[rows]
    busy, first = transfers.busy_ns[rows], group_pointer(link, topology.num_links)
    names = [topology.node_name(node) for node in range(topology.num_nodes)]
    ends = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
    return {
        "names": [f"{names[source]} -> {names[destination]}" for source, destination in ends],
        "from": lines.add(topology.source),
        "to": lines.add(topology.destination),
        "first": lines.add(first),
        "gap": lines.add(compute_gaps(start, start + busy, first)),
        "duration": lines.add(busy),
        "queued": lines.add_optional("queues of links", start - transfers.ready_ns[rows]),
        "step": lines.add(position[transfers.row[rows]], is_delta=True),
        "capacity": lines.add(topology.bandwidth_bytes_per_s),
    }
