"""Machines that are sold, alone and joined by their network: DGX and MI250, with nominal bandwidths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hub_core.network.switched import Constants, joined_levels, span
from hub_core.network.topology import Links, Topology

Int64Array = npt.NDArray[np.int64]
Lanes = Mapping[tuple[int, int], int]
"""Number of lanes each way between two GPUs, the lower one first."""

# The hybrid cube mesh of a DGX-1V in the numbering of msccl-tools; a DGX-1P has the same pairs with one lane each.
DGX1V: Lanes = {
    (0, 1): 2, (0, 2): 1, (0, 3): 1, (0, 4): 2, (1, 2): 1, (1, 3): 2, (1, 5): 1, (2, 3): 2,
    (2, 6): 2, (3, 7): 1, (4, 5): 2, (4, 6): 1, (4, 7): 1, (5, 6): 1, (5, 7): 2, (6, 7): 2,
}  # fmt: skip
DGX1P: Lanes = dict.fromkeys(DGX1V, 1)
# The same machine as nvidia-smi numbers its GPUs.
DGX1V_SMI: Lanes = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Eight MI250, two dies a package, joined by xGMI.
_MI250: Lanes = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1, (2, 9): 1, (2, 10): 1,
    (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1, (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1,
    (10, 11): 4, (10, 14): 1, (11, 15): 2, (12, 13): 4, (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}  # fmt: skip


def direct_machine(name: str, lanes: Lanes, gpus: int, constants: Constants) -> Topology:
    """GPUs with links of several lanes; `constants`: bandwidth of one lane, latency. Links in the order of their ends."""
    return _direct(lanes, 1, gpus, constants[0]).topology(name, gpus, gpus)


def mi250(name: str, machines: int, constants: Constants) -> Topology:
    """Machines of 16 dies; from two on, every die has a link to one switch. `constants`: xGMI lane, network."""
    if machines == 1:
        return direct_machine(name, _MI250, 16, constants)
    npus = machines * 16
    node = np.arange(npus, dtype=np.int64)
    within, network = (
        _direct(_MI250, machines, 16, constants[0]),
        _both_ways(node, np.full(npus, npus), constants[1]),
    )
    links = Links.joined([within, network])
    order = np.argsort(links.source, kind="stable")
    names = (*map(str, range(npus)), "network")
    return links.topology(
        name, npus, npus + 1, order=order, node_names=names, groups=_machines(machines, 16)
    )


def nvswitch_cluster(name: str, machines: int, gpus: int, constants: Constants) -> Topology:
    """Machines with one NVSwitch each, and one network switch to which every GPU has a link. `constants`: NVSwitch, NIC."""
    npus = machines * gpus
    npu = np.arange(npus, dtype=np.int64)
    levels = ((npu, npus + npu // gpus), (npu, np.full(npus, npus + machines)))
    names = [*_nvswitches(machines), "network"]
    return joined_levels(name, npus, names, levels, constants, _machines(machines, gpus))


def nic_cluster(name: str, machines: int, gpus: int, constants: Constants) -> Topology:
    """Machines with one NVSwitch each and a NIC a GPU; even NICs meet at one network switch, odd ones at another.

    Switch ids: NVSwitches, NICs, network. `constants`: NVSwitch; GPU to NIC to network.
    """
    npus = machines * gpus
    npu = np.arange(npus, dtype=np.int64)
    nic, network = npus + machines + npu, 2 * npus + machines + npu % gpus % 2
    levels = ((npu, npus + npu // gpus), (npu, nic), (nic, network))
    nics = [f"nic {machine}.{index}" for machine, index in np.ndindex(machines, gpus)]
    names = [*_nvswitches(machines), *nics, "network 0", "network 1"]
    return joined_levels(
        name, npus, names, levels, [*constants, constants[1]], _machines(machines, gpus)
    )


def pcie_dgx1(name: str, constants: Constants) -> Topology:
    """The PCIe tree of a DGX-1: two GPUs a PCIe switch, two switches a CPU. `constants`: PCIe, between the CPUs."""
    gpu, plx = np.arange(8, dtype=np.int64), np.arange(8, 12, dtype=np.int64)
    levels = ((gpu, 8 + gpu // 2), (plx, 12 + (plx - 8) // 2), (np.asarray([12]), np.asarray([13])))
    names = ["plx 0", "plx 1", "plx 2", "plx 3", "cpu 0", "cpu 1"]
    return joined_levels(name, 8, names, levels, [constants[0], *constants], {})


def _direct(lanes: Lanes, machines: int, gpus: int, constant: tuple[float, float]) -> Links:
    """The links within all machines, machine by machine, by their ends."""
    both = sorted(
        [
            *((*pair, count) for pair, count in lanes.items()),
            *((b, a, count) for (a, b), count in lanes.items()),
        ]
    )
    source, destination, count = np.asarray(both, np.int64).T
    first = np.repeat(np.arange(machines, dtype=np.int64) * gpus, len(both))
    rates, latencies = np.tile(constant[0] * count, machines), np.full(len(first), constant[1])
    return Links(
        first + np.tile(source, machines), first + np.tile(destination, machines), rates, latencies
    )


def _both_ways(low: Int64Array, high: Int64Array, constant: tuple[float, float]) -> Links:
    return Links.uniform(np.concatenate([low, high]), np.concatenate([high, low]), *constant)


def _nvswitches(machines: int) -> Sequence[str]:
    return [f"nvswitch {machine}" for machine in range(machines)]


def _machines(machines: int, gpus: int) -> dict[str, tuple[int, ...]]:
    return {f"node {machine}": span(machine, gpus) for machine in range(machines)}
