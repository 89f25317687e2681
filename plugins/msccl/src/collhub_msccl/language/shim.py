"""Make our implementation importable as `msccl`.

Only in the process that runs a program: elsewhere, an installed `msccl` stays what it is.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import heapq
import sys
from collections import defaultdict
from types import ModuleType

from collhub_msccl import language
from collhub_msccl.language import chunk_sets, collectives, programs, routines, topologies
from collhub_msccl.language.topologies import amd, distributed, generic, nvidia

# What a star import of the public package brings along: programs use it without importing it.
_LEAKED = {
    "dataclass": dataclasses.dataclass,
    "field": dataclasses.field,
    "Enum": enum.Enum,
    "defaultdict": defaultdict,
    "functools": functools,
    "heapq": heapq,
    "sys": sys,
}
_MODULES = {
    "msccl.language": language,
    "msccl.language.collectives": collectives,
    "msccl.language.routines": routines,
    "msccl.topologies": topologies,
    "msccl.topologies.generic": generic,
    "msccl.topologies.distributed": distributed,
    "msccl.topologies.nvidia": nvidia,
    "msccl.topologies.amd": amd,
    "msccl.collectives": chunk_sets,
    "msccl.programs": programs,
    # The public package has a module for each program.
    **{f"msccl.programs.{name}": programs for name in programs.__all__},
}


def install() -> None:
    """Put `msccl` and its modules into `sys.modules`."""
    made = {"msccl": ModuleType("msccl", "MSCCLang as collhub-msccl implements it.")}
    for name, ours in _MODULES.items():
        leaked = _LEAKED if name == "msccl.language" else {}
        made[name] = _mirror(name, ours, leaked)
    # Parents stand before their modules.
    for name, module in made.items():
        # Makes it a package, so that its modules can be imported by name.
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        # A program of the package has the name of its module: the function goes before.
        if parent and not hasattr(made[parent], last):
            setattr(made[parent], last, module)
    sys.modules.update(made)


def _mirror(name: str, ours: ModuleType, leaked: dict[str, object]) -> ModuleType:
    """A module with what ours exports, and nothing else that it imports."""
    public = {exported: getattr(ours, exported) for exported in ours.__all__} | leaked
    module = ModuleType(name, ours.__doc__)
    module.__dict__.update(public, __all__=sorted(public))
    return module
