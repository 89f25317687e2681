"""Make our implementation importable as `mscclpp.language`, in the process of one program."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from collhub_mscclpp import language

# The package has many modules; programs import what they need from any of them.
_MODULES = (
    "mscclpp",
    "mscclpp.language",
    "mscclpp.language.channel",
    "mscclpp.language.collectives",
    "mscclpp.language.general",
    "mscclpp.language.internal",
    "mscclpp.language.internal.types",
    "mscclpp.language.loop",
    "mscclpp.language.program",
    "mscclpp.language.rank",
    "mscclpp.language.thread_block_group",
    "mscclpp.language.utils",
)


def has_package() -> bool:
    """Whether the package itself is installed, with its language."""
    try:
        return importlib.util.find_spec("mscclpp.language.program") is not None
    # A package without the language, or one that does not load here.
    except (ImportError, OSError):
        return False


def install() -> None:
    """Put `mscclpp` and its modules into `sys.modules`."""
    exported = {name: getattr(language, name) for name in language.__all__}
    for name in _MODULES:
        module = ModuleType(name, language.__doc__)
        module.__dict__.update(exported, __all__=list(exported), __path__=[])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
