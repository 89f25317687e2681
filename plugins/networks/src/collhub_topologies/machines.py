"""Builders of commercial machines, single and connected by a network, at nominal bandwidths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from collhub_topologies.networks import (
    build_duplex_links,
    build_levels,
    check_npus,
    list_group_npus,
)
from hub_core.network import (
    Dimension,
    DimensionKind,
    Links,
    MeasuredSwitches,
    Topology,
    TopologyText,
    grid,
)

Lanes = Mapping[tuple[int, int], int]
"""Number of lanes per direction between two GPUs, the lower one first."""

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
# Eight MI250, two dies per package, connected by xGMI.
_MI250: Lanes = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1,
    (2, 9): 1, (2, 10): 1, (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1,
    (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1, (10, 11): 4, (10, 14): 1, (11, 15): 2,
    (12, 13): 4, (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}  # fmt: skip

# Eight MI300X, one xGMI link between any two.
_MI300X: Lanes = dict.fromkeys(combinations(range(8), 2), 1)

# Four GH200, six lanes of NVLink between any two.
_GH200: Lanes = dict.fromkeys(combinations(range(4), 2), 6)

_CLASSES = "classes of links"
_GPUS_PER_DGX = 8
_GPUS_PER_DGX2 = 16
_GPUS_PER_TRAY, _MAX_TRAYS = 4, 18
# Bytes of an all-reduce per second with sums and multicasts in the NVSwitches. H100: the largest
# rate of NVLS on one node in public measurements (254 to 262 GB/s). B200: NVLS of 8 GiB
# (stas00/ml-engineering, NCCL 2.27.7); B300 and GB300 have no public measurement of NVLS.
_H100_SWITCH_RATE, _B200_SWITCH_RATE = 262e9, 479.5e9
# DGX-1 and DGX-2 have one NIC of 100 Gbit/s (InfiniBand EDR) per two GPUs (NVIDIA's user guides).
_EDR_NIC = 12.5e9
_GPUS_PER_NIC = 2
_DIES = 16


def build_dgx1p(text: TopologyText) -> Topology:
    """Build `dgx1p`: eight P100 with NVLinks of 20 GB/s per lane; `dgx1p:2` connects two machines
    through their NICs. Classes of links of several machines: lane of NVLink; GPU to NIC to network.
    Raises `UsageError` for an invalid text.
    """
    # NVLink 1 and 2, NVIDIA's white papers of the P100 and V100: 20 and 25 GB/s per lane and
    # direction.
    return _build_machines(text, _DGX1P, _GPUS_PER_DGX, 20e9, _EDR_NIC, _GPUS_PER_NIC)


def build_dgx1v(text: TopologyText) -> Topology:
    """Build `dgx1v`: eight V100 with NVLinks of 25 GB/s per lane, numbered as in msccl-tools."""
    return _build_machines(text, _DGX1V, _GPUS_PER_DGX, 25e9, _EDR_NIC, _GPUS_PER_NIC)


def build_dgx1v_smi(text: TopologyText) -> Topology:
    """Build `dgx1v-smi`: a DGX-1V in the numbering of nvidia-smi, by default 25 GB/s per lane of
    NVLink; `dgx1v-smi:N` connects N machines through their NICs.
    """
    return _build_machines(text, _DGX1V_SMI, _GPUS_PER_DGX, 25e9, _EDR_NIC, _GPUS_PER_NIC)


def build_dgx1_pcie(text: TopologyText) -> Topology:
    """Build `dgx1-pcie`, the PCIe tree of a DGX-1, or `dgx1-pcie:N` for N of these machines.

    A machine has 8 GPUs (the NPUs), 4 PCIe switches and 2 CPUs; ids are all NPUs, then all PCIe
    switches, then all CPUs, each by machine. The classes of links, in both directions:

    1. consecutive pairs of GPUs to a PCIe switch, pairs of PCIe switches to a CPU: 12 GB/s
    2. between the two CPUs of a machine: 10 GB/s
    3. only with several machines, each PCIe switch to one network switch (the last id): 12.5 GB/s

    The text may give one bandwidth and one latency (default 500 ns) for all classes, or one per
    class. Several machines are groups, `node 0` and so on. Raises `UsageError` for another number
    of values, an invalid N, and too many NPUs.
    """
    machines = _parse_machine_count(text, _GPUS_PER_DGX)
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
        return build_levels(text.text, npus, names, levels, constants, {})
    levels.append((plx, np.full(len(plx), cpu[-1] + 1)))
    names = [f"plx {machine}.{index}" for machine in range(machines) for index in range(4)]
    names += [f"cpu {machine}.{index}" for machine in range(machines) for index in range(2)]
    names.append("network")
    groups = _build_groups(machines, _GPUS_PER_DGX)
    return build_levels(text.text, npus, names, levels, [*constants, *network], groups)


def build_dgx2(text: TopologyText) -> Topology:
    """Build `dgx2`: sixteen V100 on NVSwitches; `dgx2:2` connects two machines.

    All NVSwitches of a machine are one switch. With several machines, two GPUs share a NIC, which
    is a switch whose links to GPUs and network have equal bandwidth; a single machine has no NICs.
    Switch ids: NVSwitches, NICs, network. Classes of links with defaults: NVSwitch (150 GB/s per
    GPU); GPU to NIC to network (12.5 GB/s).
    """
    return _build_machines_of_shared_nics(text, _GPUS_PER_DGX2, 150e9, _EDR_NIC)


def build_dgx_a100(text: TopologyText) -> Topology:
    """Build `dgx-a100:N`: N machines of eight A100 GPUs, with one NVSwitch per machine.

    For N = 1 or without N the result equals `switch:8`: one class of links (default 300 GB/s) and
    no NICs or groups. For N of at least 2:

    - Each GPU has a NIC. NICs of even GPUs are linked to network switch 0, of odd GPUs to 1.
    - Ids: GPUs, NVSwitches, NICs by GPU, then the two network switches.
    - There are two classes of links: GPU to NVSwitch (default 300 GB/s), and GPU to NIC together
      with NIC to network switch (default 25 GB/s).
    - Each machine is a group, `node 0` and so on.

    The default latency of all links is 500 ns. Raises `UsageError` if N is not a positive number or
    too large. Raises it also if the number of bandwidths (or of latencies) in the text is neither
    one nor the number of classes.
    """
    machines = _parse_machine_count(text, _GPUS_PER_DGX)
    if machines == 1:
        return _build_nvswitch_machine(text, _GPUS_PER_DGX, 300e9)
    nvlink, ethernet = text.per_dimension(2, (300e9, 25e9), _CLASSES)
    npus = machines * _GPUS_PER_DGX
    npu = np.arange(npus, dtype=np.int64)
    nvswitch = npus + npu // _GPUS_PER_DGX
    nic = npus + machines + npu
    network = 2 * npus + machines + npu % 2
    levels = ((npu, nvswitch), (npu, nic), (nic, network))
    names = [
        *_name_nvswitches(machines),
        *_name_nics(machines, _GPUS_PER_DGX),
        "network 0",
        "network 1",
    ]
    constants = [nvlink, ethernet, ethernet]
    groups = _build_groups(machines, _GPUS_PER_DGX)
    return build_levels(text.text, npus, names, levels, constants, groups)


def build_p4de(text: TopologyText) -> Topology:
    """Build `p4de:2`: machines of eight A100 with one NVSwitch each, and a NIC per two GPUs.

    Classes of links with defaults: NVSwitch (300 GB/s per GPU); GPU to NIC to network (12.5 GB/s).
    """
    # AWS's data sheet: four EFA interfaces of 100 Gbit/s per machine.
    return _build_machines_of_shared_nics(text, _GPUS_PER_DGX, 300e9, 12.5e9)


def build_p5(text: TopologyText) -> Topology:
    """Build `p5:2`: machines of eight H100, with the NVLinks of a DGX H100 and 4 NICs per GPU."""
    # AWS's data sheet: 32 EFA interfaces of 100 Gbit/s per machine, 50 GB/s per GPU.
    return _build_nvlink_machines(text, 450e9, _H100_SWITCH_RATE)


def build_p6_b200(text: TopologyText) -> Topology:
    """Build `p6-b200:2`: machines of eight B200, with the NVLinks of a DGX B200 and a NIC per
    GPU.
    """
    # AWS's data sheet: eight EFA interfaces of 400 Gbit/s per machine.
    return _build_nvlink_machines(text, 900e9, _B200_SWITCH_RATE)


def build_gh200_slingshot(text: TopologyText) -> Topology:
    """Build `gh200-slingshot:2`: nodes of four fully connected GH200 with a NIC per GPU.

    The node of CSCS's Alps. Classes of links with defaults: NVLink (150 GB/s per pair of GPUs and
    direction); GPU to network (25 GB/s).
    """
    # Six NVLinks 4 of 25 GB/s per pair of GPUs, and Slingshot NICs of 200 Gbit/s.
    return _build_machines(text, _GH200, 4, 25e9, 25e9)


def build_l40s(text: TopologyText) -> Topology:
    """Build `l40s`: eight L40S on one PCIe 4 root, as a switch of 32 GB/s per GPU.

    The bridges between the GPUs differ between servers and are not modelled.
    """
    return _build_nvswitch_machine(text, _GPUS_PER_DGX, 32e9)


def build_rtx_pro_6000(text: TopologyText) -> Topology:
    """Build `rtx-pro-6000`: eight RTX PRO 6000 on one PCIe 5 root, as a switch of 64 GB/s per GPU.

    The bridges between the GPUs differ between servers and are not modelled.
    """
    return _build_nvswitch_machine(text, _GPUS_PER_DGX, 64e9)


def build_dgx_h100(text: TopologyText) -> Topology:
    """Build `dgx-h100:2`: machines of eight H100 with one NVSwitch each, and one network switch.

    Every GPU has a link to both. The NVSwitches multicast and add up. Classes of links: NVSwitch,
    NIC.
    """
    return _build_nvlink_machines(text, 450e9, _H100_SWITCH_RATE)


def build_dgx_h200(text: TopologyText) -> Topology:
    """Build `dgx-h200:2`: machines of eight H200 with the links of a DGX H100, that is one NVSwitch
    each (450 GB/s per GPU), and one network switch. The NVSwitches multicast and add up at the
    measured 272.8 GB/s.
    """
    # NVLS of 8 GiB on 8 H200 (stas00/ml-engineering, NCCL 2.27.7).
    return _build_nvlink_machines(text, 450e9, 272.8e9)


def build_dgx_b200(text: TopologyText) -> Topology:
    """Build `dgx-b200:2`: machines of eight B200 with one NVSwitch each, and one network switch."""
    # NVIDIA's data sheet: 900 GB/s per GPU and direction, NICs of 400 Gbit/s.
    return _build_nvlink_machines(text, 900e9, _B200_SWITCH_RATE)


def build_dgx_b300(text: TopologyText) -> Topology:
    """Build `dgx-b300:2`: machines of eight B300 with one NVSwitch each, and one network switch."""
    # NVIDIA's data sheet: 900 GB/s per GPU and direction, NICs of 800 Gbit/s.
    return _build_nvlink_machines(text, 900e9, _B200_SWITCH_RATE, 100e9)


def build_gb200(text: TopologyText) -> Topology:
    """Build `gb200` or `gb300`: a tray of four GPUs; `gb200:18` is 18 trays, a full NVL72.

    All GPUs are linked to one switch (default 900 GB/s per GPU), a regular network. The
    switch is declared to multicast and add up (as NVLS does) at 479.5 GB/s, the rate
    measured on B200, because no public measurement of these trays is known. Raise
    `UsageError` for more than `_MAX_TRAYS` (18) trays, and for an argument that is not one
    integer of at least 1.
    """
    (trays,) = text.parameters(1, "x", "gb200:18 for a rack") if text.argument else (1,)
    if trays > _MAX_TRAYS:
        raise text.error(
            f"{trays} trays, but an NVLink domain has at most {_MAX_TRAYS}", "use fewer trays"
        )
    return _declare_switches(
        _build_nvswitch_machine(text, trays * _GPUS_PER_TRAY, 900e9), _B200_SWITCH_RATE
    )


def _build_nvlink_machines(
    text: TopologyText,
    bytes_per_s: float,
    switch_bytes_per_s: float,
    nic_bytes_per_s: float = 50e9,
) -> Topology:
    """Build machines of eight GPUs, each with one NVSwitch; a single one is a regular network.

    Every GPU is linked to the NVSwitch of its machine. With several machines, it also has a link,
    its NIC, to the one network switch, and each machine is a group `node M`. Machine m has the NPUs
    8m to 8m + 7. The NVSwitches follow the NPUs, by machine, then the network. A single machine
    equals `switch:8`, without groups.

    The classes of links are GPU to NVSwitch (default `bytes_per_s`) and, only with several
    machines, NIC (default `nic_bytes_per_s`), both in bytes/s. The text gives one bandwidth or
    latency for all classes, or one per class in this order. The NVSwitches are declared as measured
    switches, which multicast and add up at `switch_bytes_per_s` in bytes/s.

    Raises `UsageError` for another number of values, for an argument that is not one positive
    number, and for too many NPUs.
    """
    machines = _parse_machine_count(text, _GPUS_PER_DGX)
    if machines == 1:
        machine = _build_nvswitch_machine(text, _GPUS_PER_DGX, bytes_per_s)
        return _declare_switches(machine, switch_bytes_per_s)
    constants = text.per_dimension(2, (bytes_per_s, nic_bytes_per_s), _CLASSES)
    npus = machines * _GPUS_PER_DGX
    npu = np.arange(npus, dtype=np.int64)
    nvswitch = npus + npu // _GPUS_PER_DGX
    network = np.full(npus, npus + machines)
    levels = ((npu, nvswitch), (npu, network))
    names = [*_name_nvswitches(machines), "network"]
    groups = _build_groups(machines, _GPUS_PER_DGX)
    cluster = build_levels(text.text, npus, names, levels, constants, groups)
    return _declare_switches(cluster, switch_bytes_per_s, machines)


def _build_machines_of_shared_nics(
    text: TopologyText, gpus: int, bytes_per_s: float, nic_bytes_per_s: float
) -> Topology:
    """Build machines of `gpus` GPUs, each with one NVSwitch; every two GPUs share a NIC.

    A single machine equals `switch:GPUS`, a regular network without NICs and groups. With several
    machines, NIC i is a switch that is linked to GPUs 2i and 2i + 1 and to the one network switch,
    and each machine is a group `node M`. `gpus` must be even. Machine m has the NPUs from `gpus` *
    m on. The switch ids follow the NPUs: NVSwitches, NICs, network.

    The classes of links are GPU to NVSwitch (default `bytes_per_s`) and, only with several
    machines, GPU to NIC and NIC to network together (default `nic_bytes_per_s`), both in bytes/s.
    The text gives one bandwidth or latency for all classes, or one per class in this order.

    Raises `UsageError` for another number of values, for an argument that is not one positive
    number, and for too many NPUs.
    """
    machines = _parse_machine_count(text, gpus)
    if machines == 1:
        return _build_nvswitch_machine(text, gpus, bytes_per_s)
    nvlink, network = text.per_dimension(2, (bytes_per_s, nic_bytes_per_s), _CLASSES)
    npus = machines * gpus
    npu = np.arange(npus, dtype=np.int64)
    first_nic = npus + machines
    nic = first_nic + np.arange(npus // _GPUS_PER_NIC, dtype=np.int64)
    levels = (
        (npu, npus + npu // gpus),
        (npu, first_nic + npu // _GPUS_PER_NIC),
        (nic, np.full(len(nic), nic[-1] + 1)),
    )
    nics = _name_nics(machines, gpus // _GPUS_PER_NIC)
    names = [*_name_nvswitches(machines), *nics, "network"]
    groups = _build_groups(machines, gpus)
    return build_levels(text.text, npus, names, levels, [nvlink, network, network], groups)


def _declare_switches(topology: Topology, bytes_per_s: float, count: int = 1) -> Topology:
    """Return a copy of the topology with its first `count` switches declared as measured switches.

    These can multicast and add up (reduce) at `bytes_per_s`, a rate that was measured. They are
    used only if the topology declares no other such switches.
    """
    switches = tuple(range(topology.num_npus, topology.num_npus + count))
    return replace(topology, measured_switches=MeasuredSwitches(switches, bytes_per_s))


def build_mi250(text: TopologyText) -> Topology:
    """Build `mi250:2`: machines of eight MI250 with sixteen dies; several are linked by one switch.

    Classes of links: lane of xGMI, network.
    """
    return _build_machines(text, _MI250, _DIES, 50e9, 16e9)


def build_mi300x(text: TopologyText) -> Topology:
    """Build `mi300x:2`: machines of eight fully connected MI300X, by default 64 GB/s per link of
    xGMI; several are linked by one switch with 50 GB/s per NIC. Classes of links: link of xGMI,
    NIC.
    """
    # AMD's data sheet of the platform: seven links per GPU, 128 GB/s each for both directions; NICs
    # of usual machines have 400 Gbit/s.
    return _build_machines(text, _MI300X, 8, 64e9, 50e9)


def _build_machines(
    text: TopologyText,
    lanes: Lanes,
    gpus: int,
    lane_bandwidth: float,
    nic_bandwidth: float,
    gpus_per_nic: int = 1,
) -> Topology:
    """Build machines whose GPUs are connected by lanes; one network switch joins several machines.

    `lanes`: number of lanes by pair of GPUs of a machine (lower, higher). Each pair has one link
    per direction with the bandwidth of all its lanes. Without an argument there is one machine,
    without switches and groups. With several, machine m is the group `node m`, and:
    - `gpus_per_nic` is 1: every GPU has a link, its NIC, to the network switch.
    - Otherwise: each NIC is a switch. It has links to `gpus_per_nic` successive GPUs and to the
      network switch, each with the bandwidth of a NIC.

    Nodes: GPUs (`gpus` * m + i), NIC switches, network switch. Links are sorted by source. The
    classes of links are lane (default `lane_bandwidth`) and, only with several machines, NIC
    (`nic_bandwidth`), in bytes/s. The text gives one bandwidth or latency for all, or one per
    class. Raises `UsageError` for another number of values, an invalid count, or too many NPUs.
    """
    machines = _parse_machine_count(text, gpus)
    if machines == 1:
        (lane,) = text.per_dimension(1, (lane_bandwidth,), _CLASSES)
        links = _build_lane_links(lanes, 1, gpus, lane)
        return links.topology(text.text, gpus, gpus)
    lane, network = text.per_dimension(2, (lane_bandwidth, nic_bandwidth), _CLASSES)
    npus = machines * gpus
    npu = np.arange(npus, dtype=np.int64)
    nics = [] if gpus_per_nic == 1 else _name_nics(machines, gpus // gpus_per_nic)
    nic = npus + np.arange(len(nics), dtype=np.int64)
    switch = npus + len(nics)
    parts = [_build_lane_links(lanes, machines, gpus, lane)]
    if nics:
        parts.append(build_duplex_links(npu, npus + npu // gpus_per_nic, *network))
    uplink_nodes = nic if nics else npu
    parts.append(build_duplex_links(uplink_nodes, np.full(len(uplink_nodes), switch), *network))
    names = (*map(str, range(npus)), *nics, "network")
    links = Links.joined(parts).by_source()
    groups = _build_groups(machines, gpus)
    return links.topology(text.text, npus, switch + 1, node_names=names, groups=groups)


def _parse_machine_count(text: TopologyText, gpus: int) -> int:
    """Return the number of machines that the text states, 1 without an argument.

    `gpus`: GPUs of each machine. With an argument, raises `UsageError` if it is not one whole
    number from 1 to 9999999, or if the machines have more than 2^19 GPUs together
    (`MAX_NODES // 2`).
    """
    if not text.argument:
        return 1
    (count,) = text.parameters(1, "x", f"{text.name}:2 for two machines")
    check_npus(text, count * gpus)
    return count


def _build_nvswitch_machine(text: TopologyText, gpus: int, bandwidth_per_gpu: float) -> Topology:
    """Build a machine of `gpus` NPUs that are all linked to one switch, a regular network.

    It equals `switch:GPUS`, named by the text. `bandwidth_per_gpu`: in bytes/s, used if the
    text gives no bandwidth; the default latency is 500 ns. Raises `UsageError` if the text
    gives several bandwidths or latencies.
    """
    # Values in the text override the default.
    (pair,) = text.per_dimension(1, (bandwidth_per_gpu,))
    dimension = Dimension(DimensionKind.SWITCH, gpus, *pair)
    # Equal to `switch:8`, so that it counts as regular, with a dimension, also in drawings.
    return grid(text.text, [dimension])


def _build_lane_links(lanes: Lanes, machines: int, gpus: int, lane: tuple[float, float]) -> Links:
    """Build the links between GPUs within all machines, machine by machine.

    Within a machine they are sorted by source and destination. GPU g of machine m is node m *
    `gpus` + g. `lanes`: number of lanes (physical connections) by pair of GPUs (lower, higher), not
    empty. Each pair gets one link per direction. `lane`: (bandwidth in bytes/s, latency in s) of
    one lane. A link has this bandwidth times the number of its lanes, and the latency of one lane.
    """
    forward = [(*pair, count) for pair, count in lanes.items()]
    reverse = [(high, low, count) for low, high, count in forward]
    # Sorted by their endpoints, since the order of links decides ties in routing.
    rows = sorted(forward + reverse)
    source, destination, count = np.asarray(rows, np.int64).T
    bandwidth, latency = lane
    first_gpus = np.arange(machines, dtype=np.int64) * gpus
    first = np.repeat(first_gpus, len(source))
    return Links(
        first + np.tile(source, machines),
        first + np.tile(destination, machines),
        np.tile(bandwidth * count, machines),
        np.full(len(first), latency),
    )


def _name_nvswitches(machines: int) -> list[str]:
    """List the names `nvswitch M` of the machines, M from 0; all NVSwitches of a machine act as one
    switch.
    """
    # All NVSwitches of a machine act as one switch.
    return [f"nvswitch {machine}" for machine in range(machines)]


def _name_nics(machines: int, nics_per_machine: int) -> list[str]:
    """List the names `nic MACHINE.NIC` of the NICs of all machines, both numbers from 0, by
    machine, then by NIC.
    """
    return [
        f"nic {machine}.{nic}" for machine in range(machines) for nic in range(nics_per_machine)
    ]


def _build_groups(machines: int, gpus: int) -> dict[str, tuple[int, ...]]:
    """Return the NPUs of every machine as the group `node M`, M from 0.

    Machines have `gpus` consecutive NPUs each. Hierarchical algorithms use these groups.
    """
    groups = {}
    for machine in range(machines):
        groups[f"node {machine}"] = list_group_npus(machine, gpus)
    return groups
