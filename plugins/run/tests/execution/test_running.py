"""Runs as users ask for them: options, and ranks that somebody else started."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import click
import numpy.typing as npt
import pytest
import threaded_ranks as threads
from click.testing import CliRunner
from collhub_execution import (
    RunOptions,
    RunSetup,
    StartedRun,
    StartedRunReport,
    run_options,
    run_options_of,
    run_rank,
)
from collhub_execution.testing import remove_send

from hub_core.model import Severity, UsageError
from hub_core.testing import all_samples, ring_all_reduce

SAMPLES = all_samples(4)

# ---- options -------------------------------------------------------------------------------------


def parsed(*words: str) -> RunOptions:
    """What a command with the options of a run gets."""
    found = []

    @click.command()
    @run_options
    def command(**values: Any) -> None:
        found.append(run_options_of(values))

    result = CliRunner().invoke(command, list(words), catch_exceptions=False)
    if result.exit_code:
        raise click.UsageError(result.output)
    return found[0]


def test_what_is_not_given_is_as_the_record_says() -> None:
    assert parsed() == RunOptions()


def test_what_is_given_is_read_by_its_type() -> None:
    words = ["--size", "1KiB", "--in-place", "--data", "random", "--repeats", "2", "--timeout", "3"]
    wanted = RunOptions(1024, in_place=True, data="random", repeats=2, timeout=3.0)
    assert parsed(*words) == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repeats", "0"], "0 is not in the range 1<=x<=10000"),
        (["--warmups", "-1"], "-1 is not in the range 0<=x<=10000"),
        (["--timeout", "0"], "0.0 is not in the range x>=0.1"),
        (["--data", "none"], "'none' is not one of 'exact', 'random'"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        parsed(*words)


def test_a_size_that_does_not_divide_is_rounded_and_both_sizes_are_said() -> None:
    setup = RunSetup.of(ring_all_reduce(4), RunOptions(1000), "ring")
    assert (setup.asked_bytes, setup.collective_bytes) == (1000, 992)
    (note,) = setup.notes()
    assert (note.severity, note.code) == (Severity.NOTE, "size-rounded")
    assert note.message.startswith("1000 bytes are not a whole number of float32 elements")
    assert note.message.endswith("992 bytes are run")


def test_padding_serves_all_bytes_of_a_size() -> None:
    setup = RunSetup.of(ring_all_reduce(4), RunOptions(1000, pad=True), "ring")
    assert setup.collective_bytes == 1008
    (note,) = setup.notes()
    assert note.message.endswith("1008 bytes are run, 8 of them padding")
    assert RunSetup.of(ring_all_reduce(4), RunOptions(992, pad=True), "ring").notes() == []


def test_a_size_that_divides_is_not_commented() -> None:
    assert RunSetup.of(ring_all_reduce(4), RunOptions(992), "ring").notes() == []


def test_a_size_below_one_element_a_block_becomes_one_element() -> None:
    setup = RunSetup.of(ring_all_reduce(4), RunOptions(1), "ring")
    assert setup.collective_bytes == 16
    assert "1 bytes are" in setup.notes()[0].message


# ---- ranks that somebody else started ------------------------------------------------------------


class QueueChannel:
    """Bytes between threads."""

    def __init__(self, world: Any, rank: int) -> None:
        self.rank, self.num_ranks, self._queues = rank, world.num_ranks, world.queues

    def send(self, array: npt.NDArray[Any], peer: int) -> None:
        self._queues[self.rank, peer, -1].put(array.copy())

    def receive(self, array: npt.NDArray[Any], peer: int) -> None:
        array[:] = self._queues[peer, self.rank, -1].get(timeout=10)


@pytest.mark.parametrize(
    "options",
    [RunOptions(1024, dtype="int32"), RunOptions(1024, op="avg", data="random")],
    ids=["int32", "average"],
)
@pytest.mark.parametrize("sample", ["ring-all-reduce", "direct-scatter", "direct-gather"])
def test_started_ranks_get_data_from_rank_0_and_are_judged_there(
    sample: str, options: RunOptions
) -> None:
    started = StartedRun.of(SAMPLES[sample], replace(options, timeout=30.0), "ring", 4)
    world = threads.ThreadWorld(4)

    def run(rank: int) -> StartedRunReport | None:
        return run_rank(
            started,
            QueueChannel(world, rank),
            lambda task: threads.thread_engine(task, world),
            lambda found: None,
        )

    report, *others = world.run(run)
    assert (report.ok, report.fields["num_ranks"], others) == (True, 4, [None] * 3)
    assert report.fields["time_s"] > 0
    assert f"{'collective_bytes':32}1024" in report.text()


def test_a_started_rank_that_is_late_says_where_it_stands() -> None:
    algorithm = ring_all_reduce(4)
    started = StartedRun.of(algorithm, RunOptions(1024, timeout=1.5), "ring", 4)
    started = replace(started, program=remove_send(started.program))
    world, said, are_late = threads.ThreadWorld(4), [], threading.Barrier(5)

    def late(found: Any) -> None:
        said.extend(found)
        are_late.wait(10)

    def run(rank: int) -> None:
        run_rank(
            started,
            QueueChannel(world, rank),
            lambda task: threads.thread_engine(task, world),
            late,
        )

    for rank in range(4):
        threading.Thread(target=run, args=(rank,), daemon=True).start()
    are_late.wait(10)
    assert {found.code for found in said} == {"blocked", "timeout"}


def test_another_number_of_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="ring has 4 ranks, but 3 processes were started"):
        StartedRun.of(SAMPLES["ring-all-reduce"], RunOptions(1024), "ring", 3)
