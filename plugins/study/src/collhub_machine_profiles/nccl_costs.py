"""NCCL's cost model: the time of each algorithm and protocol is latency + bytes / bandwidth.

The formulas restate src/graph/tuning.cc of NCCL 2.18 to 2.30. NCCL computes these times to choose;
they are no measured times (median error 24 % on one NVLink node).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from collhub_machine_profiles.gpus import Gpu
from collhub_machine_profiles.nccl_constants import (
    ALGORITHMS,
    PROTOCOLS,
    NcclConstants,
    constants_of,
    tree_factor,
)

_GATHERING = frozenset({"ring", "nvls", "collnet_direct", "pat"})
ALGORITHMS_OF: Mapping[str, frozenset[str]] = {
    "all-reduce": frozenset(ALGORITHMS) - {"pat"},
    "all-gather": _GATHERING,
    "reduce-scatter": _GATHERING,
    "broadcast": frozenset({"ring"}),
    "reduce": frozenset({"ring"}),
}
"""NCCL's algorithms by collective."""
WITH_LL = frozenset({"tree", "ring"})
"""Algorithms with the protocols LL and LL128; the others have Simple only."""

MAX_COLLECTIVE_CHANNELS = 64
_INT8 = frozenset({"int8", "uint8"})
_FLOAT8_RING_RANKS = 8
_POST_OVERHEAD_US = {"intel": 1.0, "arm": 1.0, "amd": 2.0}
# Bytes per channel and rank from which a ring between nodes has a longer latency.
_PLATEAU_BYTES = 64
_ARCHITECTURES_BEFORE_AMPERE = frozenset({"volta", "pascal"})
_WITH_NVLS = frozenset({"hopper", "blackwell"})

# Speeds in GB/s that the channel search tries between nodes (src/graph/search.cc).
_HOPPER_SPEEDS = (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0)
_NETWORK_SPEEDS: Mapping[str, tuple[float, ...]] = {
    "hopper": _HOPPER_SPEEDS,
    "blackwell": (96.0, *_HOPPER_SPEEDS),
    "": (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
}
_SLOWEST_SPEEDS = (2.4, 1.2, 0.24, 0.12)


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Network cards of one node: `nics` cards of `nic_rate` GB/s each; `cpu` posts their sends."""

    nics: int
    nic_rate: float
    cpu: str = "intel"


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks of one NCCL communicator, equally many on every node; `network` for several nodes."""

    gpu: Gpu
    ranks: int
    nodes: int = 1
    version: str = ""
    network: NodeNetwork | None = None

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each node: ranks // nodes."""
        return self.ranks // self.nodes

    @property
    def constants(self) -> NcclConstants:
        """Constants of the version of NCCL."""
        return constants_of(self.version)

    def search_channels(self) -> tuple[int, float]:
        """Return the number of channels that NCCL's search finds, and the speed of each in GB/s.

        On one node, and without a known network, both are those of the GPU. On several nodes they
        are an estimate. The channels are as many as the network cards. Their speed is the fastest
        one that NCCL tries for the architecture of the GPU and that does not exceed these limits:

        - the rate of one network card
        - speed times number of the GPU's channels, divided by the channels of the result; this is
          no limit if a node has one rank, or if the GPU has no channels

        If no tried speed is within the limits, the speed is the slowest one (0.12).
        """
        gpu = self.gpu
        if self.nodes == 1 or self.network is None:
            return gpu.search_channels, gpu.channel_speed
        channels = self.network.nics
        limit = self.network.nic_rate
        if gpu.search_channels and self.ranks_per_node > 1:
            limit = min(limit, gpu.search_channels * gpu.channel_speed / channels)
        tried = _NETWORK_SPEEDS.get(gpu.architecture, _NETWORK_SPEEDS[""])
        return channels, next(
            (speed for speed in (*tried, *_SLOWEST_SPEEDS) if speed <= limit), _SLOWEST_SPEEDS[-1]
        )

    def collective_channels(self) -> int:
        """Return the largest number of channels that NCCL uses for a ring or a tree.

        On one node it is the field `channels` of the GPU. On several nodes it is twice the number
        of channels that NCCL's search finds (`search_channels`), at most 64.
        """
        if self.nodes == 1:
            return self.gpu.channels
        return min(2 * self.search_channels()[0], MAX_COLLECTIVE_CHANNELS)

    def nvls_channels(self) -> int:
        """Return the number of channels that NCCL uses for NVLS; 0 if the GPU has no NVLS.

        It depends on the version of NCCL, the architecture of the GPU, and on whether there is
        one node or several.
        """
        if not self.gpu.nvls_channels:
            return 0
        one_node, several_nodes = self.constants.nvls_channels[self.gpu.architecture]
        return one_node if self.nodes == 1 else several_nodes


@dataclass(frozen=True, slots=True)
class Alternative:
    """One algorithm and protocol: latency in us and algorithm bandwidth in GB/s.

    `refusal` is the reason why NCCL does not use it; both numbers are then 0. It is "" if
    NCCL may use it.
    """

    algorithm: str
    protocol: str
    latency_us: float = 0.0
    bandwidth: float = 0.0
    refusal: str = ""


@functools.lru_cache(maxsize=4096)
def list_alternatives(
    communicator: Communicator, collective: str, dtype: str = ""
) -> tuple[Alternative, ...]:
    """Return all 21 pairs of an NCCL algorithm and protocol for a collective, in NCCL's order.

    The order is that of `ALGORITHMS` (tree first), and for each of them LL, LL128, Simple. A
    pair that NCCL cannot use has the reason in `refusal`, and 0 for both numbers. Any other
    pair has its latency in us and bandwidth in GB/s. Reasons are the collective, the
    protocol, the GPUs, the numbers of nodes and ranks, and the version of NCCL; CollNet is
    never used.

    `dtype`: `int8` and `uint8` are refused for NVLS in an all-reduce or reduce-scatter. Other
    texts have no effect. Results are cached. Raises `KeyError` if `collective` is not a key
    of `ALGORITHMS_OF`, such as `all-to-all`.
    """
    rows = []
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            refusal = _refusal(communicator, collective, algorithm, protocol, dtype)
            if refusal:
                rows.append(Alternative(algorithm, protocol, refusal=refusal))
                continue
            latency_us = _latency_us(communicator, collective, algorithm, protocol)
            bandwidth = _bandwidth(communicator, collective, algorithm, protocol)
            rows.append(Alternative(algorithm, protocol, latency_us, bandwidth))
    return tuple(rows)


def cost_us(
    communicator: Communicator, collective: str, alternative: Alternative, size_bytes: int
) -> float:
    """Return the time in us that NCCL's cost model predicts for a call.

    It is `alternative.latency_us` + `size_bytes` / (1000 x `alternative.bandwidth`), with the
    bandwidth in GB/s and with two corrections. `size_bytes`: bytes of the full vector; for 0 bytes
    the latency remains.

    - The bandwidth of a tree is multiplied by `tree_factor`. For an NVLS tree this is done only on
      Blackwell, if the CPU is not ARM and NCCL is 2.28 or later.
    - The latency of a ring all-reduce with Simple on several nodes is multiplied by 1.4, or 1.9 on
      Volta and Pascal, if size_bytes // (`collective_channels()` x ranks) is at least 64.

    The alternative must be allowed: one with a refusal has bandwidth 0, and the call raises
    `ZeroDivisionError`.
    """
    algorithm, protocol = alternative.algorithm, alternative.protocol
    latency_us, bandwidth = alternative.latency_us, alternative.bandwidth
    gpu = communicator.gpu
    corrects_nvls_tree = (
        bool(communicator.constants.nvls_efficiency)
        and gpu.architecture == "blackwell"
        and _cpu(communicator) != "arm"
    )
    if algorithm == "tree" or (algorithm == "nvls_tree" and corrects_nvls_tree):
        bandwidth *= tree_factor(algorithm, protocol, size_bytes)
    if communicator.nodes > 1 and (collective, algorithm, protocol) == (
        "all-reduce", "ring", "simple"
    ):  # fmt: skip
        pieces = communicator.collective_channels() * communicator.ranks
        if size_bytes // pieces >= _PLATEAU_BYTES:
            is_old = gpu.architecture in _ARCHITECTURES_BEFORE_AMPERE
            latency_us *= 1.9 if is_old else 1.4
    return latency_us + size_bytes / (1e3 * bandwidth)


def is_last_resort(communicator: Communicator, algorithm: str, dtype: str) -> bool:
    """Return whether NCCL uses an algorithm only if no other algorithm is allowed.

    This is so for a ring with 8-bit floats (`dtype` begins with "float8" or "fp8", in any
    case) on more than `_FLOAT8_RING_RANKS` (8) ranks.
    """
    is_float8 = dtype.lower().startswith(("float8", "fp8"))
    return algorithm == "ring" and is_float8 and communicator.ranks > _FLOAT8_RING_RANKS


def _refusal(
    communicator: Communicator, collective: str, algorithm: str, protocol: str, dtype: str
) -> str:
    """Return the reason why NCCL does not use an algorithm with a protocol; "" if it may use them.

    The first reason that applies is returned:

    1. `ALGORITHMS_OF` does not list the algorithm for the collective.
    2. The protocol is LL or LL128, and the algorithm is neither a ring nor a tree.
    3. The algorithm is a CollNet one; these are never used.
    4. PAT: NCCL is older than 2.23; or a node has several GPUs.
    5. NVLS and NVLS tree: the GPU is not Hopper or Blackwell with NVLS channels; a node has one
       GPU; or `dtype` is "int8" or "uint8" in an all-reduce or reduce-scatter.
    6. NVLS on several nodes; NVLS tree on one node.
    7. LL128 (ring or tree) with several GPUs per node that have no NVLink.

    Raises `KeyError` for a collective that `ALGORITHMS_OF` does not have.
    """
    gpu = communicator.gpu
    constants = communicator.constants
    is_single = communicator.nodes == 1
    if algorithm not in ALGORITHMS_OF[collective]:
        return f"{algorithm} has no {collective}"
    if protocol != "simple" and algorithm not in WITH_LL:
        return f"{algorithm} has the protocol Simple only"
    if algorithm.startswith("collnet"):
        return "needs in-network reduction (SHARP and a CollNet plugin)"
    if algorithm == "pat":
        if not constants.has_pat:
            return "needs NCCL 2.23 or later"
        return "" if communicator.ranks_per_node == 1 else "needs one GPU per node"
    if algorithm.startswith("nvls"):
        if gpu.architecture not in _WITH_NVLS or not gpu.nvls_channels:
            return "needs NVSwitch and GPUs of Hopper or later"
        if communicator.ranks_per_node < 2:
            return "needs two GPUs of a node"
        if dtype in _INT8 and collective in {"all-reduce", "reduce-scatter"}:
            return "cannot add 8-bit integers"
        if algorithm == "nvls_tree":
            return "needs several nodes" if is_single else ""
        return "" if is_single else "needs in-network reduction on several nodes"
    if protocol == "ll128" and not gpu.has_nvlink and communicator.ranks_per_node > 1:
        return "LL128 needs NVLink between the GPUs"
    return ""


def _cpu(communicator: Communicator) -> str:
    return communicator.network.cpu if communicator.network else "intel"


def ring_steps(collective: str, ranks: int) -> int:
    """Return the number of steps of a ring as NCCL counts them.

    It is 2 (n - 1) for all-reduce, n for broadcast and reduce, otherwise n - 1, with n = `ranks`.
    """
    if collective == "all-reduce":
        return 2 * (ranks - 1)
    return ranks if collective in {"broadcast", "reduce"} else ranks - 1


def _bandwidth(communicator: Communicator, collective: str, algorithm: str, protocol: str) -> float:
    """Return the algorithm bandwidth in NCCL's cost model: GB of the buffer per second.

    B = C * speed for the C channels of the communicator. Caps are constants by NCCL version,
    architecture and 1, 2 or more nodes. The LL cap of several nodes is that of "ampere" with an AMD
    CPU, else of "volta".

    - nvls, nvls_tree: `_nvls_bandwidth`. pat: 0.75 B.
    - ring: b * ranks / `ring_steps`. Simple: b = B. LL: b = min(LL cap, B * f), where f is the
      first LL fraction on several nodes and for all-reduce and reduce, else the second. LL128: b =
      min(0.92 B, C * cap). `ZeroDivisionError` for one rank, except broadcast and reduce.
    - other (tree): t / 2, with s = min(0.92 B, C * cap). Simple: t = s. LL: t = min(s / 3.8, LL
      cap). LL128: t = min(s * g, C * LL128 cap), where g is 7/9 on one node, else 15/16.

    Raises `KeyError` for an architecture without caps, except for nvls and pat.
    """
    if algorithm.startswith("nvls"):
        return _nvls_bandwidth(communicator, collective, algorithm)
    constants, architecture = communicator.constants, communicator.gpu.architecture
    column = min(communicator.nodes, 3) - 1
    channels, speed = communicator.search_channels()
    bus = channels * speed
    if algorithm == "pat":
        return 0.75 * bus
    # The limit of LL depends on the GPU within a node and on the CPU between nodes.
    ll_row = architecture
    if communicator.nodes > 1:
        ll_row = "ampere" if _cpu(communicator) == "amd" else "volta"
    ll_cap = constants.ll_caps[ll_row][column]
    if algorithm == "ring":
        if protocol == "ll":
            is_first = communicator.nodes > 1 or collective in {"all-reduce", "reduce"}
            bus = min(ll_cap, bus * constants.ring_ll_fractions[0 if is_first else 1])
        elif protocol == "ll128":
            bus = min(0.92 * bus, channels * constants.ring_ll128_caps[architecture][column])
        return bus * communicator.ranks / ring_steps(collective, communicator.ranks)
    bus = min(0.92 * bus, channels * constants.tree_caps[architecture][column])
    if protocol == "ll":
        bus = min(bus / 3.8, ll_cap)
    elif protocol == "ll128":
        fraction = 7 / 9 if communicator.nodes == 1 else 15 / 16
        bus = min(bus * fraction, channels * constants.tree_ll128_caps[architecture][column])
    return bus / 2


def _nvls_bandwidth(communicator: Communicator, collective: str, algorithm: str) -> float:
    """Return the bandwidth of NVLS or NVLS trees in NCCL's cost model: GB of the buffer per second.

    The algorithm `nvls_tree` is NVLS trees, any other is NVLS. G is the number of GPUs per node, W
    the GPU's `nvls_speed`, and q = (G - 1) / G. N is the rate of a GPU between nodes: network cards
    x speed of a channel (`search_channels`) / G. On one node, or without a known network, N = W.

    With `nvls_efficiency` in the constants (NCCL 2.28 and later):

    1. w = W x efficiency of the architecture x q x (2 for an all-reduce, otherwise q).
    2. On two nodes w is at most 2 N, on more nodes at most N.
    3. NVLS trees: w is at most the entry of `nvls_tree_caps` for 1, 2, or more nodes.
    4. The result is G w. For an all-reduce of n ranks, it is G w n / (2 (n - 1)).

    Before that:

    - NVLS trees: G x min(W, N on two nodes, otherwise N / 2) x `nvls_ratio`.
    - NVLS for an all-reduce, or in versions before 2.23: G x min(W, N) x `nvls_ratio`.
    - Other NVLS: G x min(q W, 0.9 N).

    Raises `KeyError` if the constants lack the architecture.
    """
    constants, gpu = communicator.constants, communicator.gpu
    ranks, heads = communicator.ranks, communicator.ranks_per_node
    column = min(communicator.nodes, 3) - 1
    within = gpu.nvls_speed
    # The network limits a head to the rate of its cards; within one node nothing else limits it.
    network = communicator.network
    between = within
    if communicator.nodes > 1 and network is not None:
        between = network.nics * communicator.search_channels()[1] / heads
    is_all_reduce = collective == "all-reduce"
    local = (heads - 1) / heads
    if constants.nvls_efficiency:
        within *= constants.nvls_efficiency[gpu.architecture] * local
        within *= 2 if is_all_reduce else local
        speed = within
        if communicator.nodes > 1:
            speed = min(speed, between * (2 if communicator.nodes == 2 else 1))
        if algorithm == "nvls_tree":
            speed = min(speed, constants.nvls_tree_caps[gpu.architecture][column])
        ratio = ranks / ring_steps(collective, ranks) if is_all_reduce else 1.0
        return heads * speed * ratio
    if algorithm == "nvls_tree":
        between /= 1 if communicator.nodes == 2 else 2
        return heads * min(within, between) * constants.nvls_ratio
    if is_all_reduce or not constants.nvls_skips_local_data:
        return heads * min(within, between) * constants.nvls_ratio
    return heads * min(within * local, 0.9 * between)


def _latency_us(
    communicator: Communicator, collective: str, algorithm: str, protocol: str
) -> float:
    """Return the latency of a call in NCCL's cost model, in us.

    Base, hop and network hop are constants of the NCCL version for the algorithm and protocol. The
    hop is `nvlink_hop_us` if the GPU has NVLink, otherwise `pci_hop_us`. With one GPU per node,
    NCCL 2.23 and later use the network hop of trees for all algorithms. G is the number of GPUs per
    node and L = floor(log2(nodes)), 0 on one node.

    - ring: base + `_ring_latency_us`
    - tree: base + 2 (G - 1) hops + 2 L network hops
    - NVLS tree: one hop + 2 L network hops, without a base
    - NVLS: one hop, on several nodes + one network hop, without a base
    - any other (PAT): base + L / 3.5 network hops + 2.8 us x ranks

    Raises `ValueError` for a protocol that is not in `PROTOCOLS`, and `KeyError` for an algorithm
    without constants.
    """
    constants, column = communicator.constants, PROTOCOLS.index(protocol)
    nodes, ranks = communicator.nodes, communicator.ranks
    local_hops = constants.nvlink_hop_us if communicator.gpu.has_nvlink else constants.pci_hop_us
    hop = local_hops[algorithm][column]
    network_hop = constants.network_hop_us[algorithm][column]
    if communicator.ranks_per_node == 1 and constants.has_pat:
        # With one GPU per node no latency is hidden: NCCL uses the hop of trees.
        network_hop = constants.network_hop_us["tree"][column]
    base = constants.base_us.get(algorithm, (0.0, 0.0, 0.0))[column]
    levels = nodes.bit_length() - 1
    if algorithm == "ring":
        return base + _ring_latency_us(communicator, collective, protocol, hop, network_hop)
    if algorithm == "tree":
        return base + 2 * ((communicator.ranks_per_node - 1) * hop + levels * network_hop)
    if algorithm == "nvls_tree":
        return hop + 2 * levels * network_hop
    if algorithm == "nvls":
        return hop + (network_hop if nodes > 1 else 0.0)
    return base + levels * network_hop / 3.5 + 2.8 * ranks


def _ring_latency_us(
    communicator: Communicator, collective: str, protocol: str, hop: float, network_hop: float
) -> float:
    """Return the latency of all steps of a ring in us, without the base latency of the call.

    `hop`, `network_hop`: us per step within a node and between nodes. The first rule that applies
    is used:

    - broadcast, reduce: one `network_hop` on several nodes, otherwise one `hop`
    - one node: `ring_steps` x `hop`
    - several nodes: k of the `ring_steps` steps take `network_hop`. Each of the others takes the
      larger one of `hop` and the time in which the CPU posts a message.

    k is nodes - 1; for an all-reduce 2 (nodes - 1), in NCCL before 2.23 2 x nodes. Posting takes 1
    us on Intel and ARM, and 2 us on AMD; for Simple it takes three times as long. A communicator
    without a network (`communicator.network`) has an Intel CPU. Raises `KeyError` for another CPU
    on several nodes.
    """
    nodes = communicator.nodes
    if collective in {"broadcast", "reduce"}:
        # A pipeline: NCCL counts one hop, of the slowest kind.
        return network_hop if nodes > 1 else hop
    steps = ring_steps(collective, communicator.ranks)
    if nodes == 1:
        return steps * hop
    post = _POST_OVERHEAD_US[_cpu(communicator)] * (3 if protocol == "simple" else 1)
    network_steps = nodes - 1
    if collective == "all-reduce":
        network_steps = 2 * (nodes if communicator.constants.counts_closing_hop else nodes - 1)
    return (steps - network_steps) * max(hop, post) + network_steps * network_hop
