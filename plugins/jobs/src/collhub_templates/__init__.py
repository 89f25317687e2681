"""Templates of workloads that are built once and copied many times.

Algorithms by position in a group, and programs shared by several ranks.
"""

from collhub_templates.programs import RankProgram, RankPrograms, job_of
from collhub_templates.templates import Edges, Lists, Template, built, marker, template_of

__all__ = [
    "Edges",
    "Lists",
    "RankProgram",
    "RankPrograms",
    "Template",
    "built",
    "job_of",
    "marker",
    "template_of",
]
