"""Offers of this plugin: MSCCL++ execution plans, checked as their executor runs them."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, FormatReader, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Offer the reader of execution plans."""
    return []


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Offer the check whether the executor runs a plan, and rightly."""
    return [
        Check(
            "mscclpp",
            Subject.RUNTIME,
            "whether microsoft/mscclpp runs an execution plan rightly, launch after launch",
            "collhub_mscclpp.checking.load_check:check_mscclpp",
        )
    ]
