"""Uneven collectives as nodes of jobs: documents, traces, expansion, simulation, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_models.moe import generate
from collhub_models.plugin import MoeOptions

import hub_core
from hub_core import InputError, Workload
from hub_core.model import JobCollective, NodeColumns, NodeKind, UnitCounts
from hub_core.pipeline.job_simulation import simulate_job
from hub_core.plugin_api import WorkloadRequest

SMALL = MoeOptions(ranks=4, node_ranks=2, experts=8, top_k=2, tokens=32, hidden=64)
TABLE = [[0, 96, 32, 0], [64, 0, 32, 32], [0, 0, 0, 128], [32, 32, 64, 0]]


def job_of(kind: JobCollective, table: object, size: int | None = None, ranks: int = 4) -> Workload:
    """One uneven collective of `ranks` ranks with this table of bytes."""
    counts = UnitCounts.from_table(table, isinstance(table[0], list))
    columns = {
        "rank": np.arange(ranks),
        "kind": np.full(ranks, NodeKind.COLLECTIVE),
        "collective": np.full(ranks, kind),
        "bytes": np.full(ranks, counts.total if size is None else size),
        "counts": np.zeros(ranks, np.int64),
    }
    return Workload(NodeColumns.from_columns(ranks, columns), counts=(counts,))


@pytest.mark.parametrize("name", ["job.json", "job"])
@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (JobCollective.ALL_TO_ALL, TABLE),
        (JobCollective.ALL_GATHER, [8, 0, 16, 4]),
        (JobCollective.REDUCE_SCATTER, [8, 0, 16, 4]),
    ],
)
def test_documents_and_traces_keep_the_counts(tmp_path, name, kind, table) -> None:
    job = job_of(kind, table)
    hub_core.write(job, str(tmp_path / name))
    read = hub_core.read_workload(str(tmp_path / name))
    assert read.counts == job.counts
    assert np.array_equal(read.nodes.counts, job.nodes.counts)
    assert str(read.kind_of(0)).endswith("-v")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (lambda: job_of(JobCollective.ALL_REDUCE, [1, 2, 3, 4]), "only all-to-all, all-gather and"),
        (lambda: job_of(JobCollective.ALL_GATHER, TABLE), "needs one count per rank"),
        (lambda: job_of(JobCollective.ALL_TO_ALL, [1, 2, 3, 4]), "needs one count per pair"),
        (lambda: job_of(JobCollective.ALL_TO_ALL, [[0, 1], [1, 0]]), "counts are for 2 ranks"),
        (lambda: job_of(JobCollective.ALL_TO_ALL, TABLE, 7), "sum to 512 bytes, the node has 7"),
    ],
)
def test_counts_that_do_not_fit_their_node_are_refused(job, message) -> None:
    with pytest.raises(InputError, match=message):
        job()


def test_expanded_exchanges_send_the_bytes_of_the_messages_form(collhub, tmp_path) -> None:
    hub_core.write(generate(SMALL), str(tmp_path / "job"))
    options = ("--topology", "switch:4", "-o", tmp_path / "flat")
    assert collhub("expand", tmp_path / "job", *options).code == 0
    flat = hub_core.read_workload(str(tmp_path / "flat")).nodes
    messages = generate(replace(SMALL, nodes="messages")).nodes
    tables = np.zeros((2, 4, 4), np.int64)
    for table, nodes in zip(tables, (flat, messages), strict=True):
        sends = nodes.is_kind(NodeKind.SEND)
        np.add.at(table, (nodes.rank[sends], nodes.peer[sends]), nodes.bytes[sends])
    assert np.array_equal(tables[0], tables[1])


@pytest.mark.parametrize("exchange", ["direct", "two-level"])
def test_a_job_is_simulated_with_direct_exchanges_or_those_of_a_rule(exchange) -> None:
    job = generate(replace(SMALL, exchange=exchange))
    topology = hub_core.parse_topology("switch:4")
    times = simulate_job(WorkloadRequest(job, topology), "analytical", {})
    alone = simulate_job(
        WorkloadRequest(job_of(JobCollective.ALL_TO_ALL, TABLE), topology), "analytical", {}
    )
    assert times.time_ns > alone.time_ns > 1000


def test_a_job_without_network_names_the_remedy() -> None:
    request = WorkloadRequest(job_of(JobCollective.ALL_TO_ALL, TABLE))
    with pytest.raises(hub_core.UsageError, match="uneven collectives, whose algorithms need"):
        simulate_job(request, "analytical", {})
