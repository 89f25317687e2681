"""Offers of this plugin: MSCCL++ execution plans."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, FormatReader, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Offer the reader of execution plans."""
    return []


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Offer the check whether the executor runs a plan, and rightly."""
    return []
