"""The offers keep what the hub asks of every plugin."""

from __future__ import annotations

from hub_core.testing import Verdict, check_plugin


def test_plugin_passes_the_conformance_kit() -> None:
    results = check_plugin("fabrics")
    assert [result for result in results if result.verdict is Verdict.FAILED] == []
