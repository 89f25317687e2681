"""Compile the kernels of a synthesizer in advance; numba is imported only if that is requested."""

from __future__ import annotations

from collections.abc import Callable

from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.plugin_api import CheckReport, SynthesisRequest, WarmOptions

__all__ = ["small_request", "warm_check"]

# Enough for several chunks, and fast to synthesize.
_BYTES = 4096


def warm_check(options: WarmOptions, run_every_kernel: Callable[[], None]) -> CheckReport:
    """Call `run_every_kernel` and report the compiled kernels, if the option `warm` is set.

    The report is that of `compile_kernels`. Without the option it is a success without a text, and
    numba is not imported.
    """
    if not options.warm:
        return CheckReport(True)
    # Imports numba, which takes a second.
    from collhub_packing.compiling import compile_kernels

    return compile_kernels(run_every_kernel)


def small_request(
    kind: CollectiveKind, topology_text: str, occupancy: Occupancy = Occupancy.SERIALIZATION
) -> SynthesisRequest:
    """Build a synthesis request of `_BYTES` (4 KiB) in total among all NPUs of a topology.

    Rank r is NPU r. A rooted collective has root 0, others have none. The collective has one unit
    per part. Raises `HubError` for an invalid text of a topology, and `InputError`
    (`invalid-collective`) for an uneven or custom kind.
    """
    topology = parse_topology(topology_text)
    npus = tuple(range(topology.num_npus))
    units, root = kind.traits.parts(len(npus)), 0 if kind.traits.is_rooted else None
    collective = Collective(kind, len(npus), units, root=root, in_place=True)
    return SynthesisRequest(collective, topology, _BYTES, npus, occupancy)
