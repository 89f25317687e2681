"""The part of a page's index that describes one run: lanes, steps, links and totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from collhub_drawing.subjects import AlgorithmSteps, JobNodes, RunTimes

from collhub_viewer.columns import ColumnLines, StepColumnWriter
from collhub_viewer.lanes import (
    MAX_STEPS,
    LanedSteps,
    arrange_steps,
    compute_rank_totals,
    find_chunks,
    list_collectives,
    list_critical_path,
)
from collhub_viewer.network_index import index_links, index_topology
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    JobCollective,
    NodeKind,
    StepKind,
    UsageError,
    format_bytes,
    format_ranks,
    format_time,
    placement_of,
)
from hub_core.plugin_api import JobTimeline, RunTimeline

Index = dict[str, object]

_WAIT = "wait"
_MIN_STEPS = 1000
_STEP_CLASSES = {
    StepKind.SEND: ("send", "send"),
    StepKind.RECV: ("receive", "receive"),
    StepKind.RECV_REDUCE: ("receive and reduce", "reduce"),
    StepKind.COPY: ("copy", "copy"),
    StepKind.REDUCE: ("reduce", "reduce"),
    StepKind.COMPUTE: ("compute", "compute"),
}
_NODE_CLASSES = {
    NodeKind.COMPUTE: ("compute", "compute"),
    NodeKind.COLLECTIVE: ("collective", "collective"),
    NodeKind.SEND: ("send", "send"),
    NodeKind.RECV: ("receive", "receive"),
    NodeKind.LOAD: ("load", "memory"),
    NodeKind.STORE: ("store", "memory"),
    NodeKind.MARKER: ("marker", "other"),
}
_MOST_NAMED_CHUNKS = 100_000


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """A run of the index, and notes on it for the page and the user."""

    index: Index
    notes: Sequence[str]


def index_run(timeline: RunTimeline | JobTimeline, lines: ColumnLines) -> IndexedRun:
    """Describe a run for the page, and add its columns to `lines`.

    The run is first indexed with at most `MAX_STEPS` steps; the steps that begin last are
    omitted. If `lines.excess`, the size relative to the budget, is then above 1, the columns
    of this run are removed. It is indexed again with a limit of 0.95 times the number of steps
    so far, divided by the excess and rounded down. This repeats until the excess is at most 1,
    or until an attempt had a limit below `_MIN_STEPS` (1000). That last attempt may exceed the
    budget.

    Errors, in the order of the checks:

    - `UsageError` (`no-step-times`) if the run has no times of steps
    - `InputError` (`step-times`) for another number of times than steps
    - `UsageError` (`nothing-to-show`) if no step started, or if the excerpt is invalid or
      empty
    """
    subject: AlgorithmSteps | JobNodes
    if isinstance(timeline, RunTimeline):
        subject = AlgorithmSteps(timeline.algorithm, timeline.collective_bytes)
    else:
        subject = JobNodes(timeline.workload)
    if timeline.step_start_ns is None or timeline.step_end_ns is None:
        raise UsageError(
            f"{timeline.title}: this program does not report the times of {subject.noun}s",
            cure="choose another simulator or executor",
            code="no-step-times",
        )
    run = RunTimes.of(subject, timeline.step_start_ns, timeline.step_end_ns)
    if not len(run.rows):
        raise UsageError(
            f"{timeline.title}: no {subject.noun} started, so that there is nothing to show",
            cure="show a file with steps, and see 'collhub verify' for its errors",
            code="nothing-to-show",
        )
    first_line, max_steps = len(lines.lines), MAX_STEPS
    while True:
        indexed = _index_steps_until(timeline, subject, run, lines, max_steps)
        if lines.excess <= 1 or max_steps < _MIN_STEPS:
            return indexed
        steps = indexed.index["steps"]
        assert isinstance(steps, dict)
        max_steps = int(0.95 * steps["count"] / lines.excess)
        lines.reset(first_line)


def _index_steps_until(
    timeline: RunTimeline | JobTimeline,
    subject: AlgorithmSteps | JobNodes,
    run: RunTimes,
    lines: ColumnLines,
    max_steps: int,
) -> IndexedRun:
    """Describe the steps of a run in the excerpt for the page, and add their columns to `lines`.

    At most `max_steps` steps are described; steps that begin last are omitted first. A step that
    waits before it begins, such as a receive, counts as two. Most entries of the index are always
    set; `name` is the title without its folder, and `rank_names` is always None. The following
    entries are None unless their condition holds:

    - `chunks`: for an algorithm whose chunks are known
    - `collectives`: for a job
    - `blocks`: for an algorithm in which more than half of the steps have a thread block
    - `topology`: if the topology is known; `links` if there is also a simulation result

    The result has at most two notes. The first describes the excerpt, unless it is the full run.
    The second has the number of omitted steps, unless it is 0. Raises `UsageError`
    (`nothing-to-show`) for an excerpt that is invalid or contains no step.
    """
    sort, sort_names = _sort_rows(subject)
    laned = arrange_steps(run, sort, timeline.excerpt, max_steps)
    matched = run.subject.partners(run.start, run.end)
    rows = np.flatnonzero(matched != np.arange(len(matched)))
    partner = np.full(len(matched), -1, np.int64)
    partner[rows] = matched[rows]
    # The partner of a receive is its send; that of the send is the receive.
    messages = rows[run.subject.is_message[rows]]
    partner[matched[messages]] = messages
    kind, is_local, is_computation = _classify_rows(subject)
    index: Index = {
        # The folder of a file would fill the page.
        "name": Path(timeline.title).name or timeline.title,
        "facts": _list_facts(timeline, run),
        "tick_ps": 1000,
        "end": run.last,
        "ranks": subject.table.num_ranks,
        "rank_names": None,
        "lanes": _index_lanes(laned, sort_names, subject, lines),
        "kinds": [{"name": name, "class": group} for name, group in _list_classes(subject)],
        "steps": None,
        "links": None,
        "topology": None,
        "critical_path": list_critical_path(subject, run, partner, laned, is_local),
        "chunks": None,
        "collectives": None,
        "rank_totals": compute_rank_totals(run, is_computation, lines),
        "blocks": None,
    }
    steps, index["chunks"] = _index_steps(timeline, subject, laned, kind, partner, lines)
    index["steps"] = steps
    if isinstance(subject, JobNodes):
        assert isinstance(timeline, JobTimeline)
        index["collectives"] = list_collectives(timeline.workload, run, laned)
    elif sort_names is None:
        index["blocks"] = _index_blocks(timeline, subject, laned, lines)
    if timeline.topology is not None:
        index["topology"] = index_topology(timeline.topology)
        if timeline.result is not None:
            index["links"] = index_links(timeline.topology, timeline.result, laned.position, lines)
    return IndexedRun(index, _list_notes(timeline, laned, subject.noun))


def _sort_rows(subject: AlgorithmSteps | JobNodes) -> tuple[Int64Array, Sequence[str] | None]:
    """Return (a number per row, names of the numbers); rows of a rank form lanes by number.

    If more than half of the steps of an algorithm have a thread block, the number is that of
    the block; steps without one have the number after the last block, and the names are
    None. Otherwise, and for a job, it is the kind of work, and the names are those of the
    kinds.
    """
    if isinstance(subject, AlgorithmSteps) and len(subject.table):
        lane = subject.table.lane.astype(np.int64)
        if 2 * np.count_nonzero(lane >= 0) > len(lane):
            return np.where(lane >= 0, lane, lane.max() + 1), None
    return subject.track, subject.tracks


def _index_lanes(
    laned: LanedSteps,
    names: Sequence[str] | None,
    subject: AlgorithmSteps | JobNodes,
    lines: ColumnLines,
) -> Index:
    if names is None:
        # The lanes are thread blocks; steps without one have the number after the last block.
        assert isinstance(subject, AlgorithmSteps)
        num_blocks = int(subject.table.lane.max(initial=-1)) + 1
        blocks, number = np.unique(laned.lane_sort, return_inverse=True)
        names = [
            f"thread block {block}" if block < num_blocks else "no thread block"
            for block in blocks.tolist()
        ]
    else:
        number = laned.lane_sort
    return {
        "rank": lines.add(laned.lane_rank),
        "names": list(names),
        "name": lines.add(number),
        "first": lines.add(laned.first),
    }


def _classify_rows(subject: AlgorithmSteps | JobNodes) -> tuple[Int64Array, BoolArray, BoolArray]:
    """Return the kind of every row, whether it is local, and whether it computes.

    - Kinds are positions in the list of kinds (`_list_classes`): those of steps, or for a job those
      of nodes. A COLLECTIVE node with a known collective has the number of that collective, which
      follows the kinds of nodes. int64[rows].
    - Local rows do not communicate: they are no sends, receives or collectives. bool[rows].
    - Rows that compute are the local steps of an algorithm, also copies, and the COMPUTE nodes of a
      job that run on devices, not on the host. bool[rows].
    """
    kind = subject.table.kind.astype(np.int64)
    is_local = is_computation = ~subject.is_message
    if isinstance(subject, JobNodes):
        nodes = subject.table
        is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
        is_named = is_collective & (nodes.collective >= 0)
        kind = np.where(is_named, len(_NODE_CLASSES) + nodes.collective, kind)
        is_local = ~(subject.is_message | is_collective)
        is_computation = nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host
    return kind, is_local, is_computation


def _list_classes(subject: AlgorithmSteps | JobNodes) -> list[tuple[str, str]]:
    """Return (name, class) of every kind, in the order of their numbers.

    For an algorithm these are the kinds of steps, for a job the kinds of nodes, then the
    collectives. The last one is the wait.
    """
    if isinstance(subject, AlgorithmSteps):
        return [*_STEP_CLASSES.values(), (_WAIT, "wait")]
    named = [(one.label, "collective") for one in JobCollective if one >= 0]
    return [*_NODE_CLASSES.values(), *named, (_WAIT, "wait")]


def _index_steps(
    timeline: RunTimeline | JobTimeline,
    subject: AlgorithmSteps | JobNodes,
    laned: LanedSteps,
    kind: Int64Array,
    partner: Int64Array,
    lines: ColumnLines,
) -> tuple[Index, Index | None]:
    """Describe the shown steps of a run, lane by lane, and add their columns to `lines`.

    Returns (steps, chunks). `chunks` has the names of chunks; it is None for a job or if chunks
    cannot be numbered. `steps` has `count` (number of rows, i.e. steps and waits) and columns:

    - `gap`: ns since the end of the previous row in the lane; `duration`: ns; `kind`; `peer`
    - `partner`: row of the matched step, -1 for none and for waits. It is the text `in order` if
      the k-th receive matches the k-th send of each pair of ranks.
    - `waits_for`: only for waits, the rank of the step for which the next step waits
    - `bytes`; `number`: of the step in its rank, or the id of a job's node
    - `chunk`, `chunks`: first chunk and number of chunks; None if `chunks` is None
    - `label`: index in the list `labels` (names of a job's nodes); None and [] for algorithms

    A column after `peer` is None if it exceeds the byte budget of `lines`.
    """
    rows, table = laned.row, subject.table
    named_classes = _list_classes(subject)
    kinds = np.where(laned.is_wait, len(named_classes) - 1, kind[rows])
    matching = partner[rows]
    # A wait has no partner of its own; the step after it has.
    has_partner = (matching >= 0) & ~laned.is_wait
    position = np.where(has_partner, laned.position[matching], -1)
    peer = table.peer[rows].astype(np.int64)
    columns = StepColumnWriter(
        lines,
        table.rank[rows].astype(np.int64),
        laned.is_wait,
        np.array([sort == "send" for _, sort in named_classes])[kinds],
        np.array([sort in {"receive", "reduce"} for _, sort in named_classes])[kinds],
        position,
    )
    steps: Index = {
        "count": len(rows),
        "gap": columns.add_gaps(laned.start, laned.end, laned.first),
        "duration": lines.add(laned.end - laned.start),
        "kind": lines.add(kinds),
        "peer": columns.add("peers", peer, has_partners=False, is_required=True),
        "partner": columns.add_partners(peer),
    }
    is_matched = steps["partner"] is not None
    waits_for = np.where(laned.is_wait & (matching >= 0), table.rank[matching], -1)
    steps["waits_for"] = columns.add_awaited(waits_for, peer)
    steps["bytes"] = columns.add("bytes", subject.sizes[rows], has_partners=is_matched)
    chunks: Index | None = None
    steps["chunk"] = steps["chunks"] = None
    if isinstance(timeline, RunTimeline):
        units = find_chunks(timeline.algorithm)
        if units is not None:
            count = timeline.algorithm.steps.count[rows].astype(np.int64)
            steps["chunk"] = columns.add(
                "chunks", units[rows], is_delta=True, has_partners=is_matched
            )
            steps["chunks"] = columns.add("numbers of chunks", count, has_partners=is_matched)
            chunks = _name_chunks(timeline)
    number = rows - table.rank_indptr[table.rank[rows]]
    if isinstance(subject, JobNodes):
        number = subject.table.identity[rows].astype(np.int64)
    steps["number"] = columns.add("step numbers", number, is_delta=True, has_partners=False)
    steps["label"], steps["labels"] = None, []
    if isinstance(timeline, JobTimeline):
        used, label = np.unique(timeline.workload.nodes.name[rows], return_inverse=True)
        steps["label"] = columns.add("names", label, has_partners=is_matched)
        names = timeline.workload.names
        steps["labels"] = [names[name] if name >= 0 else "" for name in used.tolist()]
    return steps, chunks


def _name_chunks(timeline: RunTimeline) -> Index:
    """Return the number of chunks (`count`) and their names (`names`) for the page.

    A collective that is split by source and target, such as an all-to-all, has one chunk per rank
    and unit, ordered by rank, then unit: `chunk 1 of rank 0 (64 KiB)`. Others have one chunk per
    unit: `chunk 1 (64 KiB)`. Numbers count from 0. The size is that of the collective divided by
    the number of units. With more than `_MOST_NAMED_CHUNKS` (100,000) chunks, `names` is [].
    """
    collective = timeline.algorithm.collective
    traits, units = collective.kind.traits, collective.unit_count
    is_pairwise = traits.split_by_source and traits.split_by_target
    count = units * collective.num_ranks if is_pairwise else units
    if count > _MOST_NAMED_CHUNKS:
        return {"count": count, "names": []}
    size = format_bytes(timeline.collective_bytes / units)
    if is_pairwise:
        names = [
            f"chunk {u} of rank {r} ({size})"
            for r in range(collective.num_ranks)
            for u in range(units)
        ]
    else:
        names = [f"chunk {unit} ({size})" for unit in range(units)]
    return {"count": count, "names": names}


def _index_blocks(
    timeline: RunTimeline | JobTimeline,
    subject: AlgorithmSteps,
    laned: LanedSteps,
    lines: ColumnLines,
) -> Index:
    """Describe the lanes of an algorithm as thread blocks, and add their columns to `lines`.

    The result has these keys:

    - `lane_meaning`: always `thread block`.
    - `channel`: column with one value per lane, the channel of its first step.
    - `source_line`: column with one value per shown step or wait; a wait has the line of the step
      that waits. None if no shown step has a source line, or if the column exceeds the budget.
    - `source`: name of the algorithm's source file without folder, None if unknown.

    `timeline` must be a `RunTimeline`; an `AssertionError` is raised for a `JobTimeline`.
    """
    assert isinstance(timeline, RunTimeline)
    steps = subject.table
    channel = steps.channel[laned.row[laned.first[:-1]]]
    source_line = steps.source_line[laned.row]
    has_lines = int(source_line.max(initial=-1)) >= 0
    return {
        "lane_meaning": "thread block",
        "channel": lines.add(channel),
        "source_line": lines.add_optional(
            "source lines", source_line if has_lines else None, is_delta=True
        ),
        # The folder of a file would fill the table.
        "source": Path(timeline.algorithm.provenance.source_name).name or None,
    }


def _list_facts(timeline: RunTimeline | JobTimeline, run: RunTimes) -> list[list[str]]:
    facts = [["time", format_time(run.last)], ["ranks", str(run.subject.table.num_ranks)]]
    facts.append([f"{run.subject.noun}s", str(len(run.subject.table))])
    if isinstance(timeline, RunTimeline):
        algorithm = timeline.algorithm
        facts.insert(0, ["collective", str(algorithm.collective.kind)])
        facts.append(["size", format_bytes(timeline.collective_bytes)])
        producer = algorithm.provenance.producer
        if producer:
            facts.append(["producer", producer])
        npus = placement_of(algorithm)
        if npus is not None:
            facts.append(["NPUs", format_ranks(npus)])
    if timeline.topology is not None:
        facts.append(["network", timeline.topology.name])
    if timeline.timing:
        facts.append(["times", timeline.timing])
    return facts


def _list_notes(timeline: RunTimeline | JobTimeline, laned: LanedSteps, noun: str) -> list[str]:
    notes = []
    excerpt = timeline.excerpt
    if not excerpt.is_all:
        ranks = "all ranks" if excerpt.ranks is None else f"ranks {format_ranks(excerpt.ranks)}"
        start = format_time(excerpt.start_ns or 0)
        end = "the end" if excerpt.end_ns is None else format_time(excerpt.end_ns)
        notes.append(f"{timeline.title}: shows {ranks} from {start} to {end}")
    if laned.omitted:
        notes.append(
            f"{timeline.title}: omits {laned.omitted} {noun}s that begin after"
            f" {format_time(laned.until)}; select data with --ranks, --from, --to"
        )
    return notes
