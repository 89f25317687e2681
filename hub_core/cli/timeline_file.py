"""Write the timeline of a run as a Chrome trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.cli.output import print_note
from hub_core.model import UsageError

if TYPE_CHECKING:
    from hub_core.model import Algorithm
    from hub_core.plugin_api import ExecutionResult, SimulationResult


def write_timeline(
    algorithm: Algorithm,
    collective_bytes: int,
    result: SimulationResult | ExecutionResult,
    out: str,
) -> None:
    """Write the steps of a run to the file `out`.

    Say so where there are too many to be shown one by one.

    Raises `UsageError` where the result has no times of steps.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.artifacts import Content, destination
    from hub_core.plugin_api import Format
    from hub_core.timeline import MAX_EVENTS, MAX_RANKS, timeline

    if result.step_start_ns is None or result.step_end_ns is None:
        raise UsageError(
            "the times of steps are not told here",
            cure="leave out --timeline, or choose another program for the run",
        )
    place = destination(out, Format("timeline", "Chrome trace", (".json",)), force=True)
    made = timeline(algorithm, collective_bytes, result.step_start_ns, result.step_end_ns)
    place.put([Content("", b"".join(made.content))])
    if made.is_summary:
        reason = f"more than {MAX_RANKS} ranks or {MAX_EVENTS} events"
        print_note(
            f"{out} tells how many steps run at a time in groups of ranks, not the steps: {reason}"
        )
