"""Steps that stand for the time until a plane of the network can be used."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import StepKind
from hub_core.schedules.lowering.columns import RowPairs, StepColumns, steps_of_kind
from hub_core.schedules.lowering.message_ends import MessageEnds


def startup_steps(
    ends: MessageEnds, channel: Int64Array, startup_ns: Int64Array
) -> tuple[StepColumns, RowPairs]:
    """A COMPUTE per rank and plane that starts up, and control edges to what waits for it.

    `channel`: int64 per end; channel c is of plane `c % len(startup_ns)`. In the edges, start-ups
    are the first rows, and the ends stand behind them.
    """
    # A plane without a stated time is ready at once.
    times = startup_ns if len(startup_ns) else np.zeros(1, np.int64)
    planes = len(times)
    plane = channel % planes

    # Sends of what has arrived come after the first ones, which is why those alone wait.
    waits = ends.is_send & ~ends.has_arrived & (times[plane] > 0)
    sends = np.flatnonzero(waits)
    place = ends.rank[sends] * planes + plane[sends]
    distinct, step = np.unique(place, return_inverse=True)
    rank, of_plane = np.divmod(distinct, planes)
    columns = steps_of_kind(
        StepKind.COMPUTE,
        {"rank": rank, "duration_ns": times[of_plane]},
    )
    return columns, (step.astype(np.int64), sends + len(rank))
