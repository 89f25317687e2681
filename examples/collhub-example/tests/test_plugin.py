"""The conformance kit of the hub, and what is special about the format."""

from __future__ import annotations

from pathlib import Path

import pytest

import hub_core
from hub_core.testing import RULES, Rule, Verdict, check_rule, ring_all_reduce


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_plugin_conforms(rule: Rule) -> None:
    result = check_rule(rule, "example", hub_core.discover())
    assert result.verdict is not Verdict.FAILED, "\n".join(result.details)


def test_steps_come_back_equal(tmp_path: Path) -> None:
    algorithm = ring_all_reduce(4)
    hub_core.write(algorithm, tmp_path / "ring.example")
    read_back = hub_core.read(tmp_path / "ring.example")
    assert read_back.steps.differences(algorithm.steps) == ["lane"]


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.example"
    file.write_text("example 1\nall-reduce 2 2 - in sum\n0 0\n0 fly 1 0 output:0 output:0 1 - -\n")
    with pytest.raises(hub_core.InputError, match=r"bad\.example:4: "):
        hub_core.read(file)
