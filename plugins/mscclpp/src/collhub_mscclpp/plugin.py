"""Offers of this plugin: MSCCL++ execution plans, read, and checked as their executor runs them."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Format, FormatReader, Subject, WarmOptions, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# Among other JSON documents the list of ranks tells a plan. Its members stand in any order; what
# comes before the list is short.
_SIGNATURE = rb'\A\s*\{(?s:.){0,2000}?"gpus"\s*:\s*\['

_PLAN = Format(
    "mscclpp", "execution plans of MSCCL++, as its DSL writes them", (".json",), _SIGNATURE
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Offer the reader of execution plans."""
    return [
        FormatReader(
            _PLAN,
            "collhub_mscclpp.reading.read:read",
            samples="collhub_mscclpp.reading.samples:samples",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Offer the check of plans, and what compiles its kernels beforehand."""
    plans = Check(
        "mscclpp",
        Subject.RUNTIME,
        "whether microsoft/mscclpp runs an execution plan rightly, launch after launch",
        "collhub_mscclpp.checking.load_check:check_mscclpp",
    )
    kernels = Check(
        "mscclpp-kernels",
        Subject.INSTALLATION,
        "compiles the kernels beforehand, for doctor --warm",
        "collhub_mscclpp.warming:check",
        WarmOptions,
    )
    return [plans, kernels]
