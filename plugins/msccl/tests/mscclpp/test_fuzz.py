"""No changed plan is accepted wrongly: the executor model judges; none ends in a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.checking.report import PlanReport
from collhub_mscclpp.reading.read import samples
from collhub_mscclpp.reading.read_plan import parse_plan
from executor_model import schedules
from executor_verdicts import run_plan
from mutations import mutated

from hub_core.model import HubError

# Plans of all kinds of operation, small enough for many runs.
_BASES = (
    "allgather_nvls_zero_copy_g2_i1.json",
    "allgather_pkt_g2.json",
    "alltoall_alltoall_pipeline_g2.json",
    "exectest_reduce_pack.json",
    "exectest_transfer_pack_tbg.json",
    "mn_allgather_n1.json",
    "mn_allgather_tbg_g4_n1_t2.json",
    "mn_reducescatter_n1.json",
    "mn_send_recv_n4_i1.json",
    "repo_files_allreduce.json",
    "exectest_reduce_tbg.json",
)


def _bases(folder: Path | None) -> list[dict[str, Any]]:
    found = [json.loads(one.content()) for one in samples()]
    if folder is not None:
        found += [json.loads((folder / "mscclpp" / name).read_text()) for name in _BASES]
    return found


def _accepting_report(plan: dict[str, Any]) -> PlanReport | None:
    """The report of the check where it accepts a plan."""
    try:
        parsed = parse_plan(json.dumps(plan).encode(), "changed.json")
    except HubError:
        return None
    report = check_plan(parsed)
    return report if report.ok else None


def _run(plan: dict[str, Any]) -> str:
    """The verdict of the executor model, on sizes that the plan takes."""
    alignment = math.lcm(16, plan.get("buffer_alignment", 16))
    least = plan.get("min_message_size", 0) // plan["gpus"][0]["input_chunks"]
    # At least five units for every chunk, and a multiple of the alignment.
    chunk_bytes = max(5, -(-least // alignment)) * alignment
    return run_plan(plan, chunk_bytes, orders=schedules(len(plan["gpus"]), 1)).verdict


def _assert_no_wrong_acceptance(bases: list[dict[str, Any]], seeds: range) -> int:
    """Judge changed plans; returns how many of them were accepted."""
    accepted = 0
    for seed in seeds:
        plan = mutated(bases[seed % len(bases)], seed)
        report = _accepting_report(plan)
        if report is None:
            continue
        accepted += 1
        # A warning may be of something that goes wrong, such as a put without a flush.
        if "gpus" in plan and isinstance(plan["gpus"], list) and not report.diagnostics:
            verdict = _run(plan)
            assert verdict == "right", f"seed {seed}: accepted, but {verdict}"
    return accepted


def test_no_changed_sample_is_accepted_wrongly() -> None:
    accepted = _assert_no_wrong_acceptance(_bases(None), range(100))
    # Some changes change nothing that matters: the test would be void if none were accepted.
    assert 5 <= accepted <= 60


def test_no_changed_plan_of_the_corpus_is_accepted_wrongly(corpus: Path) -> None:
    assert _assert_no_wrong_acceptance(_bases(corpus), range(100)) >= 5


@pytest.mark.slow
def test_no_plan_of_two_thousand_is_accepted_wrongly(corpus: Path) -> None:
    assert _assert_no_wrong_acceptance(_bases(corpus), range(2000)) >= 100
