"""Assign algorithms to the collectives of a job by rules: `KIND[@SIZE][/GROUP]=ALGORITHM`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hub_core.columns import BoolArray
from hub_core.model import (
    COLUMN_DTYPES,
    STANDARD_KINDS,
    UNEVEN_KINDS,
    Algorithm,
    Collective,
    CollectiveKind,
    HubError,
    InputError,
    NodeKind,
    StepTable,
    UnitCounts,
    UsageError,
    Workload,
    closest,
    collective_of_call,
    format_bytes,
    full_buffer_bytes,
    parse_size,
    standard_kind,
    uneven_kind,
)
from hub_core.network import GroupNetwork, Topology, group_network
from hub_core.pipeline.synthesis import synthesize
from hub_core.plugin_api import Synthesizer
from hub_core.registry.plugins import Registry

EVERY_KIND = "*"

NATIVE = "native"

DEFAULT_UNEVEN = "direct"
"""The synthesizer of uneven collectives without a rule: every rank sends directly, as NCCL does."""

_RULE = re.compile(
    r"(?P<kind>[^@/=]+)(@(?P<size>(>=|<=|>|<)?[^/=<>]+))?(/(?P<group>[^=]+))?=(?P<algorithm>.+)"
)

_NO_LIMIT = 1 << 63

_EXAMPLE = "write for example all-reduce=ring, 'all-gather@>1MiB=direct', all-to-all/tp=FILE"

# Range of bytes by comparison: (first, last + 1).
_RANGES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    ">": lambda size: (size + 1, _NO_LIMIT),
    ">=": lambda size: (size, _NO_LIMIT),
    "<": lambda size: (0, size),
    "<=": lambda size: (0, size + 1),
    "": lambda size: (size, size + 1),
}


def with_algorithms(
    workload: Workload,
    rules: Sequence[CollectiveRule],
    topology: Topology,
    registry: Registry,
    *,
    read: Callable[[str], Algorithm],
    admit: Callable[[Algorithm, str], object],
    selected: BoolArray | None = None,
) -> Workload:
    """Return the job in which each collective has the algorithm of the last rule that matches it.

    `selected`: bool[nodes], nodes that may be changed; None for all. `read`: reads and verifies the
    algorithm in a file. `admit`: verifies an algorithm, with its name for messages. A rule matches
    by kind, bytes of the node (negative counts as 0) and group name ("" for all ranks).

    Unchanged are collectives on the host, not selected, of one rank, of no known kind, without a
    matching rule, or with a rule `native`. A rule with the name of a synthesizer calls it with
    bytes and NPUs of the group, once per equal options, call and network. Any other rule names a
    file, which is read once. New algorithms are appended to those of the job. `workload` is not
    changed.

    Raises the `HubError` of reading, synthesis or verification, preceded by rule and collective.
    Then raises `UsageError` (`no-match`) for the first rule that is no collective's last matching
    one. Collectives of one rank and rules `native` count as matches here; those on the host or not
    selected do not.
    """
    nodes = workload.nodes
    maker = _AlgorithmCache(topology, registry, read, admit, list(workload.algorithms))
    index = nodes.algorithm.astype(np.int64)
    is_open = nodes.is_kind(NodeKind.COLLECTIVE) & ~nodes.on_host
    rows = np.flatnonzero(is_open if selected is None else is_open & selected)
    columns = (nodes.collective, nodes.bytes, nodes.group, nodes.root, nodes.counts)
    keys = np.stack([column[rows].astype(np.int64) for column in columns])
    distinct, first, of_row = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    used: set[int] = set()
    for number, (_, size, group, root, counts_index) in enumerate(distinct.T.tolist()):
        kind = workload.kind_of(int(rows[first[number]]))
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
        counts = workload.counts[counts_index] if counts_index >= 0 else None
        call = _Call(kind, max(size, 0), len(members), position, counts)
        index[chosen] = maker.index(rules[rule_index], call, members)
    unused = [rule.text for number, rule in enumerate(rules) if number not in used]
    if unused:
        message = f"--collective {unused[0]} matches no collective of the job"
        raise UsageError(message, cure="collhub inspect lists its collectives", code="no-match")
    changed = replace(nodes, algorithm=index.astype(nodes.algorithm.dtype))
    return replace(workload, nodes=changed, algorithms=tuple(maker.algorithms))


@dataclass(frozen=True, slots=True)
class CollectiveRule:
    """A condition on collectives, and the algorithm for those that meet it.

    `kind`: None for all kinds. `least`, `behind`: range of bytes of the collective in the workload,
    `behind` excluded. `group`: name of the process group, None for all. `algorithm`: a synthesizer,
    a file or `native`. `options`: options after its colon.
    """

    text: str
    kind: CollectiveKind | None
    least: int
    behind: int
    group: str | None
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)

    def matches(self, kind: CollectiveKind, size: int, group: str) -> bool:
        """Return whether a collective of this kind, size in bytes and group meets all conditions.

        Conditions: the rule's kind and group, if it has them, and `least` <= size < `behind`.
        """
        is_kind = self.kind in (None, kind)
        is_group = self.group in (None, group)
        return is_kind and is_group and self.least <= size < self.behind


DEFAULT_RULE = CollectiveRule(f"{EVERY_KIND}={NATIVE}", None, 0, _NO_LIMIT, None, NATIVE)
"""The rule for collectives that no other rule matches."""


def parse_rule(text: str, synthesizers: Sequence[str]) -> CollectiveRule:
    """Parse a rule `KIND[@SIZE][/GROUP]=ALGORITHM` for the collectives of a job.

    KIND is a standard or uneven collective in any usual spelling, or `*` for every one. SIZE is in
    bytes: `1MiB` for exactly this size, `<`, `<=`, `>` or `>=` before it for a limit, and
    `1KiB..1MiB` for a range that includes both. Without SIZE all sizes match, without GROUP all
    groups. ALGORITHM is `native`, `native:NAME` (option `algorithm`), or a name of `synthesizers`
    with `:key=value,key=value`. Any other text, maybe with colons, is a path or synthesizer without
    options, not checked here. Raises `UsageError` for an invalid text, size, range, option or kind
    (`unknown-collective`, with the closest kind if one is similar, else with all), in this order.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:80]!r} is no rule KIND[@SIZE][/GROUP]=ALGORITHM", cure=_EXAMPLE)
    first, end = _parse_range(match["size"], text)
    name, options = _parse_algorithm(match["algorithm"], synthesizers)
    kind = None
    if match["kind"] != EVERY_KIND:
        kind = standard_kind(match["kind"]) or uneven_kind(match["kind"])
        if kind is None:
            known = [str(kind) for kind in (*STANDARD_KINDS, *UNEVEN_KINDS)]
            cure = closest(match["kind"], known) or f"use one of {', '.join(known)} or *"
            message = f"{match['kind'][:60]!r} is no collective"
            raise UsageError(message, cure=cure, code="unknown-collective")
    return CollectiveRule(text, kind, first, end, match["group"], name, options)


def choose_rule(
    rules: Sequence[CollectiveRule], kind: CollectiveKind, size: int, group: str
) -> int:
    """Return the index of the last rule that matches a collective; -1 if none does.

    A rule matches by kind, size in bytes and name of the group ("" for that of all ranks).
    """
    for number in range(len(rules) - 1, -1, -1):
        if rules[number].matches(kind, size, group):
            return number
    return -1


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective of a group; `size`: bytes of its node; `root`: a position in the group."""

    kind: CollectiveKind
    size: int
    num_ranks: int
    root: int
    counts: UnitCounts | None


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

    def index(self, rule: CollectiveRule, call: _Call, members: tuple[int, ...]) -> int:
        """Return the index in `algorithms` of the algorithm that a rule gives a collective.

        `members`: the NPUs of the group. A name that is no synthesizer (or is `native`) is that of
        a file. Every file is read once, and a synthesizer runs once for equal options, calls and
        networks; then the algorithm is added to `algorithms`. An error is raised with its own type,
        a `HubError`; its messages are preceded by the rule and the collective.
        """
        try:
            synthesizers = {provided.name for provided in self.registry.all(Synthesizer)}
            if rule.algorithm == NATIVE or rule.algorithm not in synthesizers:
                return self._add_once(
                    ("file", rule.algorithm), lambda: self._read_file(rule.algorithm)
                )
            if members not in self._networks:
                self._networks[members] = group_network(self.topology, members)
            network = self._networks[members]
            options = tuple(sorted(rule.options.items()))
            key = rule.algorithm, options, call, network.identity
            return self._add_once(key, lambda: self._synthesize(rule, call, network))
        except HubError as error:
            where = f"{call.kind} of {format_bytes(call.size)} on {call.num_ranks} ranks"
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

    def _read_file(self, name: str) -> Algorithm:
        """Read the algorithm of a file; errors are those of reading.

        If the file cannot be read and its name has neither `/` nor `.`, it may be a misspelt
        synthesizer: then `UsageError` with the closest name is raised instead, or `PluginError` if
        a plugin that is not loaded may provide it.
        """
        try:
            return self.read(name)
        except HubError:
            if not {"/", "."} & set(name):
                self.registry.find(Synthesizer, name)
            raise

    def _synthesize(self, rule: CollectiveRule, call: _Call, network: GroupNetwork) -> Algorithm:
        """Synthesize and verify the algorithm for a collective on the NPUs of a group.

        `rule`: the synthesizer and its options. `call`: kind, ranks, root (position in the group),
        counts, and the bytes of the node, from which `full_buffer_bytes` computes the size to
        synthesize for. The algorithm is verified (`admit`). If it has as many ranks as the group,
        it is returned: rank i is member i. Otherwise, for example if it is on all NPUs of the
        network, it is restricted to the members (`_restrict_to_members`) without another
        verification.

        Raises the `HubError` of synthesis or verification, and `InputError`
        (`algorithm-does-not-fit`) if a step is on an NPU outside the group.
        """
        kind, ranks = call.kind, call.num_ranks
        collective = collective_of_call(kind, ranks, call.root, call.counts)
        algorithm = synthesize(
            collective,
            network.topology,
            full_buffer_bytes(kind, call.size, ranks),
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
    """Convert an algorithm on all NPUs of a network to one on the members of a group.

    Member i is NPU `npus[i]` and becomes rank i. Ranks and peers are renumbered; a peer that is no
    member becomes -1. Dependencies, the scratch units of the members and all other columns are
    kept. Extensions are dropped. The result has `collective`, that of the members, with the unit
    count of the algorithm, to which uneven counts are scaled.

    Raises `InputError` (`algorithm-does-not-fit`) for the first step on an NPU that is no member,
    such as a relay. The algorithm is not changed, and the result is not verified.
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
    units, counts = algorithm.collective.unit_count, collective.counts
    if counts is not None:
        counts = counts.multiplied(units // collective.unit_count)
    return replace(
        algorithm,
        collective=replace(collective, unit_count=units, counts=counts),
        steps=table,
        scratch_units=algorithm.scratch_units[list(npus)],
        extensions={},
    )


def _parse_range(text: str | None, rule: str) -> tuple[int, int]:
    """Parse a condition on the size in bytes; return the accepted range as (first, last + 1).

    - None: all sizes, (0, 2^63).
    - `1KiB..1MiB`: both ends belong to the range, (1024, 2^20 + 1). The ends may be equal.
    - `<`, `<=`, `>` or `>=` before a size: `<1KiB` gives (0, 1024), `>1KiB` gives (1025, 2^63).
    - `1KiB`: exactly this size, (1024, 1025).

    `rule`: the text of the rule, for messages. Raises `UsageError` for a text that `parse_size`
    refuses (0 bytes, a missing end, a comparison within a range), and for an end below the start.
    """
    if text is None:
        return 0, _NO_LIMIT
    low, dots, high = text.partition("..")
    if dots:
        first, last = parse_size(low), parse_size(high)
        if first > last:
            raise UsageError(f"{rule[:80]!r} matches no size", cure="write the smaller size first")
        return first, last + 1
    size = text.lstrip("<>=")
    comparison = text[: len(text) - len(size)]
    # `=` ends the condition, so that only `<=` and `>=` contain it.
    return _RANGES[comparison](parse_size(size))


def _parse_algorithm(text: str, synthesizers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Parse the algorithm of a rule into a name (or path) and options by name.

    The first case that applies:

    1. `native` gives this name without options. `native:TEXT` gives the name `native` and the
       option `algorithm` with TEXT, which may be empty.
    2. `NAME:OPTIONS` with a NAME of `synthesizers`: this name and the options, each `key=value`.
       They are separated by commas; a comma that is not followed by `key=` is part of the value, as
       in `candidates=ring,direct`. A value may be empty. `-` in a key becomes `_`. The last of
       equal keys counts. Keys are not checked otherwise.
    3. Any other text is returned without options: a synthesizer alone, or a path (with any colons).

    Raises `UsageError` in case 2 for an option without a key or `=`, also if OPTIONS is empty.
    """
    name, colon, option_text = text.partition(":")
    if name == NATIVE:
        return name, {"algorithm": option_text} if colon else {}
    if name not in synthesizers or not colon:
        return text, {}
    options = {}
    # A value may contain commas, as in candidates=ring,direct.
    for pair in re.split(r",(?=[\w-]+=)", option_text):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            cure = f"write {name}:key=value,key=value"
            raise UsageError(f"{pair[:60]!r} is no option of {name}", cure=cure)
        options[key.replace("-", "_")] = value
    return name, options
