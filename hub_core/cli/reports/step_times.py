"""Write start and end of every step, or node, of a simulated run as a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.model import NodeKind, StepKind, StepTable, UsageError

if TYPE_CHECKING:
    from hub_core.model import NodeColumns
    from hub_core.plugin_api import SimulationResult


_HEADER = "rank,step,kind,peer,start_ns,end_ns\n"


def write_step_times(steps: StepTable | NodeColumns, result: SimulationResult, out: str) -> None:
    """Write one line per step, or per node of a job.

    Columns: rank, position in the rank, kind, peer, start and end in ns; -1 for a step that never
    started or ended. Raises `UsageError` if the simulator does not report times of steps.
    """
    from hub_core.pipeline.artifacts import Content, destination
    from hub_core.plugin_api import Format

    if result.step_start_ns is None or result.step_end_ns is None:
        raise UsageError(
            "this simulator does not tell the times of steps",
            cure="leave out --steps, or use another --backend",
        )
    kinds = StepKind if isinstance(steps, StepTable) else NodeKind
    target = destination(out, Format("csv", "times of steps", (".csv",)), force=True)
    names = [kind.name.lower().replace("_", "-") for kind in kinds]
    columns = (steps.rank, steps.kind, steps.peer, result.step_start_ns, result.step_end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    first_rows = steps.rank_indptr.tolist()
    lines = (
        f"{rank},{row - first_rows[rank]},{names[kind]},{peer},{start},{end}\n"
        for row, (rank, kind, peer, start, end) in enumerate(rows)
    )
    target.put([Content("", (_HEADER + "".join(lines)).encode("ascii"))])
