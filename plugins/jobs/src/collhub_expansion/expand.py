"""Choose algorithms for all collectives of a workload and expand it; records of the JSON report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from collhub_job_traces import EXTENSION, collectives_in_order, says_more

from collhub_expansion.composed import Waits, limit_concurrency, order_streams
from collhub_expansion.flatten import expanded, measure_durations_ns, order_occupants, sort_by_start
from collhub_expansion.making import AlgorithmRecord, CollectiveRequest, Maker
from collhub_expansion.native import NativeSystem, find_named_algorithms, split_native
from collhub_expansion.plan import CollectivePieces, PlannedCalls, match_calls
from hub_core import (
    DEFAULT_RULE,
    NATIVE,
    CollectiveRule,
    InputError,
    Provenance,
    choose_rule,
    installed_version,
)
from hub_core.columns import Int64Array
from hub_core.model import JobCollective, Loss, NodeKind, Workload
from hub_core.plugin_api import WorkloadTimes
from hub_core.reports import Artifacts, Count, Losses, Machine, Meta, Record, Report, TimingNote

_NAME = "collhub-expansion"


@dataclass(frozen=True, slots=True)
class RuleUse:
    """Rule with totals of its collectives.

    `collectives`, `bytes`: in the workload. `nodes`: of all ranks, after expansion.
    """

    rule: CollectiveRule
    collectives: int
    bytes: int
    nodes: int
    makers: tuple[str, ...]


class Expanded(NamedTuple):
    """Flat workload with a report; `uses`: rules in order, the default rule last."""

    workload: Workload
    uses: tuple[RuleUse, ...]
    algorithms: tuple[AlgorithmRecord, ...]
    losses: tuple[Loss, ...]


@dataclass(slots=True)
class _Chosen:
    """Collects the pieces of all collectives; `rule`: rule number per collective."""

    instance: list[int] = field(default_factory=list)
    template: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    rule: list[int] = field(default_factory=list)

    def add(self, templates: Sequence[int], waits: Waits, rule: int) -> None:
        """Append a collective that consists of the given templates, one per piece.

        `templates`: numbers of templates; `waits`: pairs (earlier, later) of positions in
        `templates`; `rule`: number of the rule that selected it, -1 for none.
        """
        first = len(self.template)
        self.instance += [len(self.rule)] * len(templates)
        self.template += templates
        self.waits += [(first + earlier, first + later) for earlier, later in waits]
        self.rule.append(rule)

    @property
    def pieces(self) -> CollectivePieces:
        """Return the columns of all pieces (int64): collective, template, and waits.

        A piece is a part of a collective with nodes of its own; the template is the pattern of
        these nodes. Collectives count from 0 in the order of `add`; templates have their number.
        Waits are two columns, (earlier, later) numbers of pieces. All are empty without pieces.
        """
        instance, template = np.array(self.instance, np.int64), np.array(self.template, np.int64)
        waits = np.array(self.waits, np.int64).reshape(-1, 2).T
        return CollectivePieces(instance, template, (waits[0], waits[1]))


def expand_workload(
    workload: Workload,
    rules: Sequence[CollectiveRule],
    maker: Maker,
    system: NativeSystem,
    *,
    splits: int | None = None,
    times: WorkloadTimes | None = None,
) -> Expanded:
    """Replace the collectives of a workload by the messages of their algorithms.

    The algorithm is that of the last matching rule of `rules`, else the one that the workload
    names, else a native one (`DEFAULT_RULE`). Collectives on the host become computations. Returns
    the new workload, uses per rule, records of algorithms and lost contents. `maker` gets new
    templates.

    - `splits`: concurrent pieces per collective. None: ASTRA-sim's division for native algorithms
      if the job specifies its system, otherwise 1. Always 1 with counts, or if the workload names
      it.
    - `times`: simulated times. They replace durations of computations, and nodes in the same slot
      of a rank run in order of start. None: recorded durations, no such order.

    Raises `InputError`: `collectives-differ` or `algorithm` (ranks disagree), `no-algorithm`,
    `never-ends` (a node without end in `times`), `too-large` (tags), and errors of `maker`.
    """
    nodes = workload.nodes
    is_host_call = nodes.is_kind(NodeKind.COLLECTIVE) & nodes.on_host
    if is_host_call.any():
        kind = np.where(is_host_call, np.uint8(NodeKind.COMPUTE), nodes.kind)
        collective = np.where(is_host_call, np.int8(-1), nodes.collective)
        nodes = replace(nodes, kind=kind, collective=collective)
        workload = replace(workload, nodes=nodes)
    no_edges = np.zeros(0, np.int64), np.zeros(0, np.int64)
    turns, duration_ns = no_edges, nodes.duration_ns
    if times is None:
        calls = match_calls(workload, collectives_in_order(nodes))
    else:
        calls = match_calls(workload, sort_by_start(nodes, times))
        turns, duration_ns = order_occupants(nodes, times), measure_durations_ns(nodes, times)
    chosen = _choose_algorithms(workload, calls, rules, maker, system, splits)
    expansion = expanded(workload, calls, chosen.pieces, maker.templates, turns, duration_ns)
    provenance = workload.provenance
    flat = Workload(
        expansion.nodes,
        workload.names,
        workload.groups,
        provenance=Provenance(
            _NAME,
            installed_version("collhub-jobs") or "",
            provenance.source_name,
            provenance.source_sha256,
            {"slots": "free" if times is None else "frozen"},
        ),
    )
    uses = _summarize_uses(rules, calls, chosen, maker.algorithms, expansion.origin)
    return Expanded(flat, uses, tuple(maker.algorithms), tuple(_list_losses(workload)))


def _choose_algorithms(
    workload: Workload,
    calls: PlannedCalls,
    rules: Sequence[CollectiveRule],
    maker: Maker,
    system: NativeSystem,
    splits: int | None,
) -> _Chosen:
    """Choose an algorithm for every collective of a job; return its pieces and the rule used.

    The last of `rules` that matches kind, bytes and group name decides. Without one the rule number
    is -1: the algorithm that the workload names is used as one piece, else `DEFAULT_RULE` decides.
    A rule gives pieces with the sizes of `_parts`. If `maker.streams` gives streams (native rule
    without options, stated system, all ranks), their phases are the pieces: each waits for the
    phase before it and for its place in the queue of its dimension. Other pieces wait only if the
    system limits how many run at once. Their index is the number of earlier such pieces of the
    kind whose group has all ranks, modulo 2; it selects one of two trees.

    New templates are added to `maker`; equal pieces share one. Raises `InputError`: `algorithm` if
    ranks name different algorithms or only some name one; `no-algorithm` for an unknown kind.
    Raises `HubError`s of `maker` too, and `ValueError` as `find_named_algorithms`.
    """
    chosen, turns = _Chosen(), Counter[int]()
    known: dict[tuple[int, ...], int] = {}
    named_algorithms = find_named_algorithms(workload, calls).tolist()
    _, first_call = np.unique(calls.instance, return_index=True)
    columns = (
        *(calls.group, calls.collective, calls.bytes, calls.root, calls.dimensions),
        *(calls.counts, calls.row[first_call]),
    )
    table = zip(*(column.tolist() for column in columns), strict=True)
    for number, (group, code, size, root, mask, counts_index, row) in enumerate(table):
        members, kind = workload.members(group), workload.kind_of(row)
        if kind is None:
            operation = JobCollective(code).noun
            location = workload.nodes.location(row, workload.provenance.source_name or None)
            message = f"node {workload.nodes.identity[row]}: no algorithm performs this {operation}"
            cure = "take it out of the workload"
            raise InputError(message, location=location, cure=cure, code="no-algorithm")
        name = workload.groups[group].name if group >= 0 else ""
        which = choose_rule(rules, kind, size, name)
        rule = rules[which] if which >= 0 else DEFAULT_RULE
        counts = workload.counts[counts_index] if counts_index >= 0 else None
        request = CollectiveRequest(kind, size, members, root, 0, counts)
        if which < 0 and named_algorithms[number] >= 0:
            algorithm = workload.algorithms[named_algorithms[number]]
            chosen.add([maker.own(named_algorithms[number], algorithm, request)], (), which)
            continue
        sizes, at_once = _parts(rule, system, splits, request, workload.num_ranks)
        if streams := maker.streams(rule, request, sizes, mask):
            phases = [phase.template for stream in streams for phase in stream]
            chosen.add(phases, order_streams(streams, at_once), which)
            continue
        templates = []
        for part in sizes:
            parity = turns[code] % 2
            key = which, code, part, group, root, counts_index, parity
            if key not in known:
                known[key] = maker.template(rule, replace(request, size=part, index=parity))
            templates.append(known[key])
            turns[code] += len(members) == workload.num_ranks
        chosen.add(templates, limit_concurrency(len(templates), at_once), which)
    return chosen


def _parts(
    rule: CollectiveRule,
    system: NativeSystem,
    splits: int | None,
    request: CollectiveRequest,
    num_ranks: int,
) -> tuple[list[int], int]:
    """Divide a collective into pieces: (bytes of every piece, number that may run at once).

    - A collective with counts is one piece.
    - Otherwise ASTRA-sim's own division and limit of active pieces (`split_native`) are
      used if `splits` is None, the rule is `NATIVE`, the job specifies its system, and this
      system has no custom algorithm for the kind. The sum of the pieces may then exceed the
      size.
    - Otherwise there are `splits` pieces (None and 0 mean 1), at most one per byte, and at
      least one. Piece i extends from byte floor(i x size / pieces) to that of i + 1, so
      that sizes differ by at most one byte. All may run at once.
    """
    is_native = rule.algorithm == NATIVE and request.kind not in system.custom
    is_native &= request.counts is None
    if splits is None and is_native and system.is_stated:
        sizes = split_native(system, request.kind, request.size, num_ranks)
        return sizes, min(system.active, len(sizes))
    # The counts of an uneven collective are not divided.
    count = 1 if request.counts is not None else max(1, min(splits or 1, request.size))
    cuts = [piece * request.size // count for piece in range(count + 1)]
    return [high - low for low, high in pairwise(cuts)], count


def _summarize_uses(
    rules: Sequence[CollectiveRule],
    calls: PlannedCalls,
    chosen: _Chosen,
    algorithms: Sequence[AlgorithmRecord],
    origin: Int64Array,
) -> tuple[RuleUse, ...]:
    """Return the use of each rule in order, and at the end that of the default rule if it was used.

    Collectives with the rule number -1 in `chosen` count for the default rule, also those whose
    algorithm the workload names. All arguments are only read. A use has:

    - the number of collectives of the rule; a collective counts once, not once per rank
    - the sum of their bytes in `calls`, once per collective
    - the number of new nodes on all ranks that replace their calls. `origin` has the row of the
      old node for each new node.
    - the names of the makers of their algorithms, each once, sorted. `algorithms` has the record
      of each template.

    For a rule that no collective uses, the numbers are 0 and there are no names.
    """
    rule_of = np.array(chosen.rule, np.int64)
    nodes = np.bincount(origin, minlength=int(calls.row.max(initial=-1)) + 1)
    nodes_of = np.bincount(calls.instance, nodes[calls.row], len(calls.group)).astype(np.int64)
    piece_rule = rule_of[np.array(chosen.instance, np.int64)]
    template = np.array(chosen.template, np.int64)
    uses = []
    for number, rule in [*enumerate(rules), (-1, DEFAULT_RULE)]:
        is_of_rule = rule_of == number
        if number < 0 and not is_of_rule.any():
            continue
        makers = {
            algorithms[number_of_template].maker
            for number_of_template in np.unique(template[piece_rule == number]).tolist()
        }
        uses.append(
            RuleUse(
                rule,
                int(is_of_rule.sum()),
                int(calls.bytes[is_of_rule].sum()),
                int(nodes_of[is_of_rule].sum()),
                tuple(sorted(makers)),
            )
        )
    return tuple(uses)


def _list_losses(workload: Workload) -> list[Loss]:
    """List the contents of the workload that the expanded workload lacks, at most two.

    They are attributes of nodes that only their format knows, and extensions other than the
    metadata of traces, by name.
    """
    losses = []
    if extra_count := sum(says_more(extra) for extra in workload.extras):
        consequence = "attributes of nodes that only their format knows are left out"
        losses.append(Loss("extras", f"{extra_count} shapes of nodes", consequence))
    # Metadata of traces belong to the files that were read.
    named = sorted(set(workload.extensions) - {EXTENSION})
    if named:
        consequence = "what they say of native collectives and computations is in the nodes"
        losses.append(Loss("extensions", ", ".join(named), consequence))
    return losses


class RuleUseItem(Record, frozen=True, kw_only=True):
    """Rule with the collectives that it expanded."""

    rule: Annotated[
        str,
        Meta(description="As given; `*=native` applies to collectives that match no other rule."),
    ]
    algorithms: Sequence[str]
    collectives: Count
    bytes: Annotated[int, Meta(ge=0, description="As the workload states them.")]
    nodes: Annotated[int, Meta(ge=0, description="Nodes of all ranks after the expansion.")]


class UsedAlgorithm(Record, frozen=True, kw_only=True):
    """Algorithm that was used for collectives of one kind and size."""

    algorithm: str
    collective: str
    num_ranks: Count
    bytes: Annotated[
        int, Meta(ge=0, description="Of one collective, or of one piece of it, as stated.")
    ]
    steps: Count


class ExpandReport(Report, tag="collhub/report-expand-1", frozen=True, kw_only=True):
    """Report of `collhub expand --json`."""

    source: str
    source_format: str = msgspec.field(name="from")
    target_format: str = msgspec.field(name="to")
    topology: str
    timing: TimingNote
    machine: Machine
    slots: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["free", "frozen"]},
            description="frozen: the order in ASTRA-sim's slots was kept as dependencies.",
        ),
    ]
    split: Annotated[
        int | None, Meta(description="Pieces of every collective; null if not requested.")
    ]
    num_ranks: Count
    nodes: Annotated[int, Meta(ge=0, description="Nodes of the flat workload.")]
    rules: Sequence[RuleUseItem]
    algorithms: Annotated[
        Sequence[UsedAlgorithm], Meta(description="Each one once, in the order of first use.")
    ]
    artifacts: Artifacts
    losses: Losses
