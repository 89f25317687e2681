"""Choose algorithms for all collectives of a workload, and expand it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, NoReturn

import numpy as np
from collhub_job_traces import EXTENSION, collectives_in_order, says_more

from collhub_expansion.composed import Waits, in_turn, waits_of
from collhub_expansion.flatten import expanded, in_order_of_start, occupants_in_order, taken_ns
from collhub_expansion.making import Made, Maker, Wanted
from collhub_expansion.native import NativeSystem, native_pieces, own_algorithms
from collhub_expansion.plan import Calls, Pieces, calls_of, kind_of
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
from hub_core.model import JobCollective, Loss, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import WorkloadTimes

_NAME = "collhub-expansion"


@dataclass(frozen=True, slots=True)
class RuleUse:
    """A rule with what it was used for.

    `collectives`, `bytes`: as the workload states them. `nodes`: of all ranks, after expansion.
    """

    rule: CollectiveRule
    collectives: int
    bytes: int
    nodes: int
    makers: tuple[str, ...]


class Expanded(NamedTuple):
    """A flat workload, and how it came about; `uses`: rules in their order, the default last."""

    workload: Workload
    uses: tuple[RuleUse, ...]
    made: tuple[Made, ...]
    losses: tuple[Loss, ...]


@dataclass(slots=True)
class _Chosen:
    """Pieces of all collectives while they are chosen; `rule`: number by collective."""

    instance: list[int] = field(default_factory=list)
    template: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    rule: list[int] = field(default_factory=list)

    def add(self, templates: Sequence[int], waits: Waits, rule: int) -> None:
        """Note the pieces of the next collective."""
        first = len(self.template)
        self.instance += [len(self.rule)] * len(templates)
        self.template += templates
        self.waits += [(first + earlier, first + later) for earlier, later in waits]
        self.rule.append(rule)

    @property
    def pieces(self) -> Pieces:
        """The pieces as columns."""
        instance, template = np.array(self.instance, np.int64), np.array(self.template, np.int64)
        waits = np.array(self.waits, np.int64).reshape(-1, 2).T
        return Pieces(instance, template, (waits[0], waits[1]))


def expand_workload(
    workload: Workload,
    rules: Sequence[CollectiveRule],
    maker: Maker,
    system: NativeSystem,
    *,
    splits: int | None = None,
    times: WorkloadTimes | None = None,
) -> Expanded:
    """Expand the collectives of a workload.

    The last rule that matches a collective chooses; without one, the algorithm that the job names
    for it, else native ones. `splits`: equal
    pieces of every collective, all at once; by default those of the job's system for native ones,
    else one. `times`: a simulation of the workload, whose order in the slots is kept; None for no
    slots. Raises `HubError`.
    """
    workload = replace(workload, nodes=_without_host_calls(workload.nodes))
    nodes = workload.nodes
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    turns, duration_ns = none, nodes.duration_ns
    if times is None:
        calls = calls_of(workload, collectives_in_order(nodes))
    else:
        calls = calls_of(workload, in_order_of_start(nodes, times))
        turns, duration_ns = occupants_in_order(nodes, times), taken_ns(nodes, times)
    chosen = _chosen(workload, calls, rules, maker, system, splits)
    found = expanded(workload, calls, chosen.pieces, maker.templates, turns, duration_ns)
    made = workload.provenance
    flat = Workload(
        found.nodes,
        workload.names,
        workload.groups,
        provenance=Provenance(
            _NAME,
            installed_version("collhub-jobs") or "",
            made.source_name,
            made.source_sha256,
            {"slots": "free" if times is None else "frozen"},
        ),
    )
    uses = _uses(rules, calls, chosen, maker.made, found.origin)
    return Expanded(flat, uses, tuple(maker.made), tuple(_losses(workload)))


def _without_host_calls(nodes: NodeColumns) -> NodeColumns:
    """Calls of collectives on the host as the computation that they are."""
    is_call = nodes.is_kind(NodeKind.COLLECTIVE) & nodes.on_host
    if not is_call.any():
        return nodes
    kind = np.where(is_call, np.uint8(NodeKind.COMPUTE), nodes.kind)
    return replace(nodes, kind=kind, collective=np.where(is_call, np.int8(-1), nodes.collective))


def _chosen(
    workload: Workload,
    calls: Calls,
    rules: Sequence[CollectiveRule],
    maker: Maker,
    system: NativeSystem,
    splits: int | None,
) -> _Chosen:
    """Choose for one collective after the other; what is equal is asked for once."""
    found, turns = _Chosen(), Counter[int]()
    known: dict[tuple[int, ...], int] = {}
    own = own_algorithms(workload, calls).tolist()
    columns = (calls.group, calls.collective, calls.bytes, calls.root, calls.dimensions)
    table = zip(*(column.tolist() for column in columns), strict=True)
    for number, (group, code, size, root, mask) in enumerate(table):
        members, kind = workload.members(group), kind_of(code)
        if kind is None:
            _refuse(workload, calls, number)
        name = workload.groups[group].name if group >= 0 else ""
        which = choose_rule(rules, kind, size, name)
        rule = rules[which] if which >= 0 else DEFAULT_RULE
        whole = Wanted(kind, size, members, root, 0)
        if which < 0 and own[number] >= 0:
            algorithm = workload.algorithms[own[number]]
            found.add([maker.own(own[number], algorithm, whole)], (), which)
            continue
        sizes, at_once = _parts(rule, system, splits, whole, workload.num_ranks)
        if streams := maker.streams(rule, whole, sizes, mask):
            phases = [phase.template for stream in streams for phase in stream]
            found.add(phases, waits_of(streams, at_once), which)
            continue
        templates = []
        for part in sizes:
            turn = turns[code] % 2
            key = which, code, part, group, root, turn
            if key not in known:
                known[key] = maker.template(rule, replace(whole, size=part, turn=turn))
            templates.append(known[key])
            turns[code] += len(members) == workload.num_ranks
        found.add(templates, in_turn(len(templates), at_once), which)
    return found


def _refuse(workload: Workload, calls: Calls, number: int) -> NoReturn:
    """Refuse a collective that moves nothing, or whose kind is not known."""
    row = int(calls.row[np.argmax(calls.instance == number)])
    code = int(calls.collective[number])
    what = JobCollective(code).name.lower() if code >= 0 else "collective of unknown kind"
    place = workload.nodes.location(row, workload.provenance.source_name or None)
    message = f"node {workload.nodes.identity[row]}: no algorithm performs a {what}"
    cure = "take it out of the workload"
    raise InputError(message, location=place, cure=cure, code="no-algorithm")


def _parts(
    rule: CollectiveRule, system: NativeSystem, splits: int | None, whole: Wanted, num_ranks: int
) -> tuple[list[int], int]:
    """(bytes of every piece, how many of them run at once)."""
    is_native = rule.algorithm == NATIVE and whole.kind not in system.custom
    if splits is None and is_native and system.is_stated:
        sizes = native_pieces(system, whole.kind, whole.size, num_ranks)
        return sizes, min(system.active, len(sizes))
    count = max(1, min(splits or 1, whole.size))
    cuts = [piece * whole.size // count for piece in range(count + 1)]
    return [high - low for low, high in pairwise(cuts)], count


def _uses(
    rules: Sequence[CollectiveRule],
    calls: Calls,
    chosen: _Chosen,
    made: Sequence[Made],
    origin: Int64Array,
) -> tuple[RuleUse, ...]:
    """What every rule was used for; the default where it was."""
    rule_of = np.array(chosen.rule, np.int64)
    nodes = np.bincount(origin, minlength=int(calls.row.max(initial=-1)) + 1)
    nodes_of = np.bincount(calls.instance, nodes[calls.row], len(calls.group)).astype(np.int64)
    piece_rule = rule_of[np.array(chosen.instance, np.int64)]
    template = np.array(chosen.template, np.int64)
    found = []
    for number, rule in [*enumerate(rules), (-1, DEFAULT_RULE)]:
        mine = rule_of == number
        if number < 0 and not mine.any():
            continue
        makers = {made[one].maker for one in np.unique(template[piece_rule == number]).tolist()}
        found.append(
            RuleUse(
                rule,
                int(mine.sum()),
                int(calls.bytes[mine].sum()),
                int(nodes_of[mine].sum()),
                tuple(sorted(makers)),
            )
        )
    return tuple(found)


def _losses(workload: Workload) -> list[Loss]:
    """What the workload has and the flat one has not."""
    losses = []
    if kept := sum(says_more(extra) for extra in workload.extras):
        consequence = "attributes of nodes that only their format knows are left out"
        losses.append(Loss("extras", f"{kept} shapes of nodes", consequence))
    # The metadata of traces are those of files that are not written again.
    named = sorted(set(workload.extensions) - {EXTENSION})
    if named:
        consequence = "what they say of native collectives and computations is in the nodes"
        losses.append(Loss("extensions", ", ".join(named), consequence))
    return losses
