"""Sample workloads, and conformance rules for their generators, passes, writers and simulators."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hub_core.documents.topologies import topology_to_json
from hub_core.model.diagnostics import HubError
from hub_core.model.kinds import JobCollective, NodeKind
from hub_core.model.workload import NODE_DEFAULTS, NodeColumns, ProcessGroup, Workload
from hub_core.network.construction import side_by_side
from hub_core.network.links import Links
from hub_core.network.texts import build_topology, regular
from hub_core.network.topology import Topology
from hub_core.pipeline.inputs import parse_topology
from hub_core.plugin_api.formats import (
    Source,
    SourcePart,
    WorkloadGenerator,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.runs import WorkloadRequest, WorkloadSimulator, WorkloadTimes
from hub_core.plugin_api.subjects import (
    AlgorithmPass,
    Check,
    CheckReport,
    CheckRequest,
    PassReport,
    Subject,
)
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Skip,
    call,
    find_loss_problem,
    render,
    title,
    to_source,
)
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraWriteOptions
from hub_core.trace_profile.write import write


def json_trace_samples() -> Sequence[Source]:
    """Return one source with the traces of a ring all-reduce of 3 ranks as JSON text.

    The source has one part in memory per rank, `ring.0.json` to `ring.2.json`. A part
    contains the JSON objects of the trace's records in order, without separators between
    them, as chakra_jsonizer writes them.
    """
    # Imported here, so that listing plugins does not import protobuf.
    from google.protobuf.json_format import MessageToJson

    from hub_core.chakra.trace_records import decoded_records

    parts = []
    for rank, artifact in enumerate(write(ring_all_reduce(3), ChakraWriteOptions()).artifacts):
        records = decoded_records(artifact.content(), artifact.name)
        content = "".join(map(MessageToJson, records)).encode()
        parts.append(SourcePart(f"ring.{rank}.json", content.__bytes__, rank, len(content)))
    return [Source("ring", tuple(parts))]


def sample_workloads() -> Mapping[str, Workload]:
    """Sample workloads by name."""
    return {"training step": training_step(), "pipeline": pipeline()}


def training_step(num_ranks: int = 4) -> Workload:
    """Build a data-parallel training step with two layers on `num_ranks` ranks.

    Per rank and layer there is a computation (2000 ns, then 3000 ns) and an all-reduce of
    64 KiB of gradients among all ranks. The computation of the second layer depends on that
    of the first one; each all-reduce depends only on the computation of its layer.
    """
    builder = _WorkloadBuilder(num_ranks)
    for rank in range(num_ranks):
        parents: list[int] = []
        for duration in (2000, 3000):
            compute = builder.add(rank, NodeKind.COMPUTE, parents, duration_ns=duration)
            kind = int(JobCollective.ALL_REDUCE)
            builder.add(rank, NodeKind.COLLECTIVE, [compute], collective=kind, bytes=1 << 16)
            parents = [compute]
    return builder.workload()


def pipeline() -> Workload:
    """Build a pipeline with two stages, each of which is a process group of two ranks.

    Group 0 has ranks 0 and 1, group 1 has ranks 2 and 3. Every rank first computes for 1000
    ns. Then rank 0 sends 4096 bytes to rank 2, and rank 1 to rank 3. After its send or
    receive, every rank takes part in an all-gather of 512 bytes in its group.
    """
    builder = _WorkloadBuilder(4)
    for rank in range(4):
        peer, is_first = rank ^ 2, rank < 2
        compute = builder.add(rank, NodeKind.COMPUTE, [], duration_ns=1000)
        kind = NodeKind.SEND if is_first else NodeKind.RECV
        message = builder.add(rank, kind, [compute], peer=peer, tag=7, bytes=4096)
        code = int(JobCollective.ALL_GATHER)
        group = 0 if is_first else 1
        builder.add(rank, NodeKind.COLLECTIVE, [message], collective=code, bytes=512, group=group)
    return builder.workload(ProcessGroup("1", (0, 1)), ProcessGroup("2", (2, 3)))


class _WorkloadBuilder:
    """Builder of a workload; nodes are added one by one."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._columns: dict[str, list[int]] = {
            name: [] for name in NODE_DEFAULTS if name not in ("identity", "on_host")
        }
        self._edges: tuple[list[int], list[int]] = ([], [])

    def add(self, rank: int, kind: NodeKind, parents: list[int], **values: int) -> int:
        """Append a node that depends on the rows `parents`, and return its row.

        Rows are numbered from 0 in the order of the calls. `values`: columns by name; other
        columns get their default. Unknown names are ignored, and so are `identity` and
        `on_host`. Rank and parents are checked only by `workload`.
        """
        row = len(self._columns["rank"])
        columns = {"rank": rank, "kind": int(kind)} | values
        for name, column in self._columns.items():
            column.append(columns.get(name, NODE_DEFAULTS[name]))
        for parent in parents:
            self._edges[0].append(parent)
            self._edges[1].append(row)
        return row

    def workload(self, *groups: ProcessGroup) -> Workload:
        """Build the workload of all nodes that were added, with the process groups `groups`.

        Nodes are grouped by rank; the nodes of a rank are in the order of `add`. A node refers
        to a group by its position in `groups`. Raise `InputError` if a rank, a parent or a
        group does not exist, or if a parent is on another rank.
        """
        nodes = NodeColumns.from_columns(self._num_ranks, self._columns, self._edges)
        return Workload(nodes, groups=groups)


def topology_samples() -> Sequence[Source]:
    """Return three topologies as sources of one JSON document each, in memory.

    They are a ring of 4 NPUs, a switch with 3 NPUs, and the product of a ring of 2 and a
    switch of 2, in this order.
    """
    sources = []
    for text in ("ring:4", "switch:3", "ring:2*switch:2"):
        content = topology_to_json(_build_regular(text))
        sources.append(Source.of_bytes(f"{text}.json", content))
    return sources


def sample_topologies() -> Mapping[str, Topology]:
    """Build sample topologies by name.

    The names are `ring:4`, `switch:4`, `ring:2*switch:2` and `torus:3x3` (regular), `two planes`,
    `two leaves` (a two-level fat tree with node names and groups), `multiplying switch` (it
    multicasts and reduces), `one way` (a ring with links in one direction), and `two cables` (two
    links in each direction between two NPUs).
    """
    samples = {
        text: _build_regular(text)
        for text in ("ring:4", "switch:4", "ring:2*switch:2", "torus:3x3")
    }
    samples["two planes"] = side_by_side(
        "two planes", [_build_regular("ring:4"), _build_regular("switch:4")]
    )
    # NPUs 0 and 1 are at leaf 4, NPUs 2 and 3 at leaf 5; both leaves are at the spines 6 and 7.
    cables = np.asarray([(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (4, 7), (5, 6), (5, 7)])
    endpoints = np.stack([cables, cables[:, ::-1]], axis=1).reshape(-1, 2)
    links = Links.uniform(endpoints[:, 0], endpoints[:, 1], 50e9, 1e-6)
    names = ("a", "b", "c", "d", "leaf 0", "leaf 1", "spine 0", "spine 1")
    groups = {"left": (0, 1), "right": (2, 3)}
    samples["two leaves"] = links.topology("two leaves", 4, 8, node_names=names, groups=groups)
    samples["multiplying switch"] = replace(
        _build_regular("switch:4?multicast=true&reduce=true"), name="multiplying switch"
    )
    ring = np.arange(4)
    one_way = Links.uniform(ring, (ring + 1) % 4, 25e9, 1e-6)
    samples["one way"] = one_way.topology("one way", 4, 4)
    pair = np.asarray([0, 1, 0, 1])
    double = Links.uniform(pair, 1 - pair, 25e9, 1e-6)
    samples["two cables"] = double.topology("two cables", 2, 2)
    return samples


def _build_regular(text: str) -> Topology:
    """Build a topology text of regular networks, without the registry."""
    return build_topology(text, lambda name: regular)


_NETWORK = "ring:4"


def workloads_come_back(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A workload is written equally twice and read back unchanged except for declared losses."""
    for writer in subject.offers(WorkloadWriter):
        readers = [
            entry.offer
            for entry in subject.registry.all(WorkloadReader)
            if entry.name == writer.name
        ]
        if not readers:
            yield Skip(f"{title(writer)}: no reader of the same format is installed")
        for name, workload in sample_workloads().items():
            try:
                written = render(writer, workload)
            except HubError:
                continue
            if written.artifacts != render(writer, workload).artifacts:
                yield f"{title(writer)}, {name}: two writings differ"
            for reader in readers:
                read_workload = call(reader, to_source(written, writer.format))
                problem = find_loss_problem(workload, read_workload, written)
                if problem:
                    yield f"{title(writer)}, {name}: {problem}"


def workload_simulators_simulate(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """Finish times and exposed times are not negative, one per rank, and equal in two runs.

    A rank that never finishes may have None, and a simulator may report no exposed times.
    Simulators that need a measured machine are skipped.
    """
    network = parse_topology(_NETWORK, registry=subject.registry)
    for simulator in subject.offers(WorkloadSimulator):
        if simulator.has_machines:
            yield Skip(f"{title(simulator)} needs a measured machine, which the kit does not have")
            continue
        for name, workload in sample_workloads().items():
            result, repetition = (_simulate(simulator, workload, network) for _ in range(2))
            if result != repetition:
                yield f"{title(simulator)}, {name}: two runs differ"
            finish, exposed = result
            for times in (finish, exposed) if exposed else (finish,):
                if len(times) != workload.num_ranks:
                    yield f"{title(simulator)}, {name}: {len(times)} times, expected one per rank"
                if any(time is not None and time < 0 for time in times):
                    yield f"{title(simulator)}, {name}: a time is negative"


def workload_generators_generate(subject: CheckedPlugin) -> Iterator[str]:
    """Default options give a workload without errors of installed checks, equal in every run."""
    for generator in subject.offers(WorkloadGenerator):
        workload, repetition = call(generator), call(generator)
        if not isinstance(workload, Workload) or not isinstance(repetition, Workload):
            yield f"{title(generator)} returned {type(workload).__name__}, expected Workload"
            continue
        if differences := workload.differences(repetition):
            yield f"{title(generator)}: two runs differ in {', '.join(differences)}"
        for problem in _find_check_errors(subject, workload):
            yield f"{title(generator)}: {problem}"


def workload_passes_keep_jobs_correct(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A pass turns a correct workload into a correct one and does not change its input."""
    for workload_pass in subject.offers(AlgorithmPass):
        if workload_pass.subject is not Subject.WORKLOAD:
            continue
        num_accepted = 0
        for name, workload in sample_workloads().items():
            before = copy.deepcopy(workload)
            try:
                result = call(workload_pass, workload)
            # A pass may require an option or another kind of workload.
            except HubError:
                continue
            num_accepted += 1
            for problem in _find_pass_problems(subject, result):
                yield f"{title(workload_pass)}, {name}: {problem}"
            if before.differences(workload):
                yield f"{title(workload_pass)}, {name}: the input workload was changed"
        if not num_accepted:
            yield Skip(f"{title(workload_pass)} refuses every workload of the kit")


def _find_pass_problems(subject: CheckedPlugin, result: object) -> Iterator[str]:
    """Yield the problems of the result of a pass over workloads, one text each.

    The result must be a tuple of a `Workload` and a `PassReport`, not of their subclasses.
    If it is not, the only problem is the type. Otherwise, every installed check of
    workloads that does not pass gives one problem, its first finding.
    """
    pair = result if isinstance(result, tuple) else ()
    if [type(member) for member in pair] != [Workload, PassReport]:
        yield f"returned {type(result).__name__}, not (Workload, PassReport)"
        return
    yield from _find_check_errors(subject, pair[0])


def _find_check_errors(subject: CheckedPlugin, workload: Workload) -> Iterator[str]:
    """Yield the first finding of every installed workload check that does not pass."""
    for entry in subject.registry.all(Check):
        if entry.offer.subject is Subject.WORKLOAD:
            report = call(entry.offer, CheckRequest("job", workload=workload))
            if isinstance(report, CheckReport) and not report.ok:
                yield str(report.diagnostics[0])


def _simulate(
    simulator: WorkloadSimulator, workload: Workload, network: Topology
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Simulate a workload; return the finish times and the exposed times of all ranks in ns.

    The exposed time of a rank is its time without computation. A time is None for a rank
    that never finishes; the exposed times are () if the simulator does not report them.
    Raise `AssertionError` if the simulator returns no `WorkloadTimes`. Exceptions of the
    simulator are not caught.
    """
    result = call(simulator, WorkloadRequest(workload, network))
    message = f"{simulator.simulate} returned {type(result).__name__}, expected WorkloadTimes"
    assert isinstance(result, WorkloadTimes), message
    return result.rank_finish_ns, result.rank_exposed_ns
