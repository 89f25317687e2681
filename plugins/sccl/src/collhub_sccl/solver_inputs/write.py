"""Write what TACCL's solver is fed with: the profile of a node, and a sketch.

    taccl solve HubAndSpoke Allgather --topology-file NAME.taccl.json --sketch-file NAME.sketch.json

A node whose pairs are all alike is written as a `HubAndSpoke` (or `DGX2`), all others with
matrices, for `custom`: the constructor of that name in microsoft/taccl 426bd1e ends in an error of
its own, and takes these keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from collhub_columns import Float64Array

from collhub_sccl.solver_inputs.machine import TacclMachine, machine_of
from collhub_sccl.solver_inputs.options import (
    TacclReadOptions,
    TacclSketchOptions,
    TacclTopologyOptions,
)
from collhub_sccl.solver_inputs.read import read
from hub_core.model import JsonValue, Loss, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, Source, WriteResult

_HYPEREDGES = ("uc-min", "uc-max")
_CONSEQUENCES = {
    "num_npus": "another number of GPUs is read back",
    "num_nodes": "pairs of GPUs are joined: ports that pairs share are the sketch's switches",
    "links": "pairs of GPUs are joined, and all links of a node have the largest of its latencies",
    "link_order": "links are read back in another order, by which routes of equal length differ",
    "node_names": "nodes have numbers alone",
    "groups": "there are no groups of NPUs",
    "dimensions": "the network is not known to be regular",
    "multicast": "switches send no copies of a message on",
    "reduction": "switches add up no messages",
}
# The solver cuts times to whole units: of at least so many it loses at most a percent.
_LEAST_UNITS = 100


def write_topology(topology: Topology, options: TacclTopologyOptions) -> WriteResult:
    """Writer of the format `taccl-topology`. Raises `UsageError` for what TACCL does not have."""
    machine = machine_of(topology, options.nodes)
    content = _text(_profile(topology.name, machine, options.chunk))
    losses = tuple(_losses(topology, content, options.nodes))
    return WriteResult([Artifact("", content)], losses)


def write_sketch(topology: Topology, options: TacclSketchOptions) -> WriteResult:
    """Writer of the format `taccl-sketch`. Raises `UsageError` for what TACCL does not have."""
    hyperedges = options.hyperedges or _HYPEREDGES[0]
    if hyperedges not in _HYPEREDGES:
        raise UsageError(f"option hyperedges: {hyperedges!r} is none of {', '.join(_HYPEREDGES)}")
    machine = machine_of(topology, options.nodes)
    content = _sketch(machine, hyperedges, options.chunks)
    loss = Loss("links", "the whole network", "a sketch says how to search, not on what")
    return WriteResult([Artifact("", _text(content))], (loss,))


def _profile(name: str, machine: TacclMachine, chunk_bytes: int) -> dict[str, JsonValue]:
    """Times of a chunk, in a unit in which none is small."""
    beta_s = np.zeros(machine.links.shape)
    is_link = machine.links > 0
    beta_s[is_link] = chunk_bytes / machine.bandwidth_bytes_per_s[is_link]
    remote = machine.remote
    times_s = beta_s[is_link].tolist()
    if remote is not None:
        times_s.append(chunk_bytes / remote.bandwidth_bytes_per_s)
    per_s = _units_per_second(min(times_s, default=1.0))
    alpha = float(machine.latency_s.max(initial=0.0)) * per_s
    betas = beta_s * per_s
    invbws = np.where(is_link, betas + alpha, 0.0)
    content: dict[str, JsonValue] = {
        "name": name,
        "gpus_per_node": machine.gpus_per_node,
        # Not the solver's keys: it leaves open what its numbers are.
        "chunk_bytes": chunk_bytes,
        "units_per_second": per_s,
        "alpha": _short(alpha),
    }
    if machine.is_uniform and machine.gpus_per_node > 1:
        content["node_betas_list"] = [_short(float(betas[0, 1]))]
        content["node_invbws_list"] = [_short(float(invbws[0, 1]))]
    else:
        # Rows are destinations, as the solver has them.
        content["links"] = machine.links.T.tolist()
        content["betas"] = _rows(betas.T)
        content["invbws"] = _rows(invbws.T)
    if remote is not None:
        beta = chunk_bytes / remote.bandwidth_bytes_per_s * per_s
        alpha = remote.latency_s * per_s
        content["nics_per_node"] = remote.cards
        content["remote_alpha"] = _short(alpha)
        content["remote_beta"] = _short(beta)
        content["remote_invbw"] = _short(alpha + beta)
    return content


def _units_per_second(least_s: float) -> int:
    """A power of ten, from microseconds on, by which the least time has enough units."""
    per_s = 10**6
    while least_s * per_s < _LEAST_UNITS:
        per_s *= 10
    return per_s


def _rows(matrix: Float64Array) -> list[JsonValue]:
    return [[_short(value) for value in row] for row in matrix.tolist()]


def _short(value: float) -> float:
    """Without the last digits, which are those of quotients alone."""
    return float(f"{value:.15g}")


def _sketch(machine: TacclMachine, hyperedges: str, chunks: int) -> dict[str, JsonValue]:
    """Pairs of a switched node share its ports; nodes are joined as the network is."""
    gpus = machine.gpus_per_node
    everyone: list[JsonValue] = list(range(gpus))
    within: dict[str, JsonValue] = {"strategy": "none"}
    if machine.is_switched:
        within = {
            "strategy": "switch",
            "switches": [everyone],
            "switch_hyperedge_strategy": [hyperedges],
        }
    content: dict[str, JsonValue] = {"nnodes": machine.nodes, "intranode_sketch": within}
    if machine.remote is not None:
        receivers = machine.remote.receivers
        content["internode_sketch"] = {
            "strategy": "relay",
            "internode_conn": {str(gpu): list(others) for gpu, others in receivers.items()},
        }
        # Algorithms may look alike from every node.
        content["symmetry_offsets"] = [[gpus, gpus * machine.nodes]]
    else:
        content["symmetry_offsets"] = []
    content["hyperparameters"] = {"input_chunkup": chunks}
    return content


def _losses(topology: Topology, written: bytes, nodes: int) -> Iterator[Loss]:
    """What is another when the profile is read back: no list of what is lost could be as true."""
    back = read(Source.of_bytes(topology.name, written), TacclReadOptions(nodes=nodes))
    for feature in topology.differences(back):
        yield Loss(feature, "the whole network", _CONSEQUENCES[feature])


def _text(content: dict[str, JsonValue]) -> bytes:
    """JSON with a line for every key, and for every row of a matrix."""
    rows = [f' "{key}": {_value(value)}' for key, value in content.items()]
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode("utf-8")


def _value(value: JsonValue) -> str:
    is_matrix = isinstance(value, list) and any(isinstance(row, list) for row in value)
    if is_matrix and isinstance(value, list):
        return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
    return json.dumps(value)
