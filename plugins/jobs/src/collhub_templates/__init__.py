"""Templates of workloads that are built once and copied many times.

Algorithms by position in a group, programs shared by several ranks, and the work of computations.
Names are imported on first use: a plugin can list its options without importing numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_templates.programs import (
        RankProgram,
        RankPrograms,
        job_of,
        number_by_use,
        repeat_edges,
    )
    from collhub_templates.roofline import RooflineOptions, work_of
    from collhub_templates.templates import Edges, Lists, Template, built, marker, template_of

__all__ = [
    "Edges",
    "Lists",
    "RankProgram",
    "RankPrograms",
    "RooflineOptions",
    "Template",
    "built",
    "job_of",
    "marker",
    "number_by_use",
    "repeat_edges",
    "template_of",
    "work_of",
]

_HOMES = {
    "collhub_templates.programs": "RankProgram RankPrograms job_of number_by_use repeat_edges",
    "collhub_templates.roofline": "RooflineOptions work_of",
    "collhub_templates.templates": "Edges Lists Template built marker template_of",
}

__getattr__ = names_from(__name__, _HOMES)
