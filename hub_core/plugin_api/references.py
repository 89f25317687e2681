"""References: code that a plugin names, imported only when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable

Reference = str
"""`"package.module:function"`."""


def resolve(reference: Reference) -> Callable[..., object]:
    """Import the function that a reference names. Errors of the import pass through."""
    module, _, attribute = reference.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    return function
