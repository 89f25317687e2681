"""Register the checks of certificates of packings, flows and cuts in time."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """List the three checks of certificates: packing, flow and time-cut, in this order."""
    return [
        Check(
            "packing",
            Subject.CERTIFICATE,
            "rate and bound of a packing of trees, recomputed from the links alone",
            "collhub_certificates.recheck:check_packing",
        ),
        Check(
            "flow",
            Subject.CERTIFICATE,
            "lower bound of an all-to-all, scatter or gather, recomputed from prices of links",
            "collhub_certificates.time_bounds:check_flow",
        ),
        Check(
            "time-cut",
            Subject.CERTIFICATE,
            "lower bound of any collective in messages of one size, recounted across a cut in time",
            "collhub_certificates.time_bounds:check_time_cut",
        ),
    ]
