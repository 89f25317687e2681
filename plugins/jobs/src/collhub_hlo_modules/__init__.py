"""Modules of HLO text: instructions, collectives with groups, work, and their captured graphs."""

from __future__ import annotations

from collhub_hlo_modules.module import Module, read_module
from collhub_hlo_modules.program_graph import build_graph
from collhub_hlo_modules.text import StatementReader

__all__ = ["Module", "StatementReader", "build_graph", "read_module"]
