"""Findings as tables for people and as a document for scripts."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pytorch.findings import CallsAlike, Findings, Saving, kinds_of
from collhub_pytorch.network_times import NetworkTimes
from hub_core.model import (
    JobCollective,
    JsonValue,
    Workload,
    format_bytes,
    format_ranks,
    format_time,
)

SCHEMA = "collhub/report-profile-1"
COUNTS_HEADER = ("collective", "size", "group", "ranks", "calls")
CALLS_HEADER = (*COUNTS_HEADER, "transferring", "waiting", "share")
CALLS_RIGHT = ("size", "ranks", "calls", "transferring", "waiting", "share")
RANKS_HEADER = ("rank", "span", "replayed", "transferring", "waiting", "overlap", "last")
RANKS_RIGHT = RANKS_HEADER
TIMES_HEADER = ("collective", "size", "ranks", "algorithm", "simulated")
TIMES_RIGHT = ("size", "simulated")


def calls_rows(findings: Findings) -> list[list[str]]:
    """One row for calls alike; times are those of one rank in the mean, over all calls."""
    return [
        [
            *_call_row(one),
            _mean(one.transferring_ns, one),
            _mean(one.waiting_ns, one),
            f"{one.waiting_percent:.1f} %",
        ]
        for one in findings.calls
    ]


def kind_lines(findings: Findings) -> list[str]:
    """`all-to-all: 99.1 % of 4.05 ms is waiting for the last rank`."""
    lines = []
    for one in kinds_of(findings.calls):
        total = one.waiting_ns + one.transferring_ns
        share = f"{one.waiting_percent:.1f} % of {format_time(total)}"
        lines.append(f"{one.kind}: {share}, all ranks together, is waiting for the last rank")
    return lines


def ranks_rows(findings: Findings) -> list[list[str]]:
    """One row a rank."""
    return [
        [
            str(one.rank),
            format_time(one.span_ns),
            format_time(one.replayed_ns),
            format_time(one.transferring_ns),
            format_time(one.waiting_ns),
            "none" if one.overlap_percent is None else f"{one.overlap_percent:.1f} %",
            str(one.last_count),
        ]
        for one in findings.ranks
    ]


def times_rows(times: NetworkTimes) -> list[list[str]]:
    """The collectives that were simulated."""
    return [
        [_name(kind), format_bytes(size), format_ranks(ranks), said.algorithm,
         format_time(said.time_ns)]
        for (kind, size, ranks), said in times.answers.items()
    ]  # fmt: skip


def saving_line(found: Saving, lead: str) -> str:
    """What other times of collectives would save."""
    saved = found.measured_ns - found.job_ns
    verb = "saves" if saved >= 0 else "costs"
    return (
        f"{lead} the job takes {format_time(found.job_ns)} "
        f"instead of {format_time(found.measured_ns)}: "
        f"{verb} {format_time(abs(saved))}, {abs(found.saved_percent):.1f} %"
    )


def counts_rows(calls: Sequence[CallsAlike]) -> list[list[str]]:
    """Rows of calls without times."""
    return [_call_row(one) for one in calls]


def counts_document(workload: Workload, calls: Sequence[CallsAlike]) -> dict[str, JsonValue]:
    """The report of execution traces, which state no times."""
    return {
        "schema": SCHEMA,
        "num_ranks": workload.num_ranks,
        "job_ns": None,
        "instant_job_ns": None,
        "collectives": [_call_object(one) for one in calls],
        "kinds": [_kind_object(one) for one in kinds_of(calls)],
        "ranks": [],
        "notes": [],
        "replay": None,
    }


def document(
    findings: Findings, notes: Sequence[str], found: tuple[Saving, NetworkTimes] | None
) -> dict[str, JsonValue]:
    """The report that `--json` prints, of schema `SCHEMA`."""
    said: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "num_ranks": findings.workload.num_ranks,
        "job_ns": findings.job_ns,
        "instant_job_ns": findings.instant.job_ns,
        "collectives": [_call_object(one) for one in findings.calls],
        "kinds": [_kind_object(one) for one in kinds_of(findings.calls)],
        "ranks": [
            {
                "rank": one.rank,
                "span_ns": one.span_ns,
                "replayed_span_ns": one.replayed_ns,
                "transferring_ns": one.transferring_ns,
                "waiting_ns": one.waiting_ns,
                "overlap_percent": one.overlap_percent,
                "last_count": one.last_count,
            }
            for one in findings.ranks
        ],
        "notes": list(notes),
        "replay": None,
    }
    if found is not None:
        said["replay"] = _replay_object(*found)
    return said


def _replay_object(found: Saving, times: NetworkTimes) -> dict[str, JsonValue]:
    simulated: list[JsonValue] = [
        {
            "kind": _name(kind),
            "bytes": size,
            "ranks": list(ranks),
            "algorithm": said.algorithm,
            "time_ns": said.time_ns,
        }
        for (kind, size, ranks), said in times.answers.items()
    ]
    return {
        "topology": times.topology.name,
        "job_ns": found.job_ns,
        "saved_ns": found.measured_ns - found.job_ns,
        "rank_span_ns": list(found.span_ns),
        "simulated": simulated,
    }


def _call_object(one: CallsAlike) -> dict[str, JsonValue]:
    size: JsonValue = one.bytes if one.bytes >= 0 else None
    place = {"bytes": size, "group": one.group, "rank_count": one.rank_count}
    return {**_kind_object(one), **place}


def _kind_object(one: CallsAlike) -> dict[str, JsonValue]:
    return {
        "kind": one.kind,
        "calls": one.calls,
        "transferring_ns": one.transferring_ns,
        "waiting_ns": one.waiting_ns,
    }


def _call_row(one: CallsAlike) -> list[str]:
    size = format_bytes(one.bytes) if one.bytes >= 0 else "unknown"
    return [one.kind, size, one.group or "all", str(one.rank_count), str(one.calls)]


def _mean(total_ns: int, one: CallsAlike) -> str:
    """Text of the mean over the ranks of a time in ns that is summed over all of them."""
    return format_time(total_ns / one.rank_count)


def _name(kind: JobCollective) -> str:
    """Name of a collective as reports state it, such as `all-reduce`."""
    return kind.name.lower().replace("_", "-")
