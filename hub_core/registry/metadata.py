"""The metadata of installed distributions, read alike on every supported Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator

# Below Python 3.12 the backport, so that one behaviour holds on every supported version.
if sys.version_info >= (3, 12):
    from importlib import metadata
    from importlib.metadata import Distribution as Distribution
    from importlib.metadata import EntryPoint as EntryPoint
else:
    import importlib_metadata as metadata
    from importlib_metadata import Distribution as Distribution
    from importlib_metadata import EntryPoint as EntryPoint


def installed_distributions() -> Iterator[Distribution]:
    """Every installed distribution, in the order of `sys.path`; one that is installed twice comes twice."""
    for found in metadata.distributions():
        assert isinstance(found, Distribution)
        yield found


def find_distribution(name: str) -> Distribution:
    """The distribution of this name, which is installed."""
    found = metadata.distribution(name)
    assert isinstance(found, Distribution)
    return found


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None
