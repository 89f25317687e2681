"""Give collectives of a job algorithms by rules, which simulators of jobs run in their place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hub_core.model import (
    COLUMN_DTYPES,
    Algorithm,
    Collective,
    CollectiveKind,
    HubError,
    InputError,
    JobCollective,
    NodeKind,
    StepTable,
    UsageError,
    Workload,
    format_bytes,
)
from hub_core.network import GroupNetwork, Topology, group_network
from hub_core.pipeline.collective_rules import NATIVE, CollectiveRule, choose_rule
from hub_core.pipeline.synthesis import synthesize
from hub_core.plugin_api import Synthesizer
from hub_core.registry.plugins import Registry


def with_algorithms(
    workload: Workload,
    rules: Sequence[CollectiveRule],
    topology: Topology,
    registry: Registry,
    *,
    read: Callable[[str], Algorithm],
    admit: Callable[[Algorithm, str], object],
) -> Workload:
    """The job whose collectives name the algorithms of the last rules that match them.

    An algorithm is made for the bytes and the NPUs of its group, once for equal collectives on
    equal networks. `read`: the verified algorithm of a file. `admit`: verifies an algorithm that
    messages call by a text. Collectives of the host, of one rank, and those of rules with `native`
    stay as they are. Raises `HubError`, with the rule, for an algorithm that does not fit, and
    `UsageError` for a rule that matches no collective.
    """
    nodes = workload.nodes
    maker = _Maker(topology, registry, read, admit, list(workload.algorithms))
    index = nodes.algorithm.astype(np.int64)
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & ~nodes.on_host)
    columns = (nodes.collective, nodes.bytes, nodes.group, nodes.root)
    keys = np.stack([column[rows].astype(np.int64) for column in columns])
    distinct, of_row = np.unique(keys, axis=1, return_inverse=True)
    used: set[int] = set()
    for number, (code, size, group, root) in enumerate(distinct.T.tolist()):
        kind = JobCollective(code).kind if code >= 0 else None
        name = workload.groups[group].name if group >= 0 else ""
        which = -1 if kind is None else choose_rule(rules, kind, max(size, 0), name)
        if which < 0 or kind is None:
            continue
        used.add(which)
        members = workload.members(group)
        if rules[which].algorithm == NATIVE or len(members) < 2:
            continue
        position = members.index(root) if root in members else 0
        chosen = rows[of_row.reshape(-1) == number]
        index[chosen] = maker.index(rules[which], kind, max(size, 0), members, position)
    unused = [rule.text for number, rule in enumerate(rules) if number not in used]
    if unused:
        message = f"--collective {unused[0]} matches no collective of the job"
        raise UsageError(message, cure="collhub inspect lists its collectives", code="no-match")
    changed = replace(nodes, algorithm=index.astype(nodes.algorithm.dtype))
    return replace(workload, nodes=changed, algorithms=tuple(maker.algorithms))


@dataclass(slots=True)
class _Maker:
    """Makes algorithms; `algorithms` grows by each new one, after those of the job."""

    topology: Topology
    registry: Registry
    read: Callable[[str], Algorithm]
    admit: Callable[[Algorithm, str], object]
    algorithms: list[Algorithm]
    _indices: dict[Hashable, int] = field(default_factory=dict)
    _networks: dict[tuple[int, ...], GroupNetwork] = field(default_factory=dict)

    def index(
        self,
        rule: CollectiveRule,
        kind: CollectiveKind,
        size: int,
        members: tuple[int, ...],
        root: int,
    ) -> int:
        """Index in `algorithms` for a collective; `size`: as the job states it, `root`: a position.

        Raises `HubError` that names the rule and the collective.
        """
        try:
            if rule.algorithm == NATIVE or rule.algorithm not in self._synthesizers():
                return self._added(("file", rule.algorithm), lambda: self._file(rule.algorithm))
            if members not in self._networks:
                self._networks[members] = group_network(self.topology, members)
            place = self._networks[members]
            options = tuple(sorted(rule.options.items()))
            key = rule.algorithm, options, kind, size, len(members), root, place.identity
            return self._added(key, lambda: self._synthesized(rule, kind, size, root, place))
        except HubError as error:
            where = f"{kind} of {format_bytes(size)} on {len(members)} ranks"
            lead = f"--collective {rule.text}: {where}"
            found = [replace(one, message=f"{lead}: {one.message}") for one in error.diagnostics]
            raise type(error)(found) from None

    def _added(self, key: Hashable, make: Callable[[], Algorithm]) -> int:
        if key not in self._indices:
            algorithm = make()
            self._indices[key] = len(self.algorithms)
            self.algorithms.append(algorithm)
        return self._indices[key]

    def _synthesizers(self) -> set[str]:
        return {provided.name for provided in self.registry.all(Synthesizer)}

    def _file(self, name: str) -> Algorithm:
        """The algorithm of a file. Raises `UsageError` for a misspelt synthesizer."""
        try:
            return self.read(name)
        except HubError:
            if not {"/", "."} & set(name):
                self.registry.find(Synthesizer, name)
            raise

    def _synthesized(
        self,
        rule: CollectiveRule,
        kind: CollectiveKind,
        size: int,
        root: int,
        place: GroupNetwork,
    ) -> Algorithm:
        """An algorithm of the synthesizer that the rule names, verified."""
        ranks = len(place.npus)
        collective = Collective(
            kind,
            ranks,
            kind.traits.parts(ranks),
            root=root if kind.traits.is_rooted else None,
            in_place=True,
        )
        # Jobs count the input of a rank, algorithms the full buffer.
        total = size * ranks if kind.traits.input_is_part else size
        algorithm = synthesize(
            collective,
            place.topology,
            total,
            name=rule.algorithm,
            options=rule.options,
            npus=place.npus,
            registry=self.registry,
        ).algorithm
        self.admit(algorithm, f"{rule.algorithm} ({kind}, {ranks} ranks)")
        if algorithm.num_ranks == ranks:
            return algorithm
        return _of_members(algorithm, collective, place.npus)


def _of_members(algorithm: Algorithm, collective: Collective, npus: Sequence[int]) -> Algorithm:
    """An algorithm of the NPUs of a network as one of the members of a group.

    Raises `InputError` for steps on NPUs outside the group, as relays have them.
    """
    steps = algorithm.steps
    position = np.full(algorithm.num_ranks, -1, np.int64)
    position[list(npus)] = np.arange(len(npus))
    strangers = steps.rank[position[steps.rank] < 0]
    if len(strangers):
        message = f"its algorithm has steps on rank {strangers[0]}, which is not in the group"
        cure = "choose another algorithm for this group"
        raise InputError(message, cure=cure, code="algorithm-does-not-fit")
    columns = {name: getattr(steps, name) for name in COLUMN_DTYPES}
    columns["rank"] = position[steps.rank]
    columns["peer"] = np.where(steps.peer >= 0, position[steps.peer], -1)
    table = StepTable.from_columns(len(npus), columns, steps.data_edges, steps.control_edges)
    return replace(
        algorithm,
        collective=replace(collective, unit_count=algorithm.collective.unit_count),
        steps=table,
        scratch_units=algorithm.scratch_units[list(npus)],
        extensions={},
    )
