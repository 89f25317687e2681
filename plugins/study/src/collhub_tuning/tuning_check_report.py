"""The report of `collhub tune --check` as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_tuning.tuned_folder import CheckedFormat
from hub_core import diagnostic_object
from hub_core.model import JsonValue


def check_document(folder: str, checked: Sequence[CheckedFormat]) -> dict[str, JsonValue]:
    """The report as `report-tune-check-1` describes it."""
    return {
        "schema": "collhub/report-tune-check-1",
        "folder": folder,
        "ok": all(one.ok for one in checked),
        "formats": [_format_object(one) for one in checked],
    }


def _format_object(checked: CheckedFormat) -> dict[str, JsonValue]:
    stretches: list[JsonValue] = [
        {
            "collective": str(one.kind),
            "in_place": one.in_place,
            "min_bytes": one.min_bytes,
            "max_bytes": one.max_bytes,
            "served_by": list(one.found),
            "stated": one.stated or None,
        }
        for one in checked.stretches
    ]
    return {
        "name": checked.name,
        "ok": checked.ok,
        "calls": stretches,
        "findings": [diagnostic_object(one) for one in checked.findings],
    }
