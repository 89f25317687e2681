"""Whether workers have the distributions that are here: others may give other results."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

# What pickles and results depend on besides the distributions of the hub.
_OTHERS = ("dask", "distributed", "numpy")
_PLUGINS = "collhub.plugins"


def own_versions() -> dict[str, str]:
    """Versions of the hub's distributions, of plugins and of what moves tasks, by name."""
    # Plugins are not imported: those that the run disables count as well.
    points = metadata.entry_points(group=_PLUGINS)
    plugins = {point.dist.name for point in points if point.dist is not None}
    names = {found.name for found in metadata.distributions()}
    # Libraries that plugins share are no plugins, and have a part in results all the same.
    shared = {name for name in names if name == "collhub" or name.startswith("collhub-")}
    return {name: metadata.version(name) for name in sorted(names & {*plugins, *shared, *_OTHERS})}


def difference(own: Mapping[str, str], found: Mapping[str, str | None]) -> str | None:
    """The first distribution that another environment lacks or has in another version."""
    for name, version in own.items():
        there = found.get(name)
        if there is None:
            return f"lacks {name} {version}"
        if there != version:
            return f"has {name} {there}, not {version}"
    return None
