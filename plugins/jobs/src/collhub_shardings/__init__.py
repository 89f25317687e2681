"""Sharded tensors on device meshes, and the boxes in which the tiles of two shardings meet."""

from collhub_shardings.placements import Mesh, MeshPlacement, parse_mesh, parse_placement
from collhub_shardings.unit_tasks import (
    Move,
    ShapedType,
    Side,
    UnitTasks,
    device_pairs,
    ordinal_in_task,
    parse_move,
    parse_side,
    parse_tensor,
    unit_tasks,
)

__all__ = [
    "Mesh",
    "MeshPlacement",
    "Move",
    "ShapedType",
    "Side",
    "UnitTasks",
    "device_pairs",
    "ordinal_in_task",
    "parse_mesh",
    "parse_move",
    "parse_placement",
    "parse_side",
    "parse_tensor",
    "unit_tasks",
]
