"""Pipelines as jobs: a simulator times them as the schedule says, and slices fit between stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collhub_pipeline.job import generate, shape_of
from collhub_pipeline.plugin import PipelineOptions
from collhub_pipeline.search import schedule_of

from hub_core import UsageError
from hub_core.model import JobCollective, NodeKind

pytestmark = pytest.mark.needs_plugins
# A transfer of 250 000 bytes takes as long as stated.
SMALL = PipelineOptions(stages=4, micro_batches=8, activation=250_000, transfer=250e-6)
LINKS = "fc:4?bandwidth=1GB/s&latency=0ns"


@pytest.fixture
def finish_ns(collhub: Callable[..., Any], tmp_path: Path) -> Callable[..., int]:
    """The simulated time of a job that is generated with options of the command line."""

    def simulated(topology: str, **options: object) -> int:
        pairs = [text for key, value in options.items() for text in ("-O", f"{key}={value}")]
        run = collhub("generate", "pipeline", *pairs, "-o", tmp_path / "job")
        assert run.code == 0, run.err
        assert collhub("verify", tmp_path / "job").code == 0
        run = collhub("simulate", tmp_path / "job", "--topology", topology, "--json")
        assert run.code == 0, run.err
        return int(run.report()["time_ns"])

    return simulated


ONE_CHUNK = ("1f1b", "eager-1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "two-directions")


@pytest.mark.parametrize(
    ("name", "delayed", "transport"),
    [
        *((name, False, transport) for name in ONE_CHUNK for transport in ("async", "blocking")),
        *(("1f1b", True, transport) for transport in ("async", "blocking")),
        *(("gpipe", True, transport) for transport in ("async", "blocking")),
        ("search", False, "async"),
        ("zbv", False, "blocking"),
        ("dualpipe-v", False, "async"),
    ],
)
def test_a_simulator_times_a_job_as_the_schedule_says(name, delayed, transport, finish_ns) -> None:
    options = replace(SMALL, schedule=name, delay_weights=delayed, transport=transport)
    shape = shape_of(options)
    expected = shape.timed(schedule_of(name, shape)).makespan
    stated = {"activation": "250000B", "transfer": "250us", "delay_weights": str(delayed).lower()}
    assert finish_ns(LINKS, schedule=name, transport=transport, **stated) == expected


def test_interleaved_chunks_are_timed_alike(finish_ns) -> None:
    options = replace(SMALL, schedule="interleaved", chunks=2)
    shape = shape_of(options)
    expected = shape.timed(schedule_of("interleaved", shape)).makespan
    stated = {"activation": "250000B", "transfer": "250us"}
    assert finish_ns(LINKS, schedule="interleaved", chunks=2, **stated) == expected


def test_stages_of_other_widths_exchange_slices_that_cover_the_activation() -> None:
    job = generate(replace(SMALL, stages=2, micro_batches=1, tensor="2,3", activation=1000))
    nodes = job.nodes
    sent = nodes.is_kind(NodeKind.SEND)
    forward = sent & (nodes.rank < 2)
    messages = Counter(
        dict(zip(zip(nodes.rank[forward], nodes.peer[forward], strict=True), nodes.bytes[forward],
                 strict=True))
    )  # fmt: skip
    assert messages == {(0, 2): 333, (0, 3): 167, (1, 3): 166, (1, 4): 334}
    assert int(nodes.bytes[sent & (nodes.rank >= 2)].sum()) == 1000


def test_ranks_of_a_stage_reduce_every_pass_and_replicas_their_gradients() -> None:
    job = generate(replace(SMALL, tensor="2", data=2, gradients=4096))
    nodes = job.nodes
    assert job.num_ranks == 16
    sizes = Counter(nodes.bytes[nodes.collective == JobCollective.ALL_REDUCE].tolist())
    # Forward and backward of 8 micro-batches on every rank, and the gradients once.
    assert sizes == {250_000: 16 * 16, 4096: 16}
    groups = {group.ranks for group in job.groups}
    assert {(0, 1), (8, 9), (0, 8), (7, 15)} <= groups


@pytest.mark.parametrize("tensor", ["", "2,2", "0", "two"])
def test_widths_that_are_none_are_refused(tensor: str) -> None:
    with pytest.raises(UsageError, match="does not state the ranks of 4 stages"):
        generate(replace(SMALL, tensor=tensor))


def test_too_many_passes_are_refused() -> None:
    with pytest.raises(UsageError, match="passes are too many"):
        generate(replace(SMALL, micro_batches=10**6))
