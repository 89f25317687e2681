"""Write the folder of a whole job that ASTRA-sim runs as it is, and what it would hang on.

A job that was read from such a folder is written back with its own configurations. Others get them
from options, and what `job_cures` does so that they run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from collhub_job_traces import bridge_markers, trace_files

from collhub_astra_sim.folders.custom_sets import CustomSets, custom_sets
from collhub_astra_sim.folders.job import PRIVATE_ATTRIBUTES
from collhub_astra_sim.folders.job_cures import (
    EXACT_SYSTEM,
    carried_host_times,
    cured,
    needs_exact_times,
    with_exact_times,
)
from collhub_astra_sim.folders.run_script import (
    GROUPS,
    MEMORY,
    NETWORK,
    PER_NODE,
    SCRIPT,
    SYSTEM,
    WORKLOAD,
    script,
)
from collhub_astra_sim.folders.workload_traces import (
    COLLECTIVE_KEYS,
    PER_NODE_KEY,
    collective_workload,
)
from collhub_astra_sim.folders.written_losses import written_losses
from collhub_astra_sim.networks.expressible import expressed, fully_connected
from collhub_astra_sim.networks.network_yaml import network_text
from collhub_astra_sim.options import CONGESTION_AWARE, JobWriteOptions
from collhub_astra_sim.workloads.hazards import EXTENSION
from collhub_astra_sim.workloads.stated_system import refuse_given, stated_system
from hub_core import TraceOptions, UsageError, chakra_traces, parse_topology
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, CollectiveKind, JsonValue, NodeKind, Workload
from hub_core.plugin_api import Artifact, WriteResult

_DEFAULT_BANDWIDTH_BYTES_PER_S = 50.0 * (1 << 30)
_DEFAULT_LATENCY_S = 500e-9
_NO_MEMORY = '{"memory-type": "NO_MEMORY_EXPANSION"}\n'
_JOB_TRACES = "traces/job"
_MICRO_NS = 1000


@dataclass(frozen=True, slots=True)
class _JobFolder:
    """Contents of a folder.

    `traces`: of the workload. `programs`: algorithms and the bytes of their collectives, by the
    prefix of their traces. `texts`: configurations by file name.
    """

    traces: tuple[Artifact, ...]
    programs: Mapping[str, tuple[Algorithm, int | None]]
    texts: Mapping[str, str]

    def artifacts(self) -> Iterator[Artifact]:
        """Traces of algorithms, then those of the workload, configurations and the script."""
        for prefix, (algorithm, size) in self.programs.items():
            for trace in chakra_traces(algorithm, TraceOptions(size)).artifacts:
                yield Artifact(f"{prefix}{trace.name}", trace.content)
        yield from self.traces
        for name, text in self.texts.items():
            yield Artifact(name, text.encode(), executable=name == SCRIPT)


def write(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """Writer `astra-sim` of jobs.

    Markers, which ASTRA-sim does not finish, are bridged. The result is read back and simulated:
    rounded times, and whatever makes ASTRA-sim hang or abort, are among the losses. Raises
    `UsageError` and `InputError` for a job that ASTRA-sim cannot express.
    """
    workload = bridge_markers(workload).workload
    stated = workload.extensions.get(EXTENSION)
    if options.form == "custom":
        return _as_algorithm(workload, options)
    if isinstance(stated, dict) and isinstance(stated.get("system"), str):
        refuse_given(options)
        return _as_stated(workload, stated, options)
    return _as_workload(workload, options)


def _as_stated(
    workload: Workload, stated: Mapping[str, JsonValue], options: JobWriteOptions
) -> WriteResult:
    """The folder that the job was read from; algorithms under the prefixes that it knows."""
    # Paths in it held where the folder stood before.
    system = json.loads(str(stated["system"]))
    prefixes = [str(prefix) for prefix in _listed(stated.get("custom"))]
    for kind, prefix in _pairs(stated.get("by_kind")):
        system[COLLECTIVE_KEYS[CollectiveKind(kind)]] = [prefix]
    per_node = {int(node): prefix for node, prefix in _pairs(stated.get("per_node"))}
    if per_node:
        system[PER_NODE_KEY] = PER_NODE
    # Traces are of the size that they were read with.
    sizes = [algorithm.collective_bytes for algorithm in workload.algorithms]
    programs = dict(zip(prefixes, zip(workload.algorithms, sizes, strict=True), strict=True))
    memory = stated.get("memory")
    network = stated.get("network")
    # Another network is the only change that an option makes.
    if options.topology is not None or not isinstance(network, str):
        network = _network(workload, options)
    texts = _texts(workload, system, str(network), per_node)
    if isinstance(memory, str):
        texts[MEMORY] = memory
    return _result(workload, programs, texts, options, workload.nodes.duration_ns)


def _as_workload(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """Nodes of the job as nodes of the workload; times on devices are exact."""
    sets: CustomSets = custom_sets(workload)
    workload, notes = cured(sets.workload)
    exact_ns = workload.nodes.duration_ns
    system = stated_system(options)
    if sets.per_node:
        system[PER_NODE_KEY] = PER_NODE
    states_system = options.memory_bandwidth is not None or options.peak_tflops is not None
    if needs_exact_times(workload) and not states_system:
        workload = with_exact_times(workload)
        system |= EXACT_SYSTEM
        notes.append("computations on devices are stated as operations, so that ns are exact")
    if options.host_times == "carry":
        workload = carried_host_times(workload)
    # Beside the traces of the workload there must be no other set.
    programs = {f"traces/{name}": program for name, program in sets.programs.items()}
    per_node = {node: f"traces/{name}" for node, name in sets.per_node.items()}
    texts = _texts(workload, system, _network(workload, options), per_node)
    result = _result(workload, programs, texts, options, exact_ns)
    return replace(result, notes=tuple(notes))


def _result(
    workload: Workload,
    programs: Mapping[str, tuple[Algorithm, int | None]],
    texts: dict[str, str],
    options: JobWriteOptions,
    exact_ns: Int64Array,
) -> WriteResult:
    """The folder with its losses; `exact_ns`: durations by node before they were rounded."""
    traces = trace_files(_bare(workload), omitted=PRIVATE_ATTRIBUTES)
    # The script looks for as many traces as the largest has.
    ranks = [algorithm.num_ranks for algorithm, _ in programs.values()]
    texts[SCRIPT] = _script(workload, options, list(programs), max(ranks, default=0))
    artifacts = _loaded(_JobFolder(tuple(_named(traces, WORKLOAD)), programs, texts).artifacts())
    return WriteResult(artifacts, written_losses(artifacts, workload, exact_ns, options.network))


def _loaded(artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """The artifacts with their contents in memory: they are read back before they are written."""
    return tuple(Artifact(one.name, one.content(), one.executable) for one in artifacts)


def _as_algorithm(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """One collective a rank whose custom algorithm is the job: no slots, messages at once."""
    nodes = workload.nodes
    allowed = nodes.is_kind(NodeKind.COMPUTE, NodeKind.SEND, NodeKind.RECV)
    if not allowed.all():
        kind = NodeKind(nodes.kind[np.argmin(allowed)])
        message = f"a custom algorithm has no nodes of kind {kind.name.lower()}"
        is_collective = kind is NodeKind.COLLECTIVE
        cure = "run collhub expand first, or write form=workload"
        raise UsageError(message, cure=cure if is_collective else "write form=workload")
    # Neither 0 nor an unstated duration is shorter than 1 ns.
    duration = nodes.duration_ns[nodes.is_kind(NodeKind.COMPUTE)]
    is_inexact = (duration > 1) & (duration % _MICRO_NS > 0)
    if is_inexact.any():
        message = f"a custom algorithm cannot state {duration[is_inexact][0]} ns: 1 ns or whole us"
        raise UsageError(message, cure="write form=workload, in which ns are exact")
    # Its kind and size have no influence on what the traces say.
    marker = collective_workload([(CollectiveKind.ALL_REDUCE, 1 << 20)], in_group=False)
    system: dict[str, object] = {
        "scheduling-policy": "FIFO",
        "preferred-dataset-splits": 1,
        COLLECTIVE_KEYS[CollectiveKind.ALL_REDUCE]: [_JOB_TRACES],
    }
    texts = _texts(replace(workload, groups=()), system, _network(workload, options), {})
    texts[SCRIPT] = _script(workload, options, [_JOB_TRACES], workload.num_ranks)
    ranks = range(workload.num_ranks)
    starts = (Artifact(f"{WORKLOAD}.{rank}.et", marker) for rank in ranks)
    traces = trace_files(_bare(workload), profile="", omitted=PRIVATE_ATTRIBUTES)
    folder = _JobFolder((*_named(traces, _JOB_TRACES), *starts), {}, texts)
    artifacts = _loaded(folder.artifacts())
    return WriteResult(artifacts, written_losses(artifacts, workload, None, options.network))


def _texts(
    workload: Workload, system: Mapping[str, object], network: str, per_node: Mapping[int, str]
) -> dict[str, str]:
    texts = {SYSTEM: _json(system), NETWORK: network, MEMORY: _NO_MEMORY}
    if workload.groups:
        texts[GROUPS] = _json({group.name: list(group.ranks) for group in workload.groups})
    if per_node:
        texts[PER_NODE] = "".join(f"{node}: {prefix}\n" for node, prefix in per_node.items())
    return texts


def _script(workload: Workload, options: JobWriteOptions, prefixes: list[str], ranks: int) -> str:
    name = workload.provenance.source_name or "a job"
    return script(
        workload.num_ranks,
        prefixes,
        ranks,
        [f"{name}: {workload.num_ranks} ranks, {len(workload.nodes)} nodes"],
        is_congestion_aware=options.network == CONGESTION_AWARE,
        has_groups=bool(workload.groups),
    )


def _network(workload: Workload, options: JobWriteOptions) -> str:
    """The text of network.yml. Raises `UsageError` where ASTRA-sim has no such network."""
    if options.topology is None:
        bandwidth = _DEFAULT_BANDWIDTH_BYTES_PER_S
        whole = fully_connected(workload.num_ranks, bandwidth, _DEFAULT_LATENCY_S)
        return network_text(whole.dimensions)
    topology = parse_topology(options.topology)
    nodes = workload.nodes
    if nodes.is_kind(NodeKind.COLLECTIVE).any():
        # Native algorithms may send between any two ranks.
        pairs = np.meshgrid(*[np.arange(workload.num_ranks)] * 2)
        sources, destinations = (ends.ravel() for ends in pairs)
        is_other = sources != destinations
        sources, destinations = sources[is_other], destinations[is_other]
    else:
        is_send = nodes.is_kind(NodeKind.SEND)
        sources = nodes.rank[is_send].astype(np.int64)
        destinations = nodes.peer[is_send].astype(np.int64)
    is_aware = options.network == CONGESTION_AWARE
    found = expressed(topology, sources, destinations, is_congestion_aware=is_aware)
    return network_text(found.dimensions)


def _named(traces: Iterable[Artifact], prefix: str) -> Iterator[Artifact]:
    for trace in traces:
        yield Artifact(f"{prefix}{trace.name}", trace.content)


def _bare(workload: Workload) -> Workload:
    """The job without what other files of the folder hold."""
    kept = {key: value for key, value in workload.extensions.items() if key != EXTENSION}
    # Which algorithm a node runs stands in the map of nodes.
    nodes = workload.nodes
    plain = replace(nodes, algorithm=np.full_like(nodes.algorithm, -1))
    return replace(workload, nodes=plain, algorithms=(), extensions=kept)


def _listed(value: JsonValue) -> list[JsonValue]:
    # Extensions are JSON, which may hold anything.
    return value if isinstance(value, list) else []


def _pairs(value: JsonValue) -> list[tuple[str, str]]:
    found = value if isinstance(value, dict) else {}
    return [(key, str(each)) for key, each in found.items()]


def _json(value: object) -> str:
    # As in the examples of ASTRA-sim.
    return json.dumps(value, indent=2) + "\n"
