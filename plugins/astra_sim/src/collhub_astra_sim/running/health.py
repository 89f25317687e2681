"""Check for `collhub doctor`: whether the configured ASTRA-sim binary, if any, works."""

from __future__ import annotations

from collhub_astra_sim.options import BINARY_VARIABLE, AstraBinaryOptions
from collhub_astra_sim.running.process import find_binary
from hub_core.model import HubError
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    NoOptions,
    SimulationRequest,
)

_SUBJECT = "ASTRA-sim binary"
_MESSAGE_BYTES = 1 << 20
_TIME_LIMIT_S = 20.0
# One message of 1 MiB at 50 GiB/s and 500 ns takes trunc(500 + 2^20 / (50 * 2^30 / 10^9)) ns, with
# and without congestion; measured with the public release of March 2026.
_KNOWN_TIME_NS = 20031


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check the ASTRA-sim binary that `BINARY_VARIABLE` names; return a report of one line.

    Passes if one simulated message takes the known time, and if the variable is not set, because
    the simulator analytical needs no binary. A binary that is missing, fails or gives another time
    fails the check, without an exception.
    """
    del options
    line = _check_binary(request.environment.get(BINARY_VARIABLE))
    return CheckReport(line.is_ok, lines=(line,))


def _check_binary(name: str | None) -> CheckLine:
    """Run one message with the binary and compare its time with the known one."""
    if not name:
        details = f"not named ({BINARY_VARIABLE} is not set); the simulator analytical needs none"
        return CheckLine(_SUBJECT, True, details)
    try:
        binary = find_binary(name)
        times = _simulate_message(binary)
    except HubError as error:
        diagnostic = error.diagnostics[0]
        return CheckLine(_SUBJECT, False, diagnostic.message, diagnostic.cure)
    if times == (_KNOWN_TIME_NS, _KNOWN_TIME_NS):
        return CheckLine(_SUBJECT, True, f"{binary} gives the known time of one message")
    return CheckLine(
        _SUBJECT,
        False,
        f"{binary}: one message of 1 MiB took {times} ns, {_KNOWN_TIME_NS} ns are right",
        "build the analytical backend of the public release",
    )


def _simulate_message(binary: str) -> tuple[int | None, ...]:
    """Return the finish times of two ranks, one of which sends a message to the other."""
    # Imported here, so that listing checks imports neither numpy nor protobuf.
    import numpy as np

    from collhub_astra_sim.running.binary_simulator import simulate
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
    kind = CollectiveKind.BROADCAST
    collective = Collective(kind, 2, 1, root=0, in_place=True, out_of_place=False)
    algorithm = Algorithm(collective, steps.build(), np.zeros(2, np.int64))
    topology = parse_topology("fully-connected:2?bandwidth=50GiB/s&latency=500ns")
    request = SimulationRequest(algorithm, topology, _MESSAGE_BYTES)
    options = AstraBinaryOptions(binary, time_limit_s=_TIME_LIMIT_S)
    return simulate(request, options).rank_finish_ns
