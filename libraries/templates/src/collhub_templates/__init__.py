"""Algorithms as nodes of workloads, by position in a group: made once, laid out many times."""

from collhub_templates.templates import Edges, Lists, Template, built, marker, template_of

__all__ = ["Edges", "Lists", "Template", "built", "marker", "template_of"]
