"""Compile every kernel beforehand, by reading a small plan, which checks it too."""

from __future__ import annotations

from collhub_packing.warming import warm_check

from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile what is not compiled yet where `options.warm` asks for it, else look at nothing."""
    return warm_check(options, _run_every_kernel)


def _run_every_kernel() -> None:
    # Imported here, as the work of this plugin is: for the kernels.
    from collhub_mscclpp.reading.read import read
    from collhub_mscclpp.reading.samples import samples

    for source in samples():
        read(source, NoOptions())
