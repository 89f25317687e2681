"""The offers through the program."""

from __future__ import annotations

import json
from pathlib import Path

from made_plans import operations, two_ranks


def _written(folder: Path, plan: dict[str, object]) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return str(path)


def test_a_right_plan_passes_the_check_for_its_runtime(collhub, tmp_path: Path) -> None:
    path = _written(tmp_path, two_ranks())
    run = collhub("verify", path, "--runtime", "mscclpp")
    first = run.out.splitlines()[0]
    assert run.code == 0
    assert first == (
        f"{path}: mscclpp loads it; it runs rightly, in 3 launches one after the other"
    )


def test_a_plan_that_never_ends_fails_with_the_operation(collhub, tmp_path: Path) -> None:
    plan = two_ranks()
    del operations(plan, 1, 1)[4]
    run = collhub("verify", _written(tmp_path, plan), "--runtime", "mscclpp")
    assert run.code == 1
    assert "it never ends" in run.out
    assert any("wait of thread block 0, ops[1]" in line for line in run.error_lines)


def test_a_text_that_is_no_plan_is_refused_in_one_line(collhub, tmp_path: Path) -> None:
    plan = two_ranks()
    plan["gpus"][1]["id"] = 4
    run = collhub("verify", _written(tmp_path, plan), "--runtime", "mscclpp")
    assert run.code == 1
    assert len(run.error_lines) == 1


def test_plans_are_told_from_other_documents_by_their_content(collhub, tmp_path: Path) -> None:
    run = collhub("inspect", _written(tmp_path, two_ranks()))
    assert run.code == 0
    assert "(mscclpp)" in run.out
    assert "all-gather, out of place" in run.out
