"""Move sharded tensors between device meshes in provably minimum time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_shardings import Mesh, Move, UnitTasks, parse_mesh, parse_move, unit_tasks

    from collhub_reshard.on_torch import move_state, reshard
    from collhub_reshard.planning import ReshardPlan, plan_reshard

__all__ = [
    "Mesh", "Move", "ReshardPlan", "UnitTasks", "move_state", "parse_mesh", "parse_move",
    "plan_reshard",
    "reshard", "unit_tasks",
]  # fmt: skip

# Names are imported when they are used: the hub imports this package to list its offers.
__getattr__ = names_from(
    __name__,
    {
        "collhub_reshard.on_torch": "move_state reshard",
        "collhub_reshard.planning": "ReshardPlan plan_reshard",
        "collhub_shardings": "Mesh Move UnitTasks parse_mesh parse_move unit_tasks",
    },
)
