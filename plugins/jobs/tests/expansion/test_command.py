"""`collhub expand`: rules on the command line, files, reports, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_expansion.plugin import collhub_commands

import hub_core
from hub_core.model import JobCollective, NodeColumns, NodeKind, ProcessGroup, Workload
from hub_core.testing import (
    all_pairs_all_reduce,
    check_examples,
    pipeline,
    ring_all_gather,
    ring_all_reduce,
    training_step,
)

README = Path(__file__).resolve().parents[2] / "docs" / "expansion.md"

Collhub = Callable[..., Any]
RING = "ring:4?bandwidth=50GiB/s&latency=500ns"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The traces of a training step of four ranks."""
    hub_core.write(training_step(), tmp_path / "job")
    return tmp_path / "job"


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """A file with a ring all-reduce."""
    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    return tmp_path / "ring.json"


def test_collectives_become_the_steps_of_a_file(
    collhub: Collhub, job: Path, ring: Path, tmp_path: Path
) -> None:
    rule = f"all-reduce={ring}"
    out = tmp_path / "flat"
    run = collhub("expand", job, "--collective", rule, "--topology", RING, "-o", out, "--json")
    report = run.report()
    assert report["rules"] == [
        {
            "rule": rule,
            "algorithms": [str(ring)],
            "collectives": 2,
            "bytes": 2 << 16,
            "nodes": 2 * 60,
        }
    ]
    assert len(report["algorithms"]) == 1
    flat = hub_core.read_workload(out)
    assert not flat.nodes.is_kind(NodeKind.COLLECTIVE).any()
    assert len(flat.nodes) == report["nodes"] == 8 + 2 * 60
    assert collhub("verify", out).code == 0


def test_the_flat_job_takes_the_time_of_its_algorithm(
    collhub: Collhub, job: Path, ring: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_astra_sim")
    one = collhub("simulate", ring, "--topology", RING, "--size", "64KiB", "--json").report()
    collhub("expand", job, f"--collective=*={ring}", "--topology", RING, "-o", tmp_path / "flat")
    slots = ("-O", "slots=unlimited")
    flat = collhub("simulate", tmp_path / "flat", "--topology", RING, *slots, "--json").report()
    # 2 us, then 3 us, and the all-reduce of the last layer, which shares no link with the first.
    assert one["time_ns"] > 3000
    assert flat["time_ns"] >= 5000 + one["time_ns"]


def test_equal_collectives_of_several_groups_share_one_algorithm(
    collhub: Collhub, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_classic")
    hub_core.write(pipeline(), tmp_path / "job")
    report = collhub(
        "expand", tmp_path / "job", "--collective", "all-gather=direct", "--topology", "switch:4",
        "-o", tmp_path / "flat", "--json",
    ).report()  # fmt: skip
    assert [made["num_ranks"] for made in report["algorithms"]] == [2]
    assert report["rules"][0]["collectives"] == 2
    flat = hub_core.read_workload(tmp_path / "flat").nodes
    is_send = flat.is_kind(NodeKind.SEND)
    pairs = set(zip(flat.rank[is_send].tolist(), flat.peer[is_send].tolist(), strict=True))
    assert pairs == {(0, 2), (1, 3), (0, 1), (1, 0), (2, 3), (3, 2)}
    # No tag of the job's own messages is used again.
    assert flat.tag[is_send & (flat.bytes == 512)].min() > 7


def test_pieces_share_the_bytes(collhub: Collhub, job: Path, ring: Path, tmp_path: Path) -> None:
    out = tmp_path / "flat"
    collhub("expand", job, f"--collective=*={ring}", "--topology", RING, "--split=3", "-o", out)
    flat = hub_core.read_workload(out).nodes
    sent = flat.bytes[flat.is_kind(NodeKind.SEND)]
    # Each rank sends 2 (n - 1) / n of the buffer, rounded up to bytes in every message.
    assert 2 * 4 * 6 / 4 * (1 << 16) <= sent.sum() < 2 * 4 * 6 / 4 * (1 << 16) + len(sent)
    assert collhub("verify", out).code == 0


def test_frozen_slots_keep_the_time_of_the_job(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    before = collhub("simulate", job, "--topology", RING, "--json").report()
    for slots, faster in (("frozen", False), ("free", True)):
        out = tmp_path / slots
        collhub("expand", job, "--topology", RING, "--slots", slots, "-o", out)
        after = collhub(
            "simulate", out, "--topology", RING, "-O", "slots=unlimited", "--json"
        ).report()
        assert (after["time_ns"] < before["time_ns"]) == faster
        if not faster:
            assert after["rank_finish_ns"] == before["rank_finish_ns"]


def test_auto_takes_the_fastest(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    for module in ("collhub_astra_sim", "collhub_classic", "collhub_tuning"):
        pytest.importorskip(module)
    network = ("--topology", "fully-connected:4?bandwidth=50GiB/s&latency=5us")
    times = []
    for algorithm in ("ring", "direct", "auto:candidates=ring,direct"):
        rule = f"--collective=*={algorithm}"
        assert collhub("expand", job, rule, *network, "-o", tmp_path / "flat").code == 0
        flat = (tmp_path / "flat", *network, "-O", "slots=unlimited", "--json")
        times.append(collhub("simulate", *flat).report()["time_ns"])
    assert times[0] > times[1] == times[2]


def test_a_rule_that_matches_nothing_is_said(
    collhub: Collhub, job: Path, ring: Path, tmp_path: Path
) -> None:
    rules = ("--collective", f"*={ring}", "--collective", f"all-reduce@>1GiB={ring}")
    run = collhub("expand", job, *rules, "--topology", RING, "-o", tmp_path / "flat")
    assert run.code == 0
    assert f"all-reduce@>1GiB={ring} matches no collective" in run.err


def test_a_misspelt_synthesizer_is_named(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_classic")
    out = tmp_path / "flat"
    run = collhub("expand", job, "--collective=*=rinng", "--topology", RING, "-o", out)
    assert run.code == 2
    assert "did you mean 'ring'?" in run.err
    assert list(tmp_path.glob("flat*")) == []


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ring_all_gather(4), "it is an algorithm of all-gather"),
        (ring_all_reduce(3), "it is for 3 ranks"),
    ],
)
def test_an_algorithm_that_does_not_fit_is_refused(
    collhub: Collhub, job: Path, tmp_path: Path, algorithm: hub_core.Algorithm, message: str
) -> None:
    hub_core.write(algorithm, tmp_path / "other.json")
    rule = f"--collective=*={tmp_path}/other.json"
    run = collhub("expand", job, rule, "--topology", RING, "-o", tmp_path / "flat")
    assert run.code == 1
    assert message in run.err


def test_a_wrong_algorithm_is_refused(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    right = ring_all_reduce(4)
    kept = np.flatnonzero(right.steps.rank < 3)
    names = ("rank", "kind", "peer", "channel", "src_buffer", "src_offset", "dst_buffer")
    columns = {name: getattr(right.steps, name)[kept] for name in (*names, "dst_offset", "count")}
    steps = hub_core.StepTable.from_columns(4, columns)
    hub_core.write(replace(right, steps=steps), tmp_path / "wrong.json")
    rule = f"--collective=*={tmp_path}/wrong.json"
    run = collhub("expand", job, rule, "--topology", RING, "-o", tmp_path / "flat")
    assert run.code == 1
    assert "not correct as claimed" in run.err


def test_groups_of_one_rank_and_host_calls_move_nothing(
    collhub: Collhub, ring: Path, tmp_path: Path
) -> None:
    columns = {
        "rank": [0, 0, 1],
        "kind": [NodeKind.COLLECTIVE, NodeKind.COLLECTIVE, NodeKind.COMPUTE],
        "collective": [JobCollective.ALL_REDUCE, JobCollective.ALL_REDUCE, -1],
        "duration_ns": [-1, 5000, 1000],
        "bytes": [64, 64, -1],
        "group": [0, -1, -1],
        "on_host": [0, 1, 0],
    }
    nodes = NodeColumns.from_columns(2, columns, ([0], [1]))
    workload = Workload(nodes, groups=(ProcessGroup("1", (0,)),))
    hub_core.write(workload, tmp_path / "job")
    run = collhub(
        "expand", tmp_path / "job", "--topology", "ring:2", "-o", tmp_path / "flat",
        "--verify", "off",
    )  # fmt: skip
    assert run.code == 0
    flat = hub_core.read_workload(tmp_path / "flat").nodes
    assert flat.kind.tolist() == [NodeKind.MARKER, NodeKind.COMPUTE, NodeKind.COMPUTE]
    assert flat.duration_ns.tolist()[1:] == [5000, 1000]


@pytest.mark.parametrize(
    ("collective", "message"),
    [
        (JobCollective.UNKNOWN, "no algorithm performs this unknown collective; take it out"),
        (JobCollective.BARRIER, "no algorithm performs this barrier; take it out"),
    ],
)
def test_collectives_without_an_algorithm_are_named(
    collhub: Collhub, tmp_path: Path, collective: JobCollective, message: str
) -> None:
    columns = {
        "rank": [0, 1],
        "kind": [NodeKind.COLLECTIVE] * 2,
        "collective": [collective] * 2,
        "bytes": [64] * 2,
    }
    job = tmp_path / "job.json"
    hub_core.write(Workload(NodeColumns.from_columns(2, columns)), job)
    run = collhub("expand", job, "--topology", "ring:2", "-o", tmp_path / "flat")
    assert run.code == 1
    assert message in run.err


def test_a_topology_of_another_size_is_refused(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    run = collhub("expand", job, "--topology", "ring:8", "-o", tmp_path / "flat")
    assert run.code == 2
    assert "has 8 NPUs, the workload has 4 ranks" in run.err


def _naming(first: int, second: int) -> Workload:
    """A training step whose nodes name algorithms, one on ranks 0 to 2 and one on rank 3."""
    step = training_step()
    is_call = step.nodes.is_kind(NodeKind.COLLECTIVE)
    named = np.where(step.nodes.rank < 3, first, second)
    algorithm = np.where(is_call, named, -1).astype(np.int32)
    rings = (ring_all_reduce(4), all_pairs_all_reduce(4))
    return replace(step, nodes=replace(step.nodes, algorithm=algorithm), algorithms=rings)


@pytest.mark.parametrize("target", [(), ("--to", "astra-sim", "-O", f"topology={RING}")])
def test_collectives_have_the_algorithm_that_the_job_names(
    collhub: Collhub, tmp_path: Path, target: tuple[str, ...]
) -> None:
    if target:
        pytest.importorskip("collhub_astra_sim")
    hub_core.write(_naming(1, 1), tmp_path / "job")
    job = tmp_path / "job"
    if target:
        assert collhub("convert", job, *target, "-o", tmp_path / "folder").code == 0
        job = tmp_path / "folder"
    out = tmp_path / "flat"
    report = collhub("expand", job, "--topology", RING, "-o", out, "--json").report()
    assert report["rules"][0]["algorithms"] == ["algorithm 1 of the job"] or target
    sends = hub_core.read_workload(out).nodes.is_kind(NodeKind.SEND)
    all_pairs = all_pairs_all_reduce(4).steps
    assert int(sends.sum()) == 2 * int(all_pairs.sends.sum())


def test_a_rule_goes_before_what_the_job_names(collhub: Collhub, tmp_path: Path) -> None:
    hub_core.write(_naming(1, 1), tmp_path / "job")
    rule = ("--collective", "*=ring", "--topology", RING)
    run = collhub("expand", tmp_path / "job", *rule, "-o", tmp_path / "flat", "--json")
    assert run.report()["rules"][0]["algorithms"] == ["ring"]


def test_ranks_that_name_different_algorithms_are_refused(collhub: Collhub, tmp_path: Path) -> None:
    hub_core.write(_naming(0, 1), tmp_path / "job")
    run = collhub("expand", tmp_path / "job", "--topology", RING, "-o", tmp_path / "flat")
    assert run.code == 1
    assert "names another algorithm than its group" in run.err


def test_an_algorithm_that_does_not_fit_is_refused_by_its_number(
    collhub: Collhub, tmp_path: Path
) -> None:
    wrong = replace(_naming(0, 0), algorithms=(ring_all_gather(4),))
    hub_core.write(wrong, tmp_path / "job")
    run = collhub("expand", tmp_path / "job", "--topology", RING, "-o", tmp_path / "flat")
    assert run.code == 1
    assert "algorithm 0 of the job: all-reduce of 64 KiB on 4 ranks" in run.err


def test_several_queues_are_refused(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    options = ("--topology", RING, "--slots", "frozen", "-O", "queues=2")
    run = collhub("expand", job, *options, "-o", tmp_path / "flat")
    assert run.code == 2
    assert "with several queues a dimension" in run.err


@pytest.mark.once
@pytest.mark.parametrize("form", ["workload", "custom"])
def test_an_expanded_job_finishes_as_a_folder(
    collhub: Collhub, job: Path, tmp_path: Path, form: str
) -> None:
    for module in ("collhub_astra_sim", "collhub_tacos"):
        pytest.importorskip(module)
    network = "fully-connected:4?bandwidth=50GiB/s&latency=500ns"
    rule = "--collective=all-reduce=tacos:chunks=8"
    expanded = ("expand", job, rule, "--topology", network, "-o", tmp_path / "flat")
    assert collhub(*expanded).code == 0
    # Between many ends and many starts there are markers, which ASTRA-sim does not finish.
    flat = hub_core.read_workload(tmp_path / "flat").nodes
    assert flat.is_kind(NodeKind.MARKER).any()
    options = ("-O", f"topology={network}", "-O", f"form={form}")
    out = tmp_path / "folder"
    run = collhub("convert", tmp_path / "flat", "--to", "astra-sim", "-o", out, *options)
    assert run.code == 0
    assert "drop-markers" not in run.err
    assert "collhub expand" not in run.err
    report = collhub("simulate", out, "--json").report()
    assert None not in report["rank_finish_ns"]
    if form == "workload":
        direct = collhub("simulate", tmp_path / "flat", "--topology", network, "--json").report()
        assert direct["rank_finish_ns"] == report["rank_finish_ns"]


def test_synthesizers_may_time_their_trials_on_a_machine(
    collhub: Collhub, job: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_machine_timing")
    network = ("--topology", "switch:4?bandwidth=450GB/s", "-o", tmp_path / "flat")
    asked = ("expand", job, "--collective", "all-reduce=auto:candidates=ring", *network)
    run = collhub(*asked, "--machine", "h100")
    assert (run.code, "machine h100, NCCL 2.29.2" in run.err) == (0, True)
    run = collhub(*asked, "--machine", "a100", "--force")
    assert run.code == 2
    assert "450 GB/s a GPU instead of 300" in run.err


def test_the_simulator_of_machines_orders_frozen_slots_by_the_given_machine(
    collhub: Collhub, job: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_machine_timing")
    asked = ("expand", job, "--slots", "frozen", "--topology", "dgx-h100?npus=0-3")
    machine = (*asked, "--machine", "h100")
    run = collhub(*machine, "--backend", "machine", "-o", tmp_path / "measured")
    assert run.code == 0, run.err
    assert "in the order that the simulator machine gives" in run.out
    run = collhub(*machine, "-o", tmp_path / "nominal")
    assert "in the order that the simulator analytical gives" in run.out
    run = collhub(*asked, "--backend", "machine", "-o", tmp_path / "other")
    assert (run.code, "give --machine P" in run.err) == (2, True)


def test_the_times_that_choose_algorithms_are_named(
    collhub: Collhub, job: Path, tmp_path: Path
) -> None:
    asked = ("expand", job, "--collective", "all-reduce=ring", "-o", tmp_path / "flat")
    nominal = "nominal links, not a machine"
    assert nominal in collhub(*asked, "--topology", RING).err
    half = ("--topology", "dgx-h100?npus=0-3", "--force")
    assert nominal in collhub(*asked, *half).err
    run = collhub(*asked, *half, "--machine", "h100", "--json")
    assert run.code == 0
    assert "machine h100, NCCL" in run.err
    assert run.report()["machine"]["name"] == "h100"
    run = collhub(*asked, *half, "--json")
    assert run.report()["timing"] == nominal


def test_an_unknown_machine_is_refused_with_the_closest_name(
    collhub: Collhub, job: Path, tmp_path: Path
) -> None:
    pytest.importorskip("collhub_machine_timing")
    asked = ("expand", job, "--topology", RING, "-o", tmp_path / "flat")
    run = collhub(*asked, "--machine", "h10")
    assert (run.code, "did you mean 'h100'?" in run.err) == (2, True)


def test_the_command_is_offered() -> None:
    assert [one.name for one in collhub_commands()] == ["expand"]


def test_the_example_of_the_readme_runs() -> None:
    pytest.importorskip("collhub_classic")
    check_examples(README)
