"""Builders of machines that are sold, alone and joined by their network, at nominal bandwidths."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from collhub_columns import Int64Array

from collhub_topologies.builders.levels import both_ways, check_npus, joined_levels, span
from hub_core.network import Dimension, DimensionKind, Links, Topology, TopologyText, grid

Lanes = Mapping[tuple[int, int], int]
"""Number of lanes each way between two GPUs, the lower one first."""

# The hybrid cube mesh of a DGX-1V in the numbering of msccl-tools; a DGX-1P has the same pairs with
# one lane each.
_DGX1V: Lanes = {
    (0, 1): 2, (0, 2): 1, (0, 3): 1, (0, 4): 2, (1, 2): 1, (1, 3): 2, (1, 5): 1, (2, 3): 2,
    (2, 6): 2, (3, 7): 1, (4, 5): 2, (4, 6): 1, (4, 7): 1, (5, 6): 1, (5, 7): 2, (6, 7): 2,
}  # fmt: skip
_DGX1P: Lanes = dict.fromkeys(_DGX1V, 1)
# The same machine as nvidia-smi numbers its GPUs.
_DGX1V_SMI: Lanes = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Eight MI250, two dies a package, joined by xGMI.
_MI250: Lanes = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1,
    (2, 9): 1, (2, 10): 1, (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1,
    (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1, (10, 11): 4, (10, 14): 1, (11, 15): 2,
    (12, 13): 4, (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}  # fmt: skip

# Eight MI300X, one link of xGMI between any two.
_MI300X: Lanes = dict.fromkeys(combinations(range(8), 2), 1)

_CLASSES = "classes of links"
_GPUS_PER_DGX = 8
_GPUS_PER_DGX2 = 16
# DGX-1 and DGX-2 have one NIC of 100 Gbit/s (InfiniBand EDR) for two GPUs (NVIDIA's user guides).
_EDR_NIC = 12.5e9
_GPUS_PER_EDR_NIC = 2
_DIES = 16


def dgx1p(text: TopologyText) -> Topology:
    """Build `dgx1p`: eight P100 with NVLinks of 20 GB/s a lane; `dgx1p:2` joins machines.

    Classes of links of several machines: lane of NVLink; GPU to NIC to network.
    """
    # NVLink 1 and 2, NVIDIA's white papers of the P100 and V100: 20 and 25 GB/s a lane and way.
    return _joined_machines(text, _DGX1P, _GPUS_PER_DGX, 20e9, _EDR_NIC, _GPUS_PER_EDR_NIC)


def dgx1v(text: TopologyText) -> Topology:
    """Build `dgx1v`: eight V100 with NVLinks of 25 GB/s a lane, numbered as in msccl-tools."""
    return _joined_machines(text, _DGX1V, _GPUS_PER_DGX, 25e9, _EDR_NIC, _GPUS_PER_EDR_NIC)


def dgx1v_smi(text: TopologyText) -> Topology:
    """Build `dgx1v-smi`: a DGX-1V with the numbers of nvidia-smi."""
    return _joined_machines(text, _DGX1V_SMI, _GPUS_PER_DGX, 25e9, _EDR_NIC, _GPUS_PER_EDR_NIC)


def dgx1_pcie(text: TopologyText) -> Topology:
    """Build `dgx1-pcie`: the PCIe tree of a DGX-1, two GPUs a PCIe switch, two switches a CPU.

    From two machines on, every PCIe switch has a NIC to the network. Switch ids: PCIe switches,
    CPUs, network. Classes of links: PCIe, between the CPUs, and between machines NIC.
    """
    machines = _machines(text, _GPUS_PER_DGX)
    defaults = (12e9, 10e9) if machines == 1 else (12e9, 10e9, _EDR_NIC)
    pcie, between_cpus, *network = text.per_dimension(len(defaults), defaults, _CLASSES)
    npus = machines * _GPUS_PER_DGX
    gpu = np.arange(npus, dtype=np.int64)
    plx = np.arange(npus, npus + npus // 2, dtype=np.int64)
    cpu = plx[-1] + 1 + np.arange(2 * machines, dtype=np.int64)
    levels = [
        (gpu, npus + gpu // 2),
        (plx, cpu[0] + (plx - npus) // 2),
        (cpu[::2], cpu[1::2]),
    ]
    constants = [pcie, pcie, between_cpus]
    if machines == 1:
        names = [*(f"plx {index}" for index in range(4)), "cpu 0", "cpu 1"]
        return joined_levels(text.text, npus, names, levels, constants, {})
    levels.append((plx, np.full(len(plx), cpu[-1] + 1)))
    names = [f"plx {machine}.{index}" for machine in range(machines) for index in range(4)]
    names += [f"cpu {machine}.{index}" for machine in range(machines) for index in range(2)]
    names.append("network")
    groups = _groups(machines, _GPUS_PER_DGX)
    return joined_levels(text.text, npus, names, levels, [*constants, *network], groups)


def dgx2(text: TopologyText) -> Topology:
    """Build `dgx2`: sixteen V100 behind NVSwitches; `dgx2:2` joins machines.

    Two GPUs share a NIC to the network. Switch ids: NVSwitches, NICs, network. Classes of links:
    NVSwitch; GPU to NIC to network.
    """
    machines = _machines(text, _GPUS_PER_DGX2)
    if machines == 1:
        return _nvswitch_machine(text, _GPUS_PER_DGX2, 150e9)
    nvlink, network = text.per_dimension(2, (150e9, _EDR_NIC), _CLASSES)
    npus = machines * _GPUS_PER_DGX2
    npu = np.arange(npus, dtype=np.int64)
    first_nic = npus + machines
    nic = first_nic + np.arange(npus // _GPUS_PER_EDR_NIC, dtype=np.int64)
    levels = (
        (npu, npus + npu // _GPUS_PER_DGX2),
        (npu, first_nic + npu // _GPUS_PER_EDR_NIC),
        (nic, np.full(len(nic), nic[-1] + 1)),
    )
    nics = _nics(machines, _GPUS_PER_DGX2 // _GPUS_PER_EDR_NIC)
    names = [*_nvswitches(machines), *nics, "network"]
    groups = _groups(machines, _GPUS_PER_DGX2)
    return joined_levels(text.text, npus, names, levels, [nvlink, network, network], groups)


def dgx_a100(text: TopologyText) -> Topology:
    """`dgx-a100:2`: machines of eight A100 with one NVSwitch each and a NIC a GPU.

    Even NICs meet at one network switch, odd ones at another. Switch ids: NVSwitches, NICs,
    network. Classes of links: NVSwitch; GPU to NIC to network.
    """
    machines = _machines(text, _GPUS_PER_DGX)
    if machines == 1:
        return _nvswitch_machine(text, _GPUS_PER_DGX, 300e9)
    nvlink, ethernet = text.per_dimension(2, (300e9, 25e9), _CLASSES)
    npus = machines * _GPUS_PER_DGX
    npu = np.arange(npus, dtype=np.int64)
    nvswitch = npus + npu // _GPUS_PER_DGX
    nic = npus + machines + npu
    network = 2 * npus + machines + npu % 2
    levels = ((npu, nvswitch), (npu, nic), (nic, network))
    names = [*_nvswitches(machines), *_nics(machines, _GPUS_PER_DGX), "network 0", "network 1"]
    constants = [nvlink, ethernet, ethernet]
    groups = _groups(machines, _GPUS_PER_DGX)
    return joined_levels(text.text, npus, names, levels, constants, groups)


def dgx_h100(text: TopologyText) -> Topology:
    """`dgx-h100:2`: machines of eight H100 with one NVSwitch each, and one network switch.

    Every GPU has a link to both. Classes of links: NVSwitch, NIC.
    """
    machines = _machines(text, _GPUS_PER_DGX)
    if machines == 1:
        return _nvswitch_machine(text, _GPUS_PER_DGX, 450e9)
    constants = text.per_dimension(2, (450e9, 50e9), _CLASSES)
    npus = machines * _GPUS_PER_DGX
    npu = np.arange(npus, dtype=np.int64)
    nvswitch = npus + npu // _GPUS_PER_DGX
    network = np.full(npus, npus + machines)
    levels = ((npu, nvswitch), (npu, network))
    names = [*_nvswitches(machines), "network"]
    groups = _groups(machines, _GPUS_PER_DGX)
    return joined_levels(text.text, npus, names, levels, constants, groups)


def mi250(text: TopologyText) -> Topology:
    """`mi250:2`: machines of eight MI250, sixteen dies; from two on, all dies at one switch.

    Classes of links: lane of xGMI, network.
    """
    return _joined_machines(text, _MI250, _DIES, 50e9, 16e9)


def mi300x(text: TopologyText) -> Topology:
    """`mi300x:2`: machines of eight MI300X, all joined; from two on, all at one switch, too.

    Classes of links: link of xGMI, NIC.
    """
    # AMD's data sheet of the platform: seven links a GPU, 128 GB/s each for both ways; the NICs of
    # usual machines have 400 Gbit/s.
    return _joined_machines(text, _MI300X, 8, 64e9, 50e9)


def _joined_machines(
    text: TopologyText,
    lanes: Lanes,
    gpus: int,
    lane_bandwidth: float,
    nic_bandwidth: float,
    gpus_per_nic: int = 1,
) -> Topology:
    """Build machines whose GPUs are joined by lanes; from two on, with NICs to one network switch.

    A NIC of one GPU is the link from the GPU to the network. A NIC that GPUs share is a switch
    between them and the network, with links of equal bandwidth on both sides.
    """
    machines = _machines(text, gpus)
    if machines == 1:
        (lane,) = text.per_dimension(1, (lane_bandwidth,), _CLASSES)
        links = _lane_links(lanes, 1, gpus, lane)
        return links.topology(text.text, gpus, gpus)
    lane, network = text.per_dimension(2, (lane_bandwidth, nic_bandwidth), _CLASSES)
    npus = machines * gpus
    npu = np.arange(npus, dtype=np.int64)
    nics = [] if gpus_per_nic == 1 else _nics(machines, gpus // gpus_per_nic)
    nic = npus + np.arange(len(nics), dtype=np.int64)
    switch = npus + len(nics)
    parts = [_lane_links(lanes, machines, gpus, lane)]
    if nics:
        parts.append(both_ways(npu, npus + npu // gpus_per_nic, *network))
    ends = nic if nics else npu
    parts.append(both_ways(ends, np.full(len(ends), switch), *network))
    names = (*map(str, range(npus)), *nics, "network")
    links = Links.joined(parts).by_source()
    groups = _groups(machines, gpus)
    return links.topology(text.text, npus, switch + 1, node_names=names, groups=groups)


def _machines(text: TopologyText, gpus: int) -> int:
    """How many machines of `gpus` GPUs are joined; one where no number is stated."""
    if not text.argument:
        return 1
    (count,) = text.parameters(1, "x", f"{text.name}:2 for two machines")
    check_npus(text, count * gpus)
    return count


def _nvswitch_machine(text: TopologyText, gpus: int, bandwidth_per_gpu: float) -> Topology:
    """One machine whose GPUs all hang at one switch."""
    # What the text states goes before the default.
    (pair,) = text.per_dimension(1, (bandwidth_per_gpu,))
    dimension = Dimension(DimensionKind.SWITCH, gpus, *pair)
    # As `switch:8`, so that it counts as regular: with a dimension, and drawn as one.
    return grid(text.text, [dimension])


def _lane_links(lanes: Lanes, machines: int, gpus: int, lane: tuple[float, float]) -> Links:
    """The links within all machines, machine by machine, by their ends."""
    source, destination, count = _both_ways(lanes)
    bandwidth, latency = lane
    first_gpus = np.arange(machines, dtype=np.int64) * gpus
    first = np.repeat(first_gpus, len(source))
    return Links(
        first + np.tile(source, machines),
        first + np.tile(destination, machines),
        np.tile(bandwidth * count, machines),
        np.full(len(first), latency),
    )


def _both_ways(lanes: Lanes) -> Int64Array:
    """Source, destination and lanes of all links of a machine, int64[3, links]."""
    there = [(*pair, count) for pair, count in lanes.items()]
    back = [(high, low, count) for low, high, count in there]
    # Sorted by their ends, since the order of links decides ties in routing.
    rows = sorted(there + back)
    return np.asarray(rows, np.int64).T


def _nvswitches(machines: int) -> list[str]:
    """Names of one NVSwitch a machine."""
    # All NVSwitches of a machine act as one.
    return [f"nvswitch {machine}" for machine in range(machines)]


def _nics(machines: int, nics_per_machine: int) -> list[str]:
    """Names of the NICs of all machines."""
    return [
        f"nic {machine}.{nic}" for machine in range(machines) for nic in range(nics_per_machine)
    ]


def _groups(machines: int, gpus: int) -> dict[str, tuple[int, ...]]:
    """The NPUs of every machine."""
    # Hierarchical algorithms go by these groups.
    groups = {}
    for machine in range(machines):
        groups[f"node {machine}"] = span(machine, gpus)
    return groups
