"""What this distribution offers to the hub: the check of certificates that packings carry."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check."""
    return [
        Check(
            "packing",
            Subject.CERTIFICATE,
            "rate and bound of a packing of trees, recomputed from the links alone",
            "collhub_certificates.check:check_packing",
        )
    ]
