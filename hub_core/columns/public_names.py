"""Import the public names of a package on first use, so that `collhub --help` needs no numpy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` (PEP 562) for a package, which imports public names on first use.

    `homes` maps the full name of each module to the names that it defines, separated by spaces. The
    function imports the module of the requested name, and stores the name in the package, so that
    it is called once per name. It raises `AttributeError` for any other name.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(home), name)
        # Stored, so that this function runs once per name.
        setattr(sys.modules[package], name, value)
        return value

    return find
