"""Parts of workloads that are made once and laid out many times.

Algorithms by position in a group, and programs of ranks that do the same.
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
