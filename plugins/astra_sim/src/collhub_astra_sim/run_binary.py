"""Simulator `astra-sim`: write the folder, run the real binary on it, and read its answer."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from collhub_astra_sim.folder import Folder, folder_of
from collhub_astra_sim.options import NETWORKS
from collhub_astra_sim.outcome import Outcome, parse_output
from collhub_astra_sim.process import found_binary, run
from collhub_astra_sim.run_script import arguments, handles_needed
from hub_core.model import Algorithm, Diagnostic, InputError, Location, PluginError, Severity
from hub_core.network import Topology
from hub_core.plugin_api import Options, SimulationResult

_DEFAULT_TIME_LIMIT_S = 3600.0
# What the simulator prints before it ends, and what to do about it.
_CURES = {
    "Cannot access et file": "a trace cannot be opened: check the limit of open files (ulimit -n)",
    "No collective implementation found": "the binary is older than custom collectives: build a newer one",
    "Attribute comm_size not found": "the binary needs absolute sizes",
    "msg_chunk_cnt": "the binary reads symbolic sizes only: use the main branch of ASTRA-sim",
}


def simulate(
    algorithm: Algorithm, topology: Topology, collective_bytes: int, options: Options
) -> SimulationResult:
    """Finishing times as ASTRA-sim prints them; None for ranks that never finish, which it does not report itself.

    Raises `PluginError` without a binary that answers like ASTRA-sim, `InputError` when it ends abnormally or
    too late, `UsageError` for a topology that it cannot be given.
    """
    binary = found_binary(_text(options, "binary"))
    network = _text(options, "network") or NETWORKS["unaware" in Path(binary).name.lower()]
    folder = folder_of(
        algorithm, topology, {"size": collective_bytes, "dialect": "absolute", "network": network}
    )
    with tempfile.TemporaryDirectory(prefix="collhub-astra-sim-") as name:
        place = Path(name, "input")
        _store(folder, place)
        output = Path(name, "output.log")
        limit = options.get("time_limit_s")
        status = run(
            (binary, *arguments(has_groups=folder.has_groups)),
            place,
            output,
            time_limit_s=_DEFAULT_TIME_LIMIT_S if limit is None else float(limit),
            handles=handles_needed(folder.npus),
        )
        with open(output, encoding="utf-8", errors="replace") as lines:
            outcome = parse_output(lines)
    _check(binary, status, outcome, folder)
    finish = tuple(outcome.finish_ns.get(npu) for npu in folder.members)
    return SimulationResult(finish, diagnostics=tuple(_findings(folder, outcome)))


def _text(options: Options, name: str) -> str | None:
    value = options.get(name)
    return None if value is None else str(value)


def _store(folder: Folder, place: Path) -> None:
    for artifact in folder.artifacts():
        file = place / artifact.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(artifact.content())


def _check(binary: str, status: int, outcome: Outcome, folder: Folder) -> None:
    said = " | ".join(outcome.tail) or "(it printed nothing)"
    if status != 0:
        cure = next((cure for text, cure in _CURES.items() if text in said), "")
        cure = cure or "; ".join(
            f"{loss.feature}: {loss.consequence}"
            for loss in folder.losses
            if "aborts" in loss.consequence
        )
        raise InputError(
            f"ASTRA-sim ended with {_ending(status)}: {said}", cure=cure, code="astra-sim-failed"
        )
    strangers = [npu for npu in outcome.finish_ns if npu >= folder.npus]
    if strangers or not (outcome.finish_ns or outcome.unreleased or outcome.lost_event):
        raise PluginError(
            f"{binary} does not answer like ASTRA-sim: {said}",
            cure="name the analytical binary",
            code="no-binary",
        )


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}" + (
            " (an assertion failed)" if status == 128 + signal.SIGABRT else ""
        )
    return f"signal {signal.Signals(-status).name}" + (
        " (an assertion failed)" if status == -signal.SIGABRT else ""
    )


def _findings(folder: Folder, outcome: Outcome) -> Iterator[Diagnostic]:
    """Losses of the folder, and why ranks never finished."""
    for loss in folder.losses:
        yield Diagnostic("loss", str(loss), Severity.NOTE)
    if outcome.lost_event:
        yield Diagnostic(
            "lost-event",
            "ASTRA-sim lost an event after an exception (a callable is removed before call)",
            cure="the trace breaks the simulator's input contract; please report it with the algorithm",
        )
    for rank, npu in enumerate(folder.members):
        if npu not in outcome.finish_ns:
            detail = ", the simulator reports unreleased nodes" if npu in outcome.unreleased else ""
            yield Diagnostic(
                "never-finishes",
                f"rank {rank} never finishes{detail}",
                location=Location(rank=rank),
                cure="the simulator analytical names the step that it waits for",
            )
