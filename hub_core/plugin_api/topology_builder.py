"""The offer `TopologyBuilder`: a text such as `ring:8` becomes a topology."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class TopologyBuilder:
    """`build(text: TopologyText) -> Topology` for texts `NAME` or `NAME:ARGUMENT[?KEY=VALUE&...]`.

    Planes (`a+b`), subsets (`npus=0-3`) and products of dimensions are the core's; the builder sees
    one text without them. `example`: a text that the builder takes, for help and for the
    conformance kit. Wrong arguments are refused with `text.error(...)`.
    """

    name: str
    description: str
    build: Reference
    example: str
