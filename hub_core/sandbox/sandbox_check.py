"""Check of the installation: which parts of the sandbox for programs this system supports."""

from __future__ import annotations

from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions
from hub_core.sandbox.landlock import landlock_features, landlock_version


def check_sandbox(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Report the accesses that Landlock restricts on this kernel; a kernel without it passes."""
    del request, options
    version = landlock_version()
    if version == 0:
        details = "the kernel has no Landlock: programs run with the rights of the user"
        return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
    features = landlock_features(version)
    restricted = ", ".join(name for name, is_supported in features.items() if is_supported)
    missing = ", ".join(name for name, is_supported in features.items() if not is_supported)
    details = f"Landlock {version} restricts {restricted}"
    if missing:
        details = f"{details}; not {missing}"
    return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
