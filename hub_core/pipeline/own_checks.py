"""The core's own checks, as offers run them."""

from __future__ import annotations

from hub_core.model.diagnostics import Severity
from hub_core.network.connectedness import check_topology
from hub_core.plugin_api.check import CheckReport, CheckRequest
from hub_core.plugin_api.options import NoOptions


def check_connectedness(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Whether all NPUs of a topology reach one another, and what is often a slip."""
    assert request.topology is not None
    found = check_topology(request.topology)
    is_ok = all(one.severity is not Severity.ERROR for one in found)
    return CheckReport(is_ok, "connected" if is_ok else "not connected", found)
