"""Check for `collhub doctor`: is an ASTRA-sim binary named, and does it give the known time of one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collhub_astra_sim.process import found_binary
from hub_core.model import HubError
from hub_core.plugin_api import HealthLine, Options

VARIABLE = "ASTRA_SIM_BIN"
_SUBJECT = "ASTRA-sim binary"
_MESSAGE_BYTES = 1 << 20
_TIME_LIMIT_S = 20.0
# One message of 1 MiB at 50 GiB/s and 500 ns, by the public release of March 2026, with and without congestion.
_KNOWN_TIME_NS = 20031


def check(environment: Mapping[str, str]) -> Sequence[HealthLine]:
    """One line. Without a binary all is well: the simulator analytical needs none."""
    name = environment.get(VARIABLE)
    if not name:
        return [
            HealthLine(
                _SUBJECT,
                True,
                f"not named ({VARIABLE} is not set); the simulator analytical needs none",
            )
        ]
    try:
        binary = found_binary(name)
        times = _one_message(binary)
    except HubError as error:
        found = error.diagnostics[0]
        return [HealthLine(_SUBJECT, False, found.message, found.cure)]
    if times != (_KNOWN_TIME_NS, _KNOWN_TIME_NS):
        known = f"one message of 1 MiB took {times} ns, {_KNOWN_TIME_NS} ns are right"
        return [
            HealthLine(
                _SUBJECT,
                False,
                f"{binary}: {known}",
                "build the analytical backend of the public release",
            )
        ]
    return [HealthLine(_SUBJECT, True, f"{binary} gives the known time of one message")]


def _one_message(binary: str) -> tuple[int | None, ...]:
    # Imported here, so that listing health checks imports neither numpy nor protobuf.
    import numpy as np

    from collhub_astra_sim.run_binary import simulate
    from hub_core import parse_topology
    from hub_core.model import (
        Algorithm,
        Buffer,
        Collective,
        CollectiveKind,
        StepKind,
        StepTableBuilder,
    )

    steps = StepTableBuilder(2)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.OUTPUT, count=1)
    steps.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
    collective = Collective(
        CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True, out_of_place=False
    )
    algorithm = Algorithm(collective, steps.build(), np.zeros(2, np.int64))
    topology = parse_topology("fully-connected:2?bandwidth=50GiB/s&latency=500ns")
    options: Options = {"binary": binary, "time_limit_s": _TIME_LIMIT_S}
    return simulate(algorithm, topology, _MESSAGE_BYTES, options).rank_finish_ns
