"""Constants of NCCL's cost model by version, 2.18 to 2.30.

Source: src/graph/tuning.cc, src/enqueue.cc and src/init.cc of NCCL. Latencies are in us, bandwidths
in GB/s. A version that is not listed has the constants of the latest listed version before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hub_core.model import UsageError

Version = tuple[int, int]
"""Minor and patch number of NCCL 2."""

FIRST_MINOR, LAST_MINOR = 18, 30
DEFAULT_VERSION = "2.29.2"

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""Algorithms in the order of NCCL's numbers, as its tuner spells them."""
PROTOCOLS = ("ll", "ll128", "simple")

Latencies = tuple[float, float, float]
"""Latencies of LL, LL128 and Simple, us."""
Caps = tuple[float, float, float]
"""Upper limits for 1 node, 2 nodes, and more nodes, GB/s."""


@dataclass(frozen=True, slots=True)
class NcclConstants:
    """Constants of one version; mappings of latencies are by algorithm, of caps by architecture.

    `ring_ll_fractions`: fraction of the bandwidth that ring LL attains, for (all-reduce, reduce and
    all calls on several nodes; other calls). `counts_closing_hop`: a ring all-reduce crosses the
    network 2 N times instead of 2 (N - 1). `nvls_efficiency` is empty before 2.28, where
    `nvls_ratio` converts bus bandwidth to algorithm bandwidth; `nvls_skips_local_data`: gathers and
    scatters do not transfer a rank's local part. `nvls_channels`: for (one node, several nodes).
    `minimum_channel_traffic` is in bytes.
    """

    base_us: Mapping[str, Latencies]
    nvlink_hop_us: Mapping[str, Latencies]
    pci_hop_us: Mapping[str, Latencies]
    network_hop_us: Mapping[str, Latencies]
    ll_caps: Mapping[str, Caps]
    ring_ll128_caps: Mapping[str, Caps]
    tree_ll128_caps: Mapping[str, Caps]
    tree_caps: Mapping[str, Caps]
    nvls_tree_caps: Mapping[str, Caps]
    nvls_efficiency: Mapping[str, float]
    nvls_channels: Mapping[str, tuple[int, int]]
    ring_ll_fractions: tuple[float, float]
    nvls_ratio: float
    nvls_skips_local_data: bool
    counts_closing_hop: bool
    minimum_channel_traffic: int
    has_pat: bool
    has_symmetric_kernels: bool


def _simple(us: float) -> Latencies:
    """Return latencies in us by protocol (LL, LL128, Simple) of an algorithm that has only Simple:
    0, 0 and `us`.
    """
    return 0.0, 0.0, us


def _caps(hopper: Caps, blackwell: Caps, ampere: Caps, volta: Caps) -> dict[str, Caps]:
    return {
        "volta": volta, "ampere": ampere, "ada": ampere, "hopper": hopper, "blackwell": blackwell
    }  # fmt: skip


def _doubled(caps: Caps) -> Caps:
    return 2 * caps[0], 2 * caps[1], 2 * caps[2]


_VOLTA_LL, _AMPERE_LL, _HOPPER_LL = (39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0)
_TWENTY = (20.0, 20.0, 20.0)
_HOPPER_RING_LL128, _HOPPER_TREE_LL128 = (36.7, 36.7, 36.7), (36.7, 36.7, 29.0)
_VOLTA_TREE, _AMPERE_TREE, _HOPPER_TREE = (26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0)


def _ring_ll128(blackwell: Caps) -> dict[str, Caps]:
    return _caps(_HOPPER_RING_LL128, blackwell, _TWENTY, _TWENTY)


def _nvls_tree(blackwell_from_3_nodes: float) -> dict[str, Caps]:
    blackwell = (0.0, 96.0, blackwell_from_3_nodes)
    return _caps((0.0, 57.7, 45.5), blackwell, _AMPERE_TREE, _VOLTA_TREE)


_COLLNET_HOP = {"collnet_direct": _simple(3.7), "collnet_chain": _simple(2.8)}
_BASE = {"tree": (6.8, 14.0, 0.0), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0)}
_NVLINK_HOP = {
    "tree": (0.6, 1.25, 28.0), "ring": (0.6, 1.9, 3.4), **_COLLNET_HOP,
    "nvls": _simple(23.0), "nvls_tree": _simple(23.0), "pat": _simple(4.0),
}  # fmt: skip
_PCI_HOP = {
    "tree": (1.0, 1.9, 28.0), "ring": (1.0, 2.5, 5.7), **_COLLNET_HOP,
    "nvls": _simple(0.0), "nvls_tree": _simple(0.0), "pat": _simple(4.0),
}  # fmt: skip
_NETWORK_HOP = {
    "tree": (5.0, 8.5, 28.0), "ring": (2.7, 4.0, 14.0),
    "collnet_direct": _simple(31.0), "collnet_chain": _simple(30.0),
    "nvls": _simple(18.0), "nvls_tree": _simple(14.0), "pat": _simple(14.0),
}  # fmt: skip

_FIRST = NcclConstants(
    base_us=_BASE,
    nvlink_hop_us=_NVLINK_HOP,
    pci_hop_us=_PCI_HOP,
    network_hop_us=_NETWORK_HOP,
    ll_caps=_caps(_AMPERE_LL, _AMPERE_LL, _AMPERE_LL, _VOLTA_LL),
    ring_ll128_caps=_ring_ll128(_HOPPER_RING_LL128),
    tree_ll128_caps=_caps(_HOPPER_TREE_LL128, _HOPPER_TREE_LL128, _TWENTY, _TWENTY),
    tree_caps=_caps(_HOPPER_TREE, _HOPPER_TREE, _AMPERE_TREE, _VOLTA_TREE),
    nvls_tree_caps={},
    nvls_efficiency={},
    nvls_channels={"hopper": (16, 16), "blackwell": (16, 16)},
    ring_ll_fractions=(1 / 4, 1 / 3),
    nvls_ratio=5 / 6,
    nvls_skips_local_data=False,
    counts_closing_hop=True,
    minimum_channel_traffic=512,
    has_pat=False,
    has_symmetric_kernels=False,
)

# Each entry lists the constants that changed in a version.
_CHANGES: tuple[tuple[Version, dict[str, Any]], ...] = (
    (
        (21, 0),
        {
            "ring_ll_fractions": (1 / 2, 1 / 2),
            "ll_caps": _caps(_HOPPER_LL, _HOPPER_LL, _AMPERE_LL, _VOLTA_LL),
            "nvlink_hop_us": _NVLINK_HOP | {"nvls": _simple(25.0), "nvls_tree": _simple(25.0)},
        },
    ),
    (
        (23, 0),
        {
            "base_us": _BASE | {"tree": (6.8, 14.0, 8.4)},
            "nvlink_hop_us": _NVLINK_HOP
            | {"tree": (0.6, 1.25, 4.0), "nvls": _simple(25.0), "nvls_tree": _simple(25.0)},
            "pci_hop_us": _PCI_HOP | {"tree": (1.0, 1.9, 4.0)},
            "network_hop_us": _NETWORK_HOP | {"tree": (5.0, 8.5, 14.0)},
            "nvls_skips_local_data": True,
            "counts_closing_hop": False,
            "minimum_channel_traffic": 16 * 1024,
            "has_pat": True,
        },
    ),
    (
        (26, 0),
        {
            "ll_caps": _caps(_HOPPER_LL, _doubled(_HOPPER_LL), _AMPERE_LL, _VOLTA_LL),
            "ring_ll128_caps": _ring_ll128(_doubled(_HOPPER_RING_LL128)),
            "tree_ll128_caps": _caps(
                _HOPPER_TREE_LL128, _doubled(_HOPPER_TREE_LL128), _TWENTY, _TWENTY
            ),
            "tree_caps": _caps(_HOPPER_TREE, _doubled(_HOPPER_TREE), _AMPERE_TREE, _VOLTA_TREE),
        },
    ),
    (
        (27, 0),
        {
            "nvls_channels": {"hopper": (16, 16), "blackwell": (24, 32)},
            "has_symmetric_kernels": True,
        },
    ),
    (
        (28, 0),
        {
            "tree_ll128_caps": _caps(_HOPPER_TREE_LL128, (55.6, 31.67, 20.0), _TWENTY, _TWENTY),
            "tree_caps": _caps(_HOPPER_TREE, (70.0, 42.8, 24.0), _AMPERE_TREE, _VOLTA_TREE),
            "network_hop_us": _NETWORK_HOP | {"tree": (5.0, 8.5, 14.0), "nvls_tree": _simple(20.9)},
            "nvls_tree_caps": _nvls_tree(43.1),
            "nvls_efficiency": {"hopper": 0.85, "blackwell": 0.74},
        },
    ),
    (
        (28, 9),
        {
            "ring_ll128_caps": _ring_ll128((73.4, 34.6, 73.4)),
            "nvls_tree_caps": _nvls_tree(43.8),
        },
    ),
    ((29, 0), {"ring_ll128_caps": _ring_ll128((34.5, 34.6, 34.5))}),
    ((29, 7), {"ring_ll128_caps": _ring_ll128((40.0, 40.0, 40.0))}),
    ((30, 0), {"nvls_tree_caps": _nvls_tree(80.0), "minimum_channel_traffic": 32 * 1024}),
)

# Factors on the bandwidth of a tree all-reduce, by floor(log2(bytes / 64)), for LL, LL128, Simple.
_TREE_FACTORS: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9),
)  # fmt: skip
_NVLS_TREE_FACTORS = (*_TREE_FACTORS[2], 0.9)


def tree_factor(algorithm: str, protocol: str, size_bytes: int) -> float:
    """Return NCCL's factor on the bandwidth of a tree or NVLS tree all-reduce of a size.

    It comes from a table with an entry per power of two from 64 bytes on, without interpolation:
    index floor(log2(size / 64)), 0 for smaller sizes. Beyond the table it is 1.

    `algorithm`: `nvls_tree` has one table for all protocols. All other names use the tables of
    trees, one per protocol. Raises `ValueError` for an unknown protocol, in both cases.
    """
    index = max(size_bytes // 64, 1).bit_length() - 1
    factors = _TREE_FACTORS[PROTOCOLS.index(protocol)]
    if algorithm == "nvls_tree":
        factors = _NVLS_TREE_FACTORS
    return factors[index] if index < len(factors) else 1.0


@functools.cache
def version_numbers(version: str) -> Version:
    """Return (minor, patch) of a version of NCCL 2, such as (29, 2) for `2.29.2`.

    A missing patch is 0. If the text does not begin with `2.` and a number, those of
    `DEFAULT_VERSION` are returned. Results are cached.
    """
    match = re.match(r"2\.(\d{1,3})(?:\.(\d{1,3}))?", version)
    if match is None:
        return version_numbers(DEFAULT_VERSION)
    return int(match[1]), int(match[2] or 0)


def parse_version(text: str) -> str:
    """Return the version unchanged if NCCL's cost model is known for it.

    Versions are `2.MINOR` or `2.MINOR.PATCH` with MINOR from 18 to 30, both included. PATCH
    is any number of at most 3 digits; leading zeros are accepted, as in `2.018`. Raises
    `UsageError` for any other text, also with a prefix, suffix or blank.
    """
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", text)
    if (
        match is None
        or match[1] != "2"
        or not FIRST_MINOR <= version_numbers(text)[0] <= LAST_MINOR
    ):
        message = f"NCCL version {text!r:.40} has no known cost model"
        raise UsageError(message, cure=f"give 2.{FIRST_MINOR} to 2.{LAST_MINOR}, such as 2.29.2")
    return text


@functools.cache
def constants_of(version: str) -> NcclConstants:
    """Return the constants of a version of NCCL 2, such as `2.28.9`.

    Some versions change constants; all changes up to the given version apply. The patch counts:
    2.29.7 differs from 2.29.0. A missing patch is 0. Versions before 2.18 have the constants of
    2.18, versions after 2.30 those of 2.30. A text that does not begin with `2.` and a number has
    those of `DEFAULT_VERSION`. Results are cached.
    """
    numbers = version_numbers(version)
    constants = _FIRST
    for since, changes in _CHANGES:
        if numbers >= since:
            constants = replace(constants, **changes)
    return constants
