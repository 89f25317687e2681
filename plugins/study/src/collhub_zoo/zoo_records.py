"""JSON reports of `collhub zoo`, of which that of `zoo build` is the index of a zoo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from collhub_zoo.cards import Card
from hub_core.reports import Artifacts, Count, Losses, Meta, Record, Report, TimeNs


class EntryItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of a catalogue."""

    card: Card
    files: Annotated[Sequence[str], Meta(description="Files next to the card.")]


class ZooListReport(
    Report, tag="collhub/report-zoo-list-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub zoo list --json` and `collhub zoo show --json`."""

    entries: Sequence[EntryItem]


class ZooGetReport(
    Report, tag="collhub/report-zoo-get-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub zoo get --json`."""

    entry: str
    collective: str
    topology: Annotated[str, Meta(description="Network for which the algorithm was created.")]
    artifacts: Artifacts
    losses: Losses


class ZooMachine(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machine of a build."""

    topology: str
    title: str
    ranks: Count
    timing: Annotated[str, Meta(description="Source of the calibrated times; empty: none.")]


class ViewItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interactive page of a run of an entry: its path in the output, and the simulated run."""

    file: str
    machine: str
    collective: str
    size: Count


class IndexEntry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of a build, with the SHA-256 of its card and files."""

    card: Card
    files: Mapping[str, str]
    view: Annotated[
        ViewItem | None, Meta(description="Null without a result of at most 4000 steps.")
    ] = None


class RuntimeItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verdict of a runtime's rules on the file of an algorithm."""

    runtime: str
    versions: Annotated[str, Meta(description="First and last version; last empty: all later.")]
    ok: Annotated[bool, Meta(description="These versions use the file for some call.")]
    file: Annotated[str | None, Meta(description="Path in the output; null if none uses it.")]


class PointItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of an algorithm at a size."""

    size: Count
    time_ns: Annotated[TimeNs | None, Meta(description="Simulated on nominal links.")]
    latency_ns: Annotated[
        TimeNs | None, Meta(description="Simulated time with messages of 1 byte.")
    ]
    link_ns: Annotated[
        TimeNs | None, Meta(description="How long the busiest link is occupied, within time_ns.")
    ]
    calibrated_ns: Annotated[
        TimeNs | None, Meta(description="Simulated on the measured machine; null without one.")
    ]
    ratio_to_bound: Annotated[
        float | None, Meta(description="time_ns by the proven bound, at least 1.")
    ]


class ResultItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry for a collective on a machine; facts are those at the largest size."""

    entry: str
    machine: str
    collective: str
    ok: Annotated[bool, Meta(description="Correct as claimed at every size.")]
    verdicts: Annotated[
        Mapping[str, str],
        Meta(description="By mode (in_place, out_of_place) that is claimed: ok, race, wrong."),
    ]
    fifo: Annotated[
        str, Meta(description="ok, or deadlock with 8 transfers per connection, as NCCL has.")
    ]
    certificate: Annotated[
        str, Meta(description="Check of the certificate that the algorithm carries.")
    ]
    steps: Count
    channels: Count
    thread_blocks: Annotated[
        int | None, Meta(description="Maximum per rank in the file for MSCCL; null without file.")
    ]
    runtimes: Sequence[RuntimeItem]
    points: Sequence[PointItem]


class BoundItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proven lower bound of a collective on nominal links; null if no method has one."""

    size: Count
    time_ns: TimeNs | None
    method: str


class LibraryTimeItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured time of a library on the machine, from a shipped profile."""

    size: Count
    time_ns: TimeNs
    library: str


class SlowerItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slower entry, its time by that of the best one, and the reason of the difference."""

    entry: str
    ratio: float
    reason: Annotated[
        str,
        Meta(
            description="The part of the time with the largest difference to that of the best"
            " entry. latency: latency_ns; link: link_ns; waits: the rest of time_ns, in which"
            " links wait for data; equal: the times are equal.",
            extra_json_schema={"enum": ["latency", "link", "waits", "equal"]},
        ),
    ]


class BestItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fastest correct entry at a size on nominal links, and the slower ones, fastest first."""

    size: Count
    entry: str
    time_ns: TimeNs
    ratio_to_bound: float | None
    slower: Sequence[SlowerItem]


class CollectiveSummary(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective on a machine: bounds, measured times and the best entries by size."""

    machine: str
    collective: str
    bounds: Sequence[BoundItem]
    measured: Sequence[LibraryTimeItem]
    best: Sequence[BestItem]


class SkippedItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry without a result; `collective` and `machine` are empty if it has none anywhere."""

    entry: str
    machine: str
    collective: str
    reason: str


class WorseCurve(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Curve that became worse: slower at some sizes, or no longer correct or present."""

    entry: str
    machine: str
    collective: str
    curve: Annotated[str, Meta(extra_json_schema={"enum": ["nominal", "calibrated", "result"]})]
    reason: str


class ZooBuildReport(
    Report, tag="collhub/report-zoo-build-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Index of a zoo (`index.json`) and report of `collhub zoo build --json`."""

    sizes: Sequence[Count]
    machines: Sequence[ZooMachine]
    entries: Sequence[IndexEntry]
    results: Sequence[ResultItem]
    groups: Sequence[CollectiveSummary]
    skipped: Annotated[
        Sequence[SkippedItem], Meta(description="Not applicable, or not downloaded.")
    ]
    failures: Annotated[
        Sequence[SkippedItem], Meta(description="Entries that failed; the build exits with 1.")
    ]
    worse: Annotated[
        Sequence[WorseCurve], Meta(description="Compared with the index of --previous.")
    ]
