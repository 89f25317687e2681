"""Check that an algorithm has no more channels than a runtime may have connections."""

from __future__ import annotations

from hub_core import Diagnostic
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

MOST_CHANNELS = 32


def run(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Judge the algorithm of a request."""
    if request.algorithm is None:
        return CheckReport(True, "no algorithm", is_applicable=False)
    channels = len(set(request.algorithm.steps.channel.tolist()))
    verdict = f"{channels} channels"
    if channels <= MOST_CHANNELS:
        return CheckReport(True, verdict)
    message = f"{verdict}, at most {MOST_CHANNELS} are there"
    return CheckReport(False, verdict, (Diagnostic("channels", message),))
