"""The state of the installation on which results depend: versions, and digests in a checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from hub_core import installed_distributions, installed_version

if TYPE_CHECKING:
    from hub_core import Registry

# Other versions of these may round, solve or compile differently.
_LIBRARIES = ("numpy", "scipy", "numba", "llvmlite", "highspy", "ortools")
_PREFIX = "collhub"
_CORE = {"collhub": "hub_core"}


def installation_versions(registry: Registry) -> dict[str, str]:
    """Versions of Python and of all distributions that may take part in a result, by name.

    A package that is installed from a checkout changes without its version, so that its version
    is followed by a digest of its sources.
    """
    versions = {plugin.distribution: plugin.version for plugin in registry.plugins}
    versions["python"] = platform.python_version()
    for name in _LIBRARIES:
        version = installed_version(name)
        if version is not None:
            versions[name] = version
    for distribution in installed_distributions():
        name = distribution.name.lower().replace("_", "-")
        if name == _PREFIX or name.startswith(f"{_PREFIX}-"):
            versions[name] = f"{distribution.version}{_sources_digest(name)}"
    return versions


def _sources_digest(name: str) -> str:
    """`+` and a digest of the sources of a distribution in a checkout; empty elsewhere."""
    spec = importlib.util.find_spec(_CORE.get(name, name.replace("-", "_")))
    folders = [] if spec is None else [Path(one) for one in spec.submodule_search_locations or ()]
    installed = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    if not folders or str(folders[0]).startswith(installed):
        return ""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return f"+{digest.hexdigest()[:16]}"
