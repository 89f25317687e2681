"""Assign algorithms to the collectives of a job by rules; simulators of jobs run them."""

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
    """Assign to each collective of a job the algorithm of the last rule that matches it.

    A synthesizer is called with the bytes and the NPUs of the group, once for equal collectives on
    equal networks. `read`: reads and verifies the algorithm of a file. `admit`: verifies an
    algorithm that messages call by a name. Collectives on the host, of a single rank, and of rules
    with `native` are not changed. Raises `HubError` with the rule for an algorithm that does not
    fit, and `UsageError` for a rule that matches no collective.
    """
    nodes = workload.nodes
    maker = _AlgorithmCache(topology, registry, read, admit, list(workload.algorithms))
    index = nodes.algorithm.astype(np.int64)
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & ~nodes.on_host)
    columns = (nodes.collective, nodes.bytes, nodes.group, nodes.root)
    keys = np.stack([column[rows].astype(np.int64) for column in columns])
    distinct, of_row = np.unique(keys, axis=1, return_inverse=True)
    used: set[int] = set()
    for number, (code, size, group, root) in enumerate(distinct.T.tolist()):
        kind = JobCollective(code).kind if code >= 0 else None
        name = workload.groups[group].name if group >= 0 else ""
        rule_index = -1 if kind is None else choose_rule(rules, kind, max(size, 0), name)
        if rule_index < 0 or kind is None:
            continue
        used.add(rule_index)
        members = workload.members(group)
        if rules[rule_index].algorithm == NATIVE or len(members) < 2:
            continue
        position = members.index(root) if root in members else 0
        chosen = rows[of_row.reshape(-1) == number]
        index[chosen] = maker.index(rules[rule_index], kind, max(size, 0), members, position)
    unused = [rule.text for number, rule in enumerate(rules) if number not in used]
    if unused:
        message = f"--collective {unused[0]} matches no collective of the job"
        raise UsageError(message, cure="collhub inspect lists its collectives", code="no-match")
    changed = replace(nodes, algorithm=index.astype(nodes.algorithm.dtype))
    return replace(workload, nodes=changed, algorithms=tuple(maker.algorithms))


@dataclass(slots=True)
class _AlgorithmCache:
    """Creates algorithms. `algorithms`: those of the job, followed by each new one."""

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
        """Return the index in `algorithms` of the algorithm for a collective.

        `size`: in bytes as in the job. `root`: a position in the group. Raises `HubError` that
        names the rule and the collective.
        """
        try:
            if rule.algorithm == NATIVE or rule.algorithm not in self._list_synthesizers():
                return self._add_once(
                    ("file", rule.algorithm), lambda: self._read_file(rule.algorithm)
                )
            if members not in self._networks:
                self._networks[members] = group_network(self.topology, members)
            network = self._networks[members]
            options = tuple(sorted(rule.options.items()))
            key = rule.algorithm, options, kind, size, len(members), root, network.identity
            return self._add_once(key, lambda: self._synthesize(rule, kind, size, root, network))
        except HubError as error:
            where = f"{kind} of {format_bytes(size)} on {len(members)} ranks"
            lead = f"--collective {rule.text}: {where}"
            findings = [
                replace(diagnostic, message=f"{lead}: {diagnostic.message}")
                for diagnostic in error.diagnostics
            ]
            raise type(error)(findings) from None

    def _add_once(self, key: Hashable, make: Callable[[], Algorithm]) -> int:
        if key not in self._indices:
            algorithm = make()
            self._indices[key] = len(self.algorithms)
            self.algorithms.append(algorithm)
        return self._indices[key]

    def _list_synthesizers(self) -> set[str]:
        return {provided.name for provided in self.registry.all(Synthesizer)}

    def _read_file(self, name: str) -> Algorithm:
        """Read the algorithm of a file. Raises `UsageError` for a misspelt synthesizer."""
        try:
            return self.read(name)
        except HubError:
            if not {"/", "."} & set(name):
                self.registry.find(Synthesizer, name)
            raise

    def _synthesize(
        self,
        rule: CollectiveRule,
        kind: CollectiveKind,
        size: int,
        root: int,
        network: GroupNetwork,
    ) -> Algorithm:
        """Synthesize and verify the algorithm for a collective."""
        ranks = len(network.npus)
        collective = Collective(
            kind,
            ranks,
            kind.traits.parts(ranks),
            root=root if kind.traits.is_rooted else None,
            in_place=True,
        )
        # In jobs, bytes are those of a rank's input; in algorithms, those of the full buffer.
        total = size * ranks if kind.traits.input_is_part else size
        algorithm = synthesize(
            collective,
            network.topology,
            total,
            name=rule.algorithm,
            options=rule.options,
            npus=network.npus,
            registry=self.registry,
        ).algorithm
        self.admit(algorithm, f"{rule.algorithm} ({kind}, {ranks} ranks)")
        if algorithm.num_ranks == ranks:
            return algorithm
        return _restrict_to_members(algorithm, collective, network.npus)


def _restrict_to_members(
    algorithm: Algorithm, collective: Collective, npus: Sequence[int]
) -> Algorithm:
    """Convert an algorithm on the NPUs of a network to one on the members of a group.

    Raises `InputError` for steps on NPUs outside the group, such as relays.
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
