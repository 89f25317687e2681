"""Records that report writers get, and the deprecated request for all of them."""

from __future__ import annotations

from typing import get_args

import pytest

from hub_core import parse_topology
from hub_core.plugin_api import ReportRequest, ReportSubject, Shown


def test_every_kind_of_report_has_one_record() -> None:
    assert [kind.shows for kind in get_args(ReportSubject)] == list(Shown)


def test_request_for_all_kinds_still_works_and_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use TopologyDrawing or RunTimeline"):
        request = ReportRequest("ring", topology=parse_topology("ring:4"))
    assert request.topology is not None
