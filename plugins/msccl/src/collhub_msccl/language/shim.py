"""Make this implementation importable as `msccl`.

Only in the process that runs a program: elsewhere an installed `msccl` is not replaced.
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

# Names that a star import of the public package includes by accident: programs use them without
# importing them.
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
    # The public package has one module per program.
    **{f"msccl.programs.{name}": programs for name in programs.__all__},
}


def install_modules() -> None:
    """Insert `msccl` and its modules into `sys.modules`."""
    mirrors = {"msccl": ModuleType("msccl", "MSCCLang as collhub-msccl implements it.")}
    for name, ours in _MODULES.items():
        leaked = _LEAKED if name == "msccl.language" else {}
        mirrors[name] = _build_mirror(name, ours, leaked)
    # Parents precede their submodules.
    for name, module in mirrors.items():
        # Makes it a package, so that its modules can be imported by name.
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        # A program has the name of its module: the function takes precedence.
        if parent and not hasattr(mirrors[parent], last):
            setattr(mirrors[parent], last, module)
    sys.modules.update(mirrors)


def _build_mirror(name: str, ours: ModuleType, leaked: dict[str, object]) -> ModuleType:
    """A module with the exported names of ours and the leaked names."""
    public = {exported: getattr(ours, exported) for exported in ours.__all__} | leaked
    module = ModuleType(name, ours.__doc__)
    module.__dict__.update(public, __all__=sorted(public))
    return module
