"""Simulator `astra-sim`: write the folder, run the real binary on it, and read its output."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from collhub_astra_sim.folders.folder import AstraFolder, arguments, count_file_handles
from collhub_astra_sim.folders.write import build_folder
from collhub_astra_sim.options import (
    CONGESTION_AWARE,
    CONGESTION_UNAWARE,
    AstraBinaryOptions,
    AstraFolderOptions,
)
from collhub_astra_sim.running.process import AstraPrinted, find_binary, parse_output, run
from hub_core.model import Diagnostic, InputError, Location, PluginError, Severity
from hub_core.plugin_api import SimulationRequest, SimulationResult

# Texts in the simulator's output after a failure, with the cures.
_CURES = {
    "Cannot access et file": "a trace cannot be opened: check the limit of open files (ulimit -n)",
    "No collective implementation found": (
        "the binary is older than custom collectives: build a newer one"
    ),
    "Attribute comm_size not found": "the binary needs absolute sizes",
    "msg_chunk_cnt": "the binary reads symbolic sizes only: use the main branch of ASTRA-sim",
}


def simulate(request: SimulationRequest, options: AstraBinaryOptions) -> SimulationResult:
    """Return the finish times that ASTRA-sim prints; None for ranks that never finish.

    Raises `PluginError` without a binary that behaves like ASTRA-sim, `InputError` if it fails or
    exceeds the time limit, `UsageError` for a topology that it cannot simulate.
    """
    binary = find_binary(options.binary)
    folder_options = AstraFolderOptions(
        network=options.network or _find_network_by_name(binary),
        size=request.collective_bytes,
        dialect="absolute",
        group=None if request.npus is None else ",".join(map(str, request.npus)),
    )
    folder = build_folder(request.algorithm, request.topology, folder_options)
    status, printed = _run_on(folder, binary, options.time_limit_s)
    _check(binary, status, printed, folder)
    finish = tuple(printed.finish_ns.get(npu) for npu in folder.placement.members)
    is_aware = folder_options.network == CONGESTION_AWARE
    diagnostics = tuple(_collect_findings(folder, printed))
    return SimulationResult(finish, diagnostics=diagnostics, shares_links=is_aware)


def _find_network_by_name(binary: str) -> str:
    """Return the backend of a binary, by the name that ASTRA-sim's build gives it."""
    is_unaware = "unaware" in Path(binary).name.lower()
    return CONGESTION_UNAWARE if is_unaware else CONGESTION_AWARE


def _run_on(folder: AstraFolder, binary: str, time_limit_s: float) -> tuple[int, AstraPrinted]:
    """Run the binary on a folder in a temporary directory; return (exit status, parsed output)."""
    with tempfile.TemporaryDirectory(prefix="collhub-astra-sim-") as name:
        input_folder = Path(name, "input")
        _write_files(folder, input_folder)
        output = Path(name, "output.log")
        status = run(
            (binary, *arguments(has_groups=folder.placement.is_part)),
            input_folder,
            output,
            time_limit_s=time_limit_s,
            handles=count_file_handles(folder.placement.npus),
        )
        with open(output, encoding="utf-8", errors="replace") as lines:
            return status, parse_output(lines)


def _write_files(folder: AstraFolder, folder_path: Path) -> None:
    """Write the files of a folder below `place`, including subfolders."""
    for artifact in folder.artifacts():
        file = folder_path / artifact.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(artifact.content())


def _check(binary: str, status: int, printed: AstraPrinted, folder: AstraFolder) -> None:
    """Raise `InputError` for a failed run, `PluginError` for a program that is not ASTRA-sim."""
    output = " | ".join(printed.tail) or "(it printed nothing)"
    if status != 0:
        raise InputError(
            f"ASTRA-sim ended with {_describe_status(status)}: {output}",
            cure=_find_cure(output) or _find_expected_aborts(folder),
            code="astra-sim-failed",
        )
    has_unknown_npus = any(npu >= folder.placement.npus for npu in printed.finish_ns)
    # The exit status is also 0 if no rank finishes, but then the output reports it.
    has_results = printed.finish_ns or printed.unreleased or printed.lost_event
    if has_unknown_npus or not has_results:
        raise PluginError(
            f"{binary} does not answer like ASTRA-sim: {output}",
            cure="name the analytical binary",
            code="no-binary",
        )


def _find_cure(output: str) -> str:
    """Return the cure for a known message of the simulator, else an empty text."""
    for text, cure in _CURES.items():
        if text in output:
            return cure
    return ""


def _find_expected_aborts(folder: AstraFolder) -> str:
    """Return the losses of the folder that predicted an abort, as the cure of a failed run.

    Empty if no loss mentions an abort.
    """
    aborting = [loss for loss in folder.losses if "aborts" in loss.consequence]
    return "; ".join(f"{loss.feature}: {loss.consequence}" for loss in aborting)


def _describe_status(status: int) -> str:
    """Describe an exit status; a negative one is the number of a signal, as in `subprocess`."""
    is_signal = status < 0
    words = f"signal {signal.Signals(-status).name}" if is_signal else f"exit status {status}"
    # A shell between the simulator and its caller converts a signal into 128 plus its number.
    is_abort = status in (-signal.SIGABRT, 128 + signal.SIGABRT)
    return f"{words} (an assertion failed)" if is_abort else words


def _collect_findings(folder: AstraFolder, printed: AstraPrinted) -> Iterator[Diagnostic]:
    """Yield the losses of the folder, and a finding per rank that never finished."""
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
            yield _report_unfinished(rank, is_reported=npu in printed.unreleased)


def _report_unfinished(rank: int, *, is_reported: bool) -> Diagnostic:
    """Return the finding about a rank that never finished."""
    # The simulator names a node of the workload, never the stuck node.
    detail = ", the simulator reports unreleased nodes" if is_reported else ""
    return Diagnostic(
        "never-finishes",
        f"rank {rank} never finishes{detail}",
        location=Location(rank=rank),
        cure="the simulator analytical names the step that it waits for",
    )
