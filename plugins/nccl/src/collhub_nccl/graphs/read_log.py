"""Read rings or trees of a communicator from NCCL's log as an algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collhub_nccl_records import (
    CommunicatorFacts,
    NcclLog,
    SkippedLine,
    TreeNode,
    describe_ring_defect,
    describe_tree_defect,
    read_lines,
)

from collhub_nccl.graphs.channel_algorithms import choose_root, ring_algorithm, tree_algorithm
from collhub_nccl.graphs.ring_graphs import from_first_gpu
from collhub_nccl.options import LogReadOptions
from hub_core import installed_version
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    Provenance,
    Severity,
    UsageError,
    format_bytes,
    format_ranks,
)
from hub_core.plugin_api import Source

EXTENSION = "nccl-log"
_DISTRIBUTION = "collhub-nccl"
# Rows of the step table: four for every message of an all-reduce with its two halves.
_MAX_STEPS = 1 << 22
_MAX_CHANNELS = 128
_MAX_LISTED = 20


def read(source: Source, options: LogReadOptions) -> Algorithm:
    """Return the algorithm of one communicator in a log of NCCL: its rings, or trees on request.

    The option `communicator` names the communicator. By default it is the one with the most ranks,
    of equal ones the first in the log. Those without rings and trees do not count.

    With the option `graph=tree`, each tree over all ranks becomes a channel of an all-reduce, and
    the option `root` is ignored. Otherwise each ring over all ranks becomes a channel of the option
    `collective`; its root, if it has one, is 0 by default. Other channels are omitted with a
    warning. Finally, notes report facts such as connections and NCCL's choices.

    Raises `InputError` without any rings and trees (`no-rings`), without a valid channel of the
    requested graph, and beyond the limits of `_check_channels` (both `channel`). Raises
    `UsageError` for an unknown communicator, for trees of another collective than all-reduce, and
    for rings with a root that is out of range or that the collective does not have.
    """
    log, skipped = NcclLog(), 0
    for part in source.parts:
        with part.stream() as stream:
            for record in log.read(read_lines(stream), part.name):
                skipped += isinstance(record, SkippedLine)
    facts = _choose_communicator(log, options.communicator, source)
    kind = CollectiveKind(options.collective)
    provenance = Provenance(
        _DISTRIBUTION,
        installed_version(_DISTRIBUTION) or "",
        source.name,
        source.sha256(),
        {"collective": options.collective, "graph": options.graph},
    )
    extensions: dict[str, JsonValue] = {EXTENSION: _facts_to_json(log, facts)}
    if options.graph == "tree":
        if kind is not CollectiveKind.ALL_REDUCE:
            message = f"option graph: NCCL runs no {kind} over trees"
            raise UsageError(message, cure="leave out collective or graph")
        trees = _valid_trees(facts, source)
        algorithm = tree_algorithm(trees, provenance, extensions)
    else:
        rings = _valid_rings(facts, source)
        root = choose_root(kind, options.root, len(rings[0]))
        algorithm = ring_algorithm(kind, rings, root, provenance, extensions)
    _report_facts(source, log, facts, skipped)
    return algorithm


def _choose_communicator(log: NcclLog, identity: str | None, source: Source) -> CommunicatorFacts:
    """Return the communicator named `identity`, or the one with the most ranks if that is None.

    Only communicators with rings or trees count. Of those with equally many ranks, the one that
    occurs first in the log is returned. A name matches if it is, in lower case, equal to the whole
    identity in the log; the first match is returned.

    Raises `UsageError` if no communicator has the name; the cure lists the first 8 identities.
    Raises `InputError` (`no-rings`) if `identity` is None and the log has no rings and no trees.
    """
    graphs = [
        communicator
        for communicator in log.communicators.values()
        if communicator.ring_channels or communicator.trees
    ]
    if identity is not None:
        chosen = [
            communicator for communicator in graphs if communicator.identity == identity.lower()
        ]
        if not chosen:
            known = (
                ", ".join(communicator.identity or "''" for communicator in graphs[:8]) or "none"
            )
            message = f"option communicator: {identity!r:.40} has no rings in the log"
            raise UsageError(message, cure=f"communicators with rings: {known}")
        return chosen[0]
    if not graphs:
        message = f"the log has {log.lines} lines of NCCL, but no rings and no trees"
        cure = (
            "run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH, and give all of its output"
        )
        if log.call_lines:
            message = f"{message}; {log.call_lines} lines are calls, but not of all ranks of a job"
            cure = (
                "to read the calls, log with NCCL_DEBUG_SUBSYS=INIT,COLL and give the complete"
                " output of all processes; for rings, log with INIT,GRAPH"
            )
        raise InputError(message, location=Location(source.name), cure=cure, code="no-rings")
    return max(graphs, key=lambda communicator: (communicator.size(), -graphs.index(communicator)))


def _valid_rings(facts: CommunicatorFacts, source: Source) -> list[tuple[int, ...]]:
    """Return the rings over all ranks by ascending channel, each rotated to start at rank 0.

    A ring with a defect, such as a missing or repeated rank, is left out. Warnings (`channel`):

    - one per defective ring, with its line of the log if known
    - one that lists the announced channels of which the log has no ring at all

    Raises `InputError` (`channel`) for the first that applies:

    - The communicator has no rings, only trees.
    - No ring is valid; the error has the first defect, and no warning is reported.
    - The communicator has only one rank.
    - There are more than 128 rings, or 4 x rings x ranks^2 is above 2^22.
    """
    rings, defects = [], []
    for channel in facts.ring_channels:
        defect = describe_ring_defect(facts, channel)
        if defect:
            line = facts.ring_lines.get(channel)
            defects.append((line, f"channel {channel} is no ring over all ranks: {defect}"))
            continue
        rings.append(from_first_gpu(facts.ring(channel)))
    if not facts.ring_channels:
        message = "the log has trees, but no rings"
        cure = "read the trees with -O graph=tree, or log with NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        raise InputError(message, location=Location(source.name), cure=cure, code="channel")
    _check_channels(len(rings), facts.size(), defects, source)
    missing = sorted(set(range(facts.channel_count)) - set(facts.ring_channels))
    if missing:
        text = f"the lines of channels {format_ranks(missing)} of {facts.channel_count} are missing"
        cure = "give the complete log"
        source.report(Diagnostic("channel", text, Severity.WARNING, Location(source.name), cure))
    return rings


def _valid_trees(facts: CommunicatorFacts, source: Source) -> list[Mapping[int, TreeNode]]:
    """Return the trees that span all ranks of the communicator, by ascending channel.

    A tree is a mapping from rank to node. A channel whose tree has a defect, such as a
    missing rank, is left out, so the position in the list is not the channel number; each
    is reported to `source` as a warning. Raises the `InputError` of `_check_channels`, for
    example if no channel is valid.
    """
    trees: list[Mapping[int, TreeNode]] = []
    defects: list[tuple[int | None, str]] = []
    for channel, tree in sorted(facts.trees.items()):
        defect = describe_tree_defect(tree, facts.size())
        if defect:
            defects.append((None, f"channel {channel} is no tree over all ranks: {defect}"))
        else:
            trees.append(tree)
    _check_channels(len(trees), facts.size(), defects, source)
    return trees


def _check_channels(
    count: int, ranks: int, defects: Sequence[tuple[int | None, str]], source: Source
) -> None:
    """Report a warning for each channel that is left out, and check the remaining channels.

    `defects`: (line or None, message) of each channel that is left out. `count`: number of valid
    channels over `ranks` ranks. Raises `InputError` (`channel`) in these cases, in this order:

    1. `count` is 0: with the first defect, or a general message without defects. No warning is
       reported.
    2. There are fewer than 2 ranks. From here on, the warnings have been reported.
    3. There are more than `_MAX_CHANNELS` (128) channels, or 4 x channels x ranks^2 is above
       `_MAX_STEPS` (2^22).
    """
    if not count:
        line, message = defects[0] if defects else (None, "the log has no channels of this kind")
        cure = "give the complete output of all processes, with NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        raise InputError(message, location=Location(source.name, line), cure=cure, code="channel")
    for line, message in defects:
        text = f"{message}; it is left out"
        source.report(Diagnostic("channel", text, Severity.WARNING, Location(source.name, line)))
    if ranks < 2:
        message = "the communicator has one rank, which sends no messages"
        cure = "give the log of a communicator with several ranks"
        raise InputError(message, location=Location(source.name), cure=cure, code="channel")
    if count > _MAX_CHANNELS or count * ranks * ranks * 4 > _MAX_STEPS:
        message = (
            f"{count} channels over {ranks} ranks: at most {_MAX_CHANNELS} channels and "
            f"{_MAX_STEPS} steps"
        )
        cure = "give the log of one communicator"
        raise InputError(message, location=Location(source.name), cure=cure, code="channel")


def _report_facts(source: Source, log: NcclLog, facts: CommunicatorFacts, skipped: int) -> None:
    """Report facts of the log that an algorithm cannot express, each as a note `nccl-log`.

    The location is the source without a line. The notes are, in this order:

    1. number of connections by transport, by name: the first 20 (`_MAX_LISTED`) transports
    2. NCCL's choices of algorithm and protocol with their number of calls: the first 20 in the log
    3. the line with the numbers of channels
    4. number of calls, which can be read as a job
    5. that the log has several communicators, of which this is one
    6. number of lines without a known communicator
    7. `skipped`, the number of lines of calls that are not used

    Facts that are missing or 0 have no note. Transports and choices after the first 20 are not
    mentioned.
    """
    lines = [
        f"{count} connections via {transport}"
        for transport, count in sorted(facts.transports().items())[:_MAX_LISTED]
    ]
    lines += [
        f"NCCL chose {choice.algorithm} {choice.protocol} for"
        f" {choice.operation or 'a collective'} of {format_bytes(choice.bytes)} ({count} calls)"
        for choice, count in list(facts.choices.items())[:_MAX_LISTED]
    ]
    if facts.channels:
        lines.append(facts.channels)
    if facts.calls:
        lines.append(f"{facts.calls} calls: read them as a job with --from nccl-calls")
    if len(log.communicators) > 1:
        lines.append(
            f"communicator {facts.identity or '(unnamed)'} of {len(log.communicators)};"
            " -O communicator=ID reads another one"
        )
    if log.unassigned:
        lines.append(f"{log.unassigned} lines belong to no known communicator")
    if skipped:
        lines.append(f"{skipped} lines of calls are not used")
    for line in lines:
        source.report(Diagnostic("nccl-log", line, Severity.NOTE, Location(source.name)))


def _facts_to_json(log: NcclLog, facts: CommunicatorFacts) -> dict[str, JsonValue]:
    transports: dict[str, JsonValue] = dict(sorted(facts.transports().items()))
    choices: list[JsonValue] = [
        {
            "operation": choice.operation,
            "bytes": choice.bytes,
            "algorithm": choice.algorithm,
            "protocol": choice.protocol,
            "calls": count,
        }
        for choice, count in facts.choices.items()
    ]
    known: dict[str, JsonValue] = {"version": log.version, "communicator": facts.identity}
    if facts.node_count > 0:
        known["nodes"] = facts.node_count
    named: dict[str, JsonValue] = {name: value for name, value in known.items() if value}
    return {**named, "transports": transports, "choices": choices}
