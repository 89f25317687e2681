"""Draw a network as SVG: where nodes stand, which lines join them, and the text of the picture."""

from __future__ import annotations

from hub_core.topology_drawing.picture import MAX_LINES, MAX_NODES, draw

__all__ = ["MAX_LINES", "MAX_NODES", "draw"]
