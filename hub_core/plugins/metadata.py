"""The library that reads the metadata of installed distributions."""

from __future__ import annotations

import sys

# Below Python 3.12 the backport, so that one behaviour holds on every supported version.
if sys.version_info >= (3, 12):
    from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distributions, version
else:
    from importlib_metadata import Distribution, EntryPoint, PackageNotFoundError, distributions, version

__all__ = ["Distribution", "EntryPoint", "PackageNotFoundError", "distributions", "version"]
