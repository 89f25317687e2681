"""Timelines: the trace format, arrows inside slices, tracks without overlaps, summaries."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from collhub_drawing.subjects import AlgorithmSteps, JobNodes
from collhub_pictures import timelines as module
from collhub_pictures.timelines import build_timeline, write, write_job

from hub_core.model import Algorithm, InputError, StepKind, UsageError
from hub_core.plugin_api import JobTimeline, NoOptions, RunTimeline
from hub_core.testing import (
    all_pairs_all_reduce,
    all_samples,
    pipeline,
    ring_all_reduce,
    training_step,
)

# What every event of a phase must have, by the Trace Event Format.
REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "tid", "ts", "args"},
}
Times = npt.NDArray[np.int64]


def times(algorithm: Algorithm) -> tuple[Times, Times]:
    """A run in which every step of a rank takes 1000 ns; receives are posted 500 ns too early."""
    steps = algorithm.steps
    place = np.arange(len(steps)) - steps.rank_indptr[steps.rank]
    return np.maximum(place * 1000 - np.where(steps.receives, 500, 0), 0), (place + 1) * 1000


def events(algorithm: Algorithm, start: Times, end: Times) -> list[dict[str, Any]]:
    made = build_timeline(AlgorithmSteps(algorithm, 1 << 20), start, end)
    found: list[dict[str, Any]] = json.loads(b"".join(made.content))["traceEvents"]
    return found


@pytest.mark.parametrize("name", sorted(all_samples()))
def test_every_event_has_what_its_phase_needs_and_they_are_sorted(name: str) -> None:
    algorithm = all_samples()[name]
    found = events(algorithm, *times(algorithm))
    for event in found:
        assert REQUIRED[event["ph"]] | {"ph"} == event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    moments = [event["ts"] for event in found if event["ph"] != "M"]
    assert moments == sorted(moments)
    assert sum(event["ph"] == "X" for event in found) == len(algorithm.steps)


@pytest.mark.parametrize("name", sorted(all_samples()))
def test_every_message_has_one_arrow_with_both_ends_inside_slices(name: str) -> None:
    algorithm = all_samples()[name]
    found = events(algorithm, *times(algorithm))
    arrows = {phase: {e["id"]: e for e in found if e["ph"] == phase} for phase in "sf"}
    assert arrows["s"].keys() == arrows["f"].keys()
    assert len(arrows["s"]) == np.count_nonzero(algorithm.steps.sends)
    assert Counter(e["ph"] for e in found)["s"] == len(arrows["s"])
    slices = [e for e in found if e["ph"] == "X"]
    for end in (*arrows["s"].values(), *arrows["f"].values()):
        places = [s for s in slices if (s["pid"], s["tid"]) == (end["pid"], end["tid"])]
        assert any(s["ts"] <= end["ts"] <= s["ts"] + s["dur"] for s in places)


def test_steps_that_overlap_lie_on_tracks_of_their_own() -> None:
    algorithm = all_pairs_all_reduce(4)
    rows = len(algorithm.steps)
    found = events(algorithm, np.zeros(rows, np.int64), np.full(rows, 100, np.int64))
    slices = [(e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"]) for e in found if e["ph"] == "X"]
    for one, other in zip(sorted(slices), sorted(slices)[1:], strict=False):
        assert one[:2] != other[:2] or one[3] <= other[2]
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert named == {part[:2] for part in slices}


def test_times_are_microseconds_of_the_steps() -> None:
    algorithm = ring_all_reduce(2)
    first = next(
        e
        for e in events(algorithm, *times(algorithm))
        if e["ph"] == "X" and e["name"] == "send to 1"
    )
    assert (first["ts"], first["dur"], first["args"]["bytes"]) == (0.0, 1.0, 1 << 19)


def test_a_receive_is_shown_from_when_its_message_was_sent() -> None:
    algorithm = ring_all_reduce(2)
    start, end = times(algorithm)
    receive = int(np.flatnonzero(algorithm.steps.receives)[0])
    start[:], end[receive] = 0, 9000
    start[algorithm.steps.sends] = 3000
    end[:] = np.maximum(end, start + 1)
    shown = max(
        (e for e in events(algorithm, start, end) if e["ph"] == "X"), key=lambda e: float(e["dur"])
    )
    assert (shown["ts"], shown["dur"], shown["args"]["waited_us"]) == (3.0, 6.0, 3.0)


def test_steps_that_never_started_are_left_out_and_those_that_never_end_last_to_the_end() -> None:
    algorithm = ring_all_reduce(2)
    start, end = times(algorithm)
    start[-1] = end[-1] = end[-2] = -1
    slices = [e for e in events(algorithm, start, end) if e["ph"] == "X"]
    endless = [e for e in slices if e["args"].get("ends") == "never"]
    assert (len(slices), len(endless)) == (len(start) - 1, 1)
    assert endless[0]["ts"] + endless[0]["dur"] == max(end) / 1000


def test_large_runs_are_summarised_as_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ring_all_reduce(8)
    start, end = times(algorithm)
    monkeypatch.setattr(module, "MAX_RANKS", 7)
    made = build_timeline(AlgorithmSteps(algorithm, 1 << 20), start, end)
    found = json.loads(b"".join(made.content))["traceEvents"]
    assert made.is_summary
    assert {e["ph"] for e in found} == {"M", "C"}
    assert all(REQUIRED[e["ph"]] <= e.keys() for e in found)
    # The counters times the lengths of their intervals are the times of all steps.
    counters = [e for e in found if e["ph"] == "C" and e["pid"] == 0]
    widths = np.diff([e["ts"] for e in counters])
    for kind, mask in (("send", algorithm.steps.sends), ("receive", algorithm.steps.receives)):
        chosen = mask & (algorithm.steps.rank == 0)
        total = sum(e["args"][kind] * width for e, width in zip(counters, widths, strict=False))
        assert total == pytest.approx((end - start)[chosen].sum() / 1000, rel=0.01)


def test_many_events_are_summarised(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ring_all_reduce(4)
    events_of_all = len(algorithm.steps) + np.count_nonzero(~algorithm.steps.is_kind(StepKind.COPY))
    monkeypatch.setattr(module, "MAX_EVENTS", events_of_all)
    assert not build_timeline(AlgorithmSteps(algorithm, 1), *times(algorithm)).is_summary
    monkeypatch.setattr(module, "MAX_EVENTS", events_of_all - 1)
    assert build_timeline(AlgorithmSteps(algorithm, 1), *times(algorithm)).is_summary


def test_a_run_without_steps_is_an_empty_trace() -> None:
    algorithm = ring_all_reduce(2)
    nothing = np.full(len(algorithm.steps), -1, np.int64)
    assert {e["ph"] for e in events(algorithm, nothing, nothing)} == {"M"}


def test_times_of_another_table_are_refused() -> None:
    with pytest.raises(InputError, match="1 starts"):
        build_timeline(
            AlgorithmSteps(ring_all_reduce(2), 1), np.zeros(1, np.int64), np.zeros(1, np.int64)
        )


def request(algorithm: Algorithm, start: Times | None, end: Times | None) -> RunTimeline:
    return RunTimeline("run", algorithm, 1 << 20, start, end)


def test_the_writer_makes_one_file_and_says_where_it_is_a_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = ring_all_reduce(8)
    whole = write(request(algorithm, *times(algorithm)), NoOptions())
    (artifact,) = whole.artifacts
    assert artifact.content() == b"".join(
        build_timeline(AlgorithmSteps(algorithm, 1 << 20), *times(algorithm)).content
    )
    assert whole.notes == []
    monkeypatch.setattr(module, "MAX_RANKS", 7)
    summary = write(request(algorithm, *times(algorithm)), NoOptions())
    assert summary.notes == [
        "shows how many steps run at a time in groups of ranks, not the steps:"
        " more than 7 ranks or 200000 events"
    ]


def test_a_run_without_times_of_steps_has_no_timeline() -> None:
    with pytest.raises(UsageError, match="the run gives no times of steps; leave out --tim"):
        write(request(ring_all_reduce(4), None, None), NoOptions())


def test_nodes_are_named_by_what_they_do_and_a_collective_begins_with_its_last_member() -> None:
    job = training_step(2)
    start = np.array([0, 10, 10, 40, 0, 30, 30, 60])
    end = np.array([10, 40, 20, 75, 30, 40, 60, 75])
    made = build_timeline(JobNodes(job), start, end)
    found = json.loads(b"".join(made.content))["traceEvents"]
    slices = [event for event in found if event["ph"] == "X"]
    assert len(slices) == len(job.nodes)
    assert {event["name"] for event in slices} == {"compute", "all-reduce"}
    waiting = [event for event in slices if "waited_us" in event["args"]]
    # Rank 0 is 20 ns early, twice.
    assert [(one["pid"], one["args"]["waited_us"], one["ts"]) for one in waiting] == [
        (0, 0.02, 0.03),
        (0, 0.02, 0.06),
    ]


def test_messages_of_a_job_have_arrows() -> None:
    job = pipeline()
    start = np.array([0, 10, 15, 0, 50, 55, 0, 10, 15, 0, 10, 55])
    end = np.array([10, 15, 20, 50, 55, 60, 10, 15, 60, 10, 55, 60])
    found = json.loads(b"".join(build_timeline(JobNodes(job), start, end).content))["traceEvents"]
    assert Counter(event["ph"] for event in found)["s"] == 2
    categories = {event["cat"] for event in found if event["ph"] == "X"}
    assert categories == {"collective", "send", "receive", "compute"}


def test_a_job_without_times_of_nodes_has_no_timeline() -> None:
    with pytest.raises(UsageError, match="the run gives no times of nodes; leave out --tim"):
        write_job(JobTimeline("job", training_step(2)), NoOptions())
