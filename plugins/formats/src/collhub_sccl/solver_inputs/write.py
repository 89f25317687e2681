"""Write the inputs of TACCL's solver: the profile of a node, and a sketch.

taccl solve HubAndSpoke Allgather --topology-file NAME.taccl.json --sketch-file NAME.sketch.json

A node with equal pairs is written as a `HubAndSpoke` (or `DGX2`), all others with matrices, for
`custom`: the constructor of that name in microsoft/taccl 426bd1e raises an error, but uses these
keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from collhub_sccl.solver_inputs.machine import TacclMachine, build_machine
from collhub_sccl.solver_inputs.options import (
    TacclReadOptions,
    TacclSketchOptions,
    TacclTopologyOptions,
)
from collhub_sccl.solver_inputs.read import read
from hub_core.columns import Float64Array
from hub_core.model import JsonValue, Loss, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, Source, WriteResult

_HYPEREDGES = ("uc-min", "uc-max")
_CONSEQUENCES = {
    "num_npus": "a different number of GPUs is read back",
    "num_nodes": "pairs of GPUs are joined directly: the sketch contains the switches they share",
    "links": "pairs of GPUs are joined directly, and all links have the node's maximum latency",
    "link_order": "links are read back in a different order, which decides between equal routes",
    "node_names": "nodes have only numbers",
    "groups": "there are no groups of NPUs",
    "dimensions": "the network is not known to be regular",
    "multicast": "multicast of switches is not written",
    "reduction": "reduction in switches is not written",
}
# The solver truncates times to integers: with at least 100 units the error is at most a percent.
_MIN_UNITS = 100


def write_topology(topology: Topology, options: TacclTopologyOptions) -> WriteResult:
    """Writer of the format `taccl-topology`.

    Raises `UsageError` for networks that TACCL cannot express.
    """
    machine = build_machine(topology, options.nodes)
    content = _format_document(_build_profile(topology.name, machine, options.chunk))
    losses = tuple(_find_losses(topology, content, options.nodes))
    return WriteResult([Artifact("", content)], losses)


def write_sketch(topology: Topology, options: TacclSketchOptions) -> WriteResult:
    """Writer of the format `taccl-sketch`.

    Raises `UsageError` for networks that TACCL cannot express.
    """
    hyperedges = options.hyperedges or _HYPEREDGES[0]
    if hyperedges not in _HYPEREDGES:
        raise UsageError(f"option hyperedges: {hyperedges!r} is none of {', '.join(_HYPEREDGES)}")
    machine = build_machine(topology, options.nodes)
    content = _build_sketch(machine, hyperedges, options.chunks)
    loss = Loss("links", "the entire network", "a sketch guides the search but has no network")
    return WriteResult([Artifact("", _format_document(content))], (loss,))


def _build_profile(name: str, machine: TacclMachine, chunk_bytes: int) -> dict[str, JsonValue]:
    """Content of a profile: times of a chunk in a unit in which none is small."""
    beta_s = np.zeros(machine.links.shape)
    is_link = machine.links > 0
    beta_s[is_link] = chunk_bytes / machine.bandwidth_bytes_per_s[is_link]
    remote = machine.remote
    times_s = beta_s[is_link].tolist()
    if remote is not None:
        times_s.append(chunk_bytes / remote.bandwidth_bytes_per_s)
    per_s = _choose_units_per_second(min(times_s, default=1.0))
    alpha = float(machine.latency_s.max(initial=0.0)) * per_s
    betas = beta_s * per_s
    invbws = np.where(is_link, betas + alpha, 0.0)
    content: dict[str, JsonValue] = {
        "name": name,
        "gpus_per_node": machine.gpus_per_node,
        # Additional keys of the hub, because the solver's keys do not define the units.
        "chunk_bytes": chunk_bytes,
        "units_per_second": per_s,
        "alpha": _round_number(alpha),
    }
    if machine.is_uniform and machine.gpus_per_node > 1:
        content["node_betas_list"] = [_round_number(float(betas[0, 1]))]
        content["node_invbws_list"] = [_round_number(float(invbws[0, 1]))]
    else:
        # Rows are destinations, as in the solver.
        content["links"] = machine.links.T.tolist()
        content["betas"] = _to_rows(betas.T)
        content["invbws"] = _to_rows(invbws.T)
    if remote is not None:
        beta = chunk_bytes / remote.bandwidth_bytes_per_s * per_s
        alpha = remote.latency_s * per_s
        content["nics_per_node"] = remote.cards
        content["remote_alpha"] = _round_number(alpha)
        content["remote_beta"] = _round_number(beta)
        content["remote_invbw"] = _round_number(alpha + beta)
    return content


def _choose_units_per_second(min_time_s: float) -> int:
    """Power of ten, from 10^6 on, such that the minimum time has at least 100 units."""
    per_s = 10**6
    while min_time_s * per_s < _MIN_UNITS:
        per_s *= 10
    return per_s


def _to_rows(matrix: Float64Array) -> list[JsonValue]:
    """Rows of a matrix with shortened numbers."""
    return [[_round_number(value) for value in row] for row in matrix.tolist()]


def _round_number(value: float) -> float:
    """Number with 15 significant digits: further digits are rounding errors of quotients."""
    return float(f"{value:.15g}")


def _build_sketch(machine: TacclMachine, hyperedges: str, chunks: int) -> dict[str, JsonValue]:
    """Content of a sketch: pairs of a switched node share its ports.

    Nodes are joined as in the network.
    """
    gpus = machine.gpus_per_node
    all_gpus: list[JsonValue] = list(range(gpus))
    within: dict[str, JsonValue] = {"strategy": "none"}
    if machine.is_switched:
        within = {
            "strategy": "switch",
            "switches": [all_gpus],
            "switch_hyperedge_strategy": [hyperedges],
        }
    content: dict[str, JsonValue] = {"nnodes": machine.nodes, "intranode_sketch": within}
    if machine.remote is not None:
        receivers = machine.remote.receivers
        content["internode_sketch"] = {
            "strategy": "relay",
            "internode_conn": {
                str(gpu): list(receiver_list) for gpu, receiver_list in receivers.items()
            },
        }
        # Algorithms may be symmetric between nodes.
        content["symmetry_offsets"] = [[gpus, gpus * machine.nodes]]
    else:
        content["symmetry_offsets"] = []
    content["hyperparameters"] = {"input_chunkup": chunks}
    return content


def _find_losses(topology: Topology, written: bytes, nodes: int) -> Iterator[Loss]:
    """Yield the differences of the network that would be read back, so that no loss is
    overlooked."""
    back = read(Source.of_bytes(topology.name, written), TacclReadOptions(nodes=nodes))
    for feature in topology.differences(back):
        yield Loss(feature, "the entire network", _CONSEQUENCES[feature])


def _format_document(content: dict[str, JsonValue]) -> bytes:
    """JSON with one line per key, and per row of a matrix."""
    rows = [f' "{key}": {_format_value(value)}' for key, value in content.items()]
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode("utf-8")


def _format_value(value: JsonValue) -> str:
    """JSON text of a value; a matrix has one line per row."""
    is_matrix = isinstance(value, list) and any(isinstance(row, list) for row in value)
    if is_matrix and isinstance(value, list):
        return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
    return json.dumps(value)
