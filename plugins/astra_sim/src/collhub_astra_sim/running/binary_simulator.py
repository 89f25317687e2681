"""Simulator `astra-sim`: write the folder, run the real binary on it, and read its answer."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from collhub_astra_sim.folders.folder import AstraFolder
from collhub_astra_sim.folders.run_script import arguments, handles_needed
from collhub_astra_sim.folders.write import folder_of
from collhub_astra_sim.options import (
    CONGESTION_AWARE,
    CONGESTION_UNAWARE,
    AstraBinaryOptions,
    AstraFolderOptions,
)
from collhub_astra_sim.running.printed import AstraPrinted, parse_output
from collhub_astra_sim.running.process import found_binary, run
from hub_core.model import Diagnostic, InputError, Location, PluginError, Severity
from hub_core.plugin_api import SimulationRequest, SimulationResult

# What the simulator prints before it ends, and what to do about it.
_CURES = {
    "Cannot access et file": "a trace cannot be opened: check the limit of open files (ulimit -n)",
    "No collective implementation found": (
        "the binary is older than custom collectives: build a newer one"
    ),
    "Attribute comm_size not found": "the binary needs absolute sizes",
    "msg_chunk_cnt": "the binary reads symbolic sizes only: use the main branch of ASTRA-sim",
}


def simulate(request: SimulationRequest, options: AstraBinaryOptions) -> SimulationResult:
    """Finishing times as ASTRA-sim prints them; None for ranks that never finish.

    Raises `PluginError` without a binary that answers like ASTRA-sim, `InputError` when it ends
    abnormally or too late, `UsageError` for a topology that it cannot be given.
    """
    binary = found_binary(options.binary)
    folder_options = AstraFolderOptions(
        network=options.network or _network_by_name(binary),
        size=request.collective_bytes,
        dialect="absolute",
        group=None if request.npus is None else ",".join(map(str, request.npus)),
    )
    folder = folder_of(request.algorithm, request.topology, folder_options)
    status, printed = _run_on(folder, binary, options.time_limit_s)
    _check(binary, status, printed, folder)
    finish = tuple(printed.finish_ns.get(npu) for npu in folder.placement.members)
    is_aware = folder_options.network == CONGESTION_AWARE
    found = tuple(_findings(folder, printed))
    return SimulationResult(finish, diagnostics=found, shares_links=is_aware)


def _network_by_name(binary: str) -> str:
    """Which backend a binary is, by the name that ASTRA-sim's build gives it."""
    is_unaware = "unaware" in Path(binary).name.lower()
    return CONGESTION_UNAWARE if is_unaware else CONGESTION_AWARE


def _run_on(folder: AstraFolder, binary: str, time_limit_s: float) -> tuple[int, AstraPrinted]:
    """(exit status, what was printed) of a run on a folder in a temporary place."""
    with tempfile.TemporaryDirectory(prefix="collhub-astra-sim-") as name:
        place = Path(name, "input")
        _store(folder, place)
        output = Path(name, "output.log")
        status = run(
            (binary, *arguments(has_groups=folder.placement.is_part)),
            place,
            output,
            time_limit_s=time_limit_s,
            handles=handles_needed(folder.placement.npus),
        )
        with open(output, encoding="utf-8", errors="replace") as lines:
            return status, parse_output(lines)


def _store(folder: AstraFolder, place: Path) -> None:
    """Write the files of a folder under `place`, with the subfolders that their names state."""
    for artifact in folder.artifacts():
        file = place / artifact.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(artifact.content())


def _check(binary: str, status: int, printed: AstraPrinted, folder: AstraFolder) -> None:
    """Refuse a run that ended abnormally, and a program that is not ASTRA-sim."""
    said = " | ".join(printed.tail) or "(it printed nothing)"
    if status != 0:
        raise InputError(
            f"ASTRA-sim ended with {_ending(status)}: {said}",
            cure=_cure(said) or _expected_abort(folder),
            code="astra-sim-failed",
        )
    has_strangers = any(npu >= folder.placement.npus for npu in printed.finish_ns)
    # It ends with 0 also where no rank finishes, but then it says so.
    says_something = printed.finish_ns or printed.unreleased or printed.lost_event
    if has_strangers or not says_something:
        raise PluginError(
            f"{binary} does not answer like ASTRA-sim: {said}",
            cure="name the analytical binary",
            code="no-binary",
        )


def _cure(said: str) -> str:
    """What to do about a message of the simulator that is known, else nothing."""
    for text, cure in _CURES.items():
        if text in said:
            return cure
    return ""


def _expected_abort(folder: AstraFolder) -> str:
    """The losses of the folder that foretold an abort.

    The cure of a failed run whose output is not known; empty where no loss speaks of an abort.
    """
    aborting = [loss for loss in folder.losses if "aborts" in loss.consequence]
    return "; ".join(f"{loss.feature}: {loss.consequence}" for loss in aborting)


def _ending(status: int) -> str:
    """An exit status, or a signal, in words.

    A negative status is the number of a signal, as `subprocess` returns it.
    """
    is_signal = status < 0
    words = f"signal {signal.Signals(-status).name}" if is_signal else f"exit status {status}"
    # A shell between the simulator and its caller turns a signal into 128 and its number.
    is_abort = status in (-signal.SIGABRT, 128 + signal.SIGABRT)
    return f"{words} (an assertion failed)" if is_abort else words


def _findings(folder: AstraFolder, printed: AstraPrinted) -> Iterator[Diagnostic]:
    """Losses of the folder, and why ranks never finished."""
    for loss in folder.losses:
        yield Diagnostic("loss", str(loss), Severity.NOTE)
    if printed.lost_event:
        yield Diagnostic(
            "lost-event",
            "ASTRA-sim lost an event after an exception (a callable is removed before call)",
            cure="the trace breaks the simulator's input contract; "
            "please report it with the algorithm",
        )
    for rank, npu in enumerate(folder.placement.members):
        if npu not in printed.finish_ns:
            yield _unfinished(rank, is_reported=npu in printed.unreleased)


def _unfinished(rank: int, *, is_reported: bool) -> Diagnostic:
    # The simulator names a node of the workload, never the one that is stuck.
    detail = ", the simulator reports unreleased nodes" if is_reported else ""
    return Diagnostic(
        "never-finishes",
        f"rank {rank} never finishes{detail}",
        location=Location(rank=rank),
        cure="the simulator analytical names the step that it waits for",
    )
