"""Random jobs with faults: every culprit is named, and no rank that only waits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from collhub_diagnosis.read_evidence import read_evidence
from collhub_diagnosis.verdict import KINDS, NO_FAULT, JobVerdict, diagnose_evidence
from collhub_waits.matching import Matching
from dump_variants import (
    Change,
    keep_active,
    keep_newest,
    write_dumps,
    write_json_values,
    write_version,
)
from random_jobs import FAULTS, Truth, random_job
from simulated_job import SimulatedJob

# Jobs in which messages complete early, batches are cut, or completed entries are left out.
HARD_SEEDS = (
    106,
    117,
    130,
    537,
    587,
    722,
    816,
    924,
    1157,
    1275,
    1283,
    1989,
    2077,
    2121,
    2187,
    2240,
)
SEEDS = range(8 * len(FAULTS))
VARIANT_SEEDS = range(4 * len(FAULTS))
BACKENDS = ("hccl", "ncclx", "rccl", "xccl", "mccl")
VERSIONS = ("1.1", "1.2", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9")
# Dtypes are recorded since version 2.2.
WITHOUT_DTYPES = ("1.1", "1.2", "2.0", "2.1")


def diagnose(job: SimulatedJob, folder: Path, change: Change | None = None) -> JobVerdict:
    job.write(folder, change=change)
    return diagnose_evidence(read_evidence([str(folder)]))


def check_verdict(verdict: JobVerdict, job: SimulatedJob, truth: Truth) -> None:
    """Check a verdict on complete dumps."""
    culprits = set(verdict.culprits)
    assert verdict.kind in truth.kinds
    assert truth.must <= culprits <= truth.may
    if truth.is_hang:
        assert set(verdict.waiting) == job.stuck_ranks() - culprits
        assert verdict.has_fault


@pytest.mark.parametrize("seed", SEEDS)
def test_complete_dumps_give_the_true_verdict(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    check_verdict(diagnose(job, tmp_path), job, truth)


@pytest.mark.parametrize("seed", VARIANT_SEEDS)
def test_dumps_of_other_libraries_give_the_same_verdict(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    job.backend = BACKENDS[seed % len(BACKENDS)]
    check_verdict(diagnose(job, tmp_path), job, truth)


@pytest.mark.parametrize("seed", VARIANT_SEEDS)
def test_old_format_versions_give_the_same_verdict(tmp_path: Path, seed: int) -> None:
    job, truth, fault = random_job(seed)
    version = VERSIONS[seed % len(VERSIONS)]
    if fault == "dtype" and version in WITHOUT_DTYPES:
        truth = Truth(frozenset(["network"]), frozenset(), frozenset(), True)
    check_verdict(diagnose(job, tmp_path, write_version(version)), job, truth)


@pytest.mark.parametrize("seed", VARIANT_SEEDS)
def test_json_dumps_give_the_same_verdict(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    job.write(tmp_path, change=write_json_values, as_json=True)
    check_verdict(diagnose_evidence(read_evidence([str(tmp_path)])), job, truth)


@pytest.mark.parametrize("seed", [*VARIANT_SEEDS, *HARD_SEEDS])
def test_dumps_of_active_operations_blame_no_other_rank(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    check_part(diagnose(job, tmp_path, keep_active), truth)


def check_part(verdict: JobVerdict, truth: Truth) -> None:
    """Check a verdict on evidence with gaps: it may be undecided, but never blames other ranks."""
    assert verdict.kind in truth.kinds | {"undecided", "none"}
    assert set(verdict.culprits) <= truth.may


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_dumps_never_cause_the_blame_of_another_rank(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    choose = random.Random(seed)
    job.write(tmp_path, without=choose.sample(range(job.size), choose.randrange(1, job.size)))
    verdict = diagnose_evidence(read_evidence([str(tmp_path)]))
    check_part(verdict, truth)
    assert verdict.kind != "none"


@pytest.mark.parametrize("with_status", [True, False])
@pytest.mark.parametrize("seed", [*SEEDS, *HARD_SEEDS])
def test_overwritten_entries_never_cause_the_blame_of_another_rank(
    tmp_path: Path, seed: int, with_status: bool
) -> None:
    job, truth, _ = random_job(seed)
    check_part(diagnose(job, tmp_path, keep_newest(seed, with_status=with_status)), truth)


def shift_ranks(dump: dict[str, Any], offset: int) -> dict[str, Any]:
    """Return a dump of a job whose ranks begin at `offset`; its groups get names of their own."""
    config = {}
    for name, group in dump["pg_config"].items():
        ranks = str([int(rank) + offset for rank in group["ranks"].strip("[]").split(",")])
        config[f"{offset}-{name}"] = {**group, "name": f"{offset}-{name}", "ranks": ranks}
    entries = [
        {**entry, "process_group": (f"{offset}-{entry['process_group'][0]}", "part")}
        for entry in dump["entries"]
    ]
    for group in config.values():
        group["desc"] = "part"
    return {**dump, "pg_config": config, "entries": entries}


@pytest.mark.parametrize("seed", range(6 * len(FAULTS)))
def test_every_one_of_two_independent_faults_is_reported(tmp_path: Path, seed: int) -> None:
    """Two random jobs without common groups have the verdicts of both."""
    jobs = [random_job(seed), random_job(1000 + 37 * seed)]
    offsets = (0, jobs[0][0].size)
    dumps = {
        rank + offset: shift_ranks(job.dump(rank), offset)
        for (job, _, _), offset in zip(jobs, offsets, strict=True)
        for rank in range(job.size)
    }
    write_dumps(tmp_path, dumps, None)
    verdict = diagnose_evidence(read_evidence([str(tmp_path)]))
    reported = {finding.kind for finding in verdict.findings}
    must, may, waiting = set(), set(), set()
    for (job, truth, _), offset in zip(jobs, offsets, strict=True):
        must |= {rank + offset for rank in truth.must}
        may |= {rank + offset for rank in truth.may}
        waiting |= {rank + offset for rank in job.stuck_ranks() if truth.is_hang}
        assert not truth.is_hang or reported & truth.kinds
    assert must <= set(verdict.culprits) <= may
    assert verdict.kind == min(reported | {"none"}, key=KINDS.index)
    if verdict.kind not in NO_FAULT:
        assert set(verdict.waiting) == waiting - set(verdict.culprits)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_fault_is_drawn(fault: str) -> None:
    faults = [random_job(seed)[2] for seed in SEEDS]
    assert faults.count(fault) == 8


@pytest.mark.parametrize("seed", [*VARIANT_SEEDS, *HARD_SEEDS])
def test_active_operations_of_some_ranks_blame_no_other_rank(tmp_path: Path, seed: int) -> None:
    job, truth, _ = random_job(seed)
    choose = random.Random(seed)
    without = choose.sample(range(job.size), choose.randrange(1, job.size))
    job.write(tmp_path, without=without, change=keep_active)
    evidence = read_evidence([str(tmp_path)])
    list(Matching(evidence.records).mismatches())
    check_part(diagnose_evidence(evidence), truth)
