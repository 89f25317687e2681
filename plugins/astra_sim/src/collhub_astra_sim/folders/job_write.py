"""Write the folder of a job that ASTRA-sim runs without changes.

Inputs on which ASTRA-sim hangs are reported. A job that was read from such a folder is written back
with its configurations. Other jobs get them from options, with the cures of `job_preparation`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from collhub_job_traces import bridge_markers, trace_files

from collhub_astra_sim.folders.folder import (
    COLLECTIVE_KEYS,
    GROUPS,
    MEMORY,
    NETWORK,
    PER_NODE,
    PER_NODE_KEY,
    SCRIPT,
    SYSTEM,
    WORKLOAD,
    encode_collective_workload,
    format_json,
    script,
)
from collhub_astra_sim.folders.job_preparation import (
    EXACT_SYSTEM,
    CustomSets,
    apply_cures,
    carry_host_times,
    collect_custom_sets,
    compute_written_losses,
    needs_exact_times,
    set_exact_times,
)
from collhub_astra_sim.folders.read import PRIVATE_ATTRIBUTES
from collhub_astra_sim.networks.network_yaml import (
    find_astra_network,
    format_network,
    make_full_mesh,
)
from collhub_astra_sim.options import CONGESTION_AWARE, JobWriteOptions
from collhub_astra_sim.workloads.hazards import EXTENSION
from collhub_astra_sim.workloads.system import build_system, refuse_given
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
        """Yield all files of the folder: traces of algorithms, other traces, configurations.

        The traces of an algorithm are created here for its size in bytes; None means traces in
        chunks, without sizes. Their names are the algorithm's prefix and the name of the trace.
        Configurations are in the order of `texts`; only the script is executable. Raises
        `UsageError` and `InputError` as `chakra_traces` when it reaches an algorithm.
        """
        for prefix, (algorithm, size) in self.programs.items():
            for trace in chakra_traces(algorithm, TraceOptions(size)).artifacts:
                yield Artifact(f"{prefix}{trace.name}", trace.content)
        yield from self.traces
        for name, text in self.texts.items():
            yield Artifact(name, text.encode(), executable=name == SCRIPT)


def write(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """Write a job as a folder for ASTRA-sim (writer `astra-sim` of jobs).

    Marker nodes, which ASTRA-sim never finishes, are first replaced by dependencies between their
    neighbours. Then the first rule that applies decides:

    1. Option `form=custom`: one custom algorithm; system options do nothing.
    2. The job was read from a folder with a system.json: it keeps that folder's configurations;
       `topology` replaces the network. Raises `UsageError` for system options.
    3. Any other job gets configurations from the options. Only here has `host_times` an effect.

    The folder is read back and simulated. Rounded times, and reasons for which ASTRA-sim hangs or
    aborts, are losses. Raises `UsageError` and `InputError` for a job that ASTRA-sim cannot
    express, and in case 2 `ValueError` if the numbers of algorithms of job and folder differ.
    """
    workload = bridge_markers(workload).workload
    folder = workload.extensions.get(EXTENSION)
    if options.form == "custom":
        return _write_as_algorithm(workload, options)
    if isinstance(folder, dict) and isinstance(folder.get("system"), str):
        refuse_given(options)
        return _write_original(workload, folder, options)
    return _write_as_workload(workload, options)


def _write_original(
    workload: Workload, folder: Mapping[str, JsonValue], options: JobWriteOptions
) -> WriteResult:
    """Write a job with the configurations of the folder from which it was read.

    `folder`: these configurations, as the reader stored them. The system is kept, except that the
    paths of custom algorithms (by collective kind or by node) become prefixes in the new folder.
    Each algorithm keeps its prefix and collective size. The memory file is that of `folder`,
    otherwise the default one without memory models. The network is that of `folder`. With the
    option `topology`, or if `folder` has no network, `_write_network` builds it. Other options
    except `network` (the backend of run.sh and of the check) have no effect.

    All files are returned in memory; nothing is written to disk. The losses are those of
    `compute_written_losses`, which reads the files back and simulates them.

    Raises `KeyError` if `folder` has no `system`, `ValueError` if it has more or fewer prefixes
    than the job has algorithms, and the `UsageError` of `_write_network`.
    """
    # The paths in it were valid at the original location of the folder.
    system = json.loads(str(folder["system"]))
    # Extensions are JSON, which may have any type.
    custom = folder.get("custom")
    prefixes = [str(prefix) for prefix in custom] if isinstance(custom, list) else []
    for kind, prefix in _list_pairs(folder.get("by_kind")):
        system[COLLECTIVE_KEYS[CollectiveKind(kind)]] = [prefix]
    per_node = {int(node): prefix for node, prefix in _list_pairs(folder.get("per_node"))}
    if per_node:
        system[PER_NODE_KEY] = PER_NODE
    # Traces have the size with which they were read.
    sizes = [algorithm.collective_bytes for algorithm in workload.algorithms]
    programs = dict(zip(prefixes, zip(workload.algorithms, sizes, strict=True), strict=True))
    memory = folder.get("memory")
    network = folder.get("network")
    # Options can change only the network.
    if options.topology is not None or not isinstance(network, str):
        network = _write_network(workload, options)
    texts = _build_texts(workload, system, str(network), per_node)
    if isinstance(memory, str):
        texts[MEMORY] = memory
    return _build_result(workload, programs, texts, options, workload.nodes.duration_ns)


def _write_as_workload(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """Write a job as a folder of ASTRA-sim, with configurations from the options.

    1. Collectives with an algorithm become custom collectives, with traces in `traces/`.
    2. The job is changed so that ASTRA-sim can run it. A note describes each change.
    3. If a device computation has a duration above 0 that is no multiple of 1 us, all device
       computations are written as numbers of operations. Their ns are then exact, and a note is
       added. The step is omitted if an option gives the memory bandwidth or the peak TFLOPS.
    4. With `host_times=carry`, host times become whole us; the sum of a rank decreases by < 1 us.

    ASTRA-sim rounds all other durations down to us. The losses compare the durations before step 3
    with those of the files as read back. The result has all files in memory: traces of algorithms,
    traces of the job, configurations, run.sh. Raises `InputError` for a node with counts but no
    algorithm and for an algorithm of other ranks or kind, `UsageError` for unfit network options.
    """
    sets: CustomSets = collect_custom_sets(workload)
    workload, notes = apply_cures(sets.workload)
    exact_ns = workload.nodes.duration_ns
    system = build_system(options)
    if sets.per_node:
        system[PER_NODE_KEY] = PER_NODE
    has_roofline_options = options.memory_bandwidth is not None or options.peak_tflops is not None
    if needs_exact_times(workload) and not has_roofline_options:
        workload = set_exact_times(workload)
        system |= EXACT_SYSTEM
        notes.append("computations on devices are written as operations, so that ns are exact")
    if options.host_times == "carry":
        workload = carry_host_times(workload)
    # The directory of the workload's traces must contain no other set.
    programs = {f"traces/{name}": program for name, program in sets.programs.items()}
    per_node = {node: f"traces/{name}" for node, name in sets.per_node.items()}
    texts = _build_texts(workload, system, _write_network(workload, options), per_node)
    result = _build_result(workload, programs, texts, options, exact_ns)
    return replace(result, notes=tuple(notes))


def _build_result(
    workload: Workload,
    programs: Mapping[str, tuple[Algorithm, int | None]],
    texts: dict[str, str],
    options: JobWriteOptions,
    exact_ns: Int64Array,
) -> WriteResult:
    """Return the files of a job's folder, loaded into memory, with their losses.

    `programs`: algorithm and size in bytes (None: sizes in chunks) by the prefix of its
    traces. `texts`: configurations by file name; the script run.sh is added to it in place.
    The script requires of every prefix as many traces as the largest algorithm has ranks.
    The losses are those of `compute_written_losses`, which reads the files back, compares
    durations with `exact_ns` (ns of every node before rounding), and simulates the job. Raises
    the errors of `chakra_traces` for the algorithms (`UsageError`, `InputError`).
    """
    traces = trace_files(_remove_folder_data(workload), omitted=PRIVATE_ATTRIBUTES)
    # The script checks for the number of traces of the largest algorithm.
    ranks = [algorithm.num_ranks for algorithm, _ in programs.values()]
    texts[SCRIPT] = _build_script(workload, options, list(programs), max(ranks, default=0))
    artifacts = _load_artifacts(
        _JobFolder(tuple(_add_prefix(traces, WORKLOAD)), programs, texts).artifacts()
    )
    return WriteResult(
        artifacts, compute_written_losses(artifacts, workload, exact_ns, options.network)
    )


def _load_artifacts(artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Load the contents of artifacts into memory: they are read back before they are written."""
    return tuple(
        Artifact(artifact.name, artifact.content(), artifact.executable) for artifact in artifacts
    )


def _write_as_algorithm(workload: Workload, options: JobWriteOptions) -> WriteResult:
    """Write a job as a custom algorithm of ASTRA-sim, which one collective on all ranks executes.

    The workload file of every rank has only this collective: an all-reduce of 1 MiB, whose kind and
    size have no effect. So ASTRA-sim's limits on the nodes of a workload that run at once do not
    apply to the nodes of the job. Groups of the job are dropped. System options and `host_times`
    have no effect. The files are returned in memory: traces of the job, workload files,
    configurations, run.sh. The losses are those of `compute_written_losses`, without durations.

    Raises `UsageError` for the first of: the first node that is no computation, SEND or RECV; the
    first computation above 1 ns whose duration is no integer number of microseconds (0 and missing
    durations take 1 ns); a network that ASTRA-sim does not have, also one of fewer than two NPUs
    (`_write_network`). Errors of `parse_topology` for the option `topology` propagate.
    """
    nodes = workload.nodes
    allowed = nodes.is_kind(NodeKind.COMPUTE, NodeKind.SEND, NodeKind.RECV)
    if not allowed.all():
        kind = NodeKind(nodes.kind[np.argmin(allowed)])
        message = f"a custom algorithm has no nodes of kind {kind.name.lower()}"
        is_collective = kind is NodeKind.COLLECTIVE
        cure = "run collhub expand first, or write form=workload"
        raise UsageError(message, cure=cure if is_collective else "write form=workload")
    # 0 and missing durations both take 1 ns.
    duration = nodes.duration_ns[nodes.is_kind(NodeKind.COMPUTE)]
    is_inexact = (duration > 1) & (duration % _MICRO_NS > 0)
    if is_inexact.any():
        message = f"a custom algorithm cannot take {duration[is_inexact][0]} ns: 1 ns or whole us"
        raise UsageError(message, cure="write form=workload, in which ns are exact")
    # Its kind and size do not affect the traces.
    marker = encode_collective_workload([(CollectiveKind.ALL_REDUCE, 1 << 20)], in_group=False)
    system: dict[str, object] = {
        "scheduling-policy": "FIFO",
        "preferred-dataset-splits": 1,
        COLLECTIVE_KEYS[CollectiveKind.ALL_REDUCE]: [_JOB_TRACES],
    }
    texts = _build_texts(
        replace(workload, groups=()), system, _write_network(workload, options), {}
    )
    texts[SCRIPT] = _build_script(workload, options, [_JOB_TRACES], workload.num_ranks)
    ranks = range(workload.num_ranks)
    starts = (Artifact(f"{WORKLOAD}.{rank}.et", marker) for rank in ranks)
    traces = trace_files(_remove_folder_data(workload), profile="", omitted=PRIVATE_ATTRIBUTES)
    folder = _JobFolder((*_add_prefix(traces, _JOB_TRACES), *starts), {}, texts)
    artifacts = _load_artifacts(folder.artifacts())
    return WriteResult(
        artifacts, compute_written_losses(artifacts, workload, None, options.network)
    )


def _build_texts(
    workload: Workload, system: Mapping[str, object], network: str, per_node: Mapping[int, str]
) -> dict[str, str]:
    """Return the texts of a job's configuration files by file name, in this order:

    - `system.json`: `system` as JSON.
    - `network.yml`: the text `network`, unchanged.
    - `memory.json`: a configuration without a memory model.
    - `groups.json`, only if the job has groups: the ranks of each group by its name.
    - `algorithms.yml`, only if `per_node` is not empty: a line `NODE: PREFIX` per entry, with
      the identity of a node and the prefix of the files of its algorithm, in its order.

    The script `run.sh` and the traces are not included. No file is written.
    """
    texts = {SYSTEM: format_json(system), NETWORK: network, MEMORY: _NO_MEMORY}
    if workload.groups:
        texts[GROUPS] = format_json({group.name: list(group.ranks) for group in workload.groups})
    if per_node:
        texts[PER_NODE] = "".join(f"{node}: {prefix}\n" for node, prefix in per_node.items())
    return texts


def _build_script(
    workload: Workload, options: JobWriteOptions, prefixes: list[str], ranks: int
) -> str:
    """Return the text of run.sh for a job, a shell script that runs ASTRA-sim on its folder.

    The script runs the binary that the environment variable ASTRA_SIM_BIN names; the option
    `network` decides only which binary a comment and an error message name. `prefixes`:
    sets of traces that must exist in addition to those of the workload; `ranks`: number of
    traces of each set. The script passes the groups file if the job has groups. A comment
    has the source name of the job, or "a job" without one.
    """
    name = workload.provenance.source_name or "a job"
    return script(
        workload.num_ranks,
        prefixes,
        ranks,
        [f"{name}: {workload.num_ranks} ranks, {len(workload.nodes)} nodes"],
        is_congestion_aware=options.network == CONGESTION_AWARE,
        has_groups=bool(workload.groups),
    )


def _write_network(workload: Workload, options: JobWriteOptions) -> str:
    """Return the text of network.yml for the options `topology` and `network`.

    Without `topology` it is a full mesh of the workload's ranks. Its links have 50 GiB/s
    (`_DEFAULT_BANDWIDTH_BYTES_PER_S`) and 500 ns (`_DEFAULT_LATENCY_S`). Fewer than two ranks give
    `UsageError` (`too-few-npus`). The option `network` has no effect.

    With `topology`, rank r is NPU r; the number of NPUs is not compared with the number of ranks.
    `find_astra_network` chooses the network. Its inputs are the backend (`network`:
    congestion-aware or not) and the pairs of NPUs that may communicate. These are all pairs of
    different ranks if the job has a collective, otherwise sender and receiver of each SEND. The
    network may be a full mesh instead of the dimensions of the topology; this loss is not
    reported. Raises `UsageError` (`inexpressible-topology`, `too-few-npus`) and the errors of
    `parse_topology`.
    """
    if options.topology is None:
        bandwidth = _DEFAULT_BANDWIDTH_BYTES_PER_S
        network = make_full_mesh(workload.num_ranks, bandwidth, _DEFAULT_LATENCY_S)
        return format_network(network.dimensions)
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
    network = find_astra_network(topology, sources, destinations, is_congestion_aware=is_aware)
    return format_network(network.dimensions)


def _add_prefix(traces: Iterable[Artifact], prefix: str) -> Iterator[Artifact]:
    """Yield the traces with a prefix before their names."""
    for trace in traces:
        yield Artifact(f"{prefix}{trace.name}", trace.content)


def _remove_folder_data(workload: Workload) -> Workload:
    """Return a copy of a job without its algorithms and the configurations of its folder.

    Both are written to separate files. The column `algorithm` of all nodes becomes -1, and
    the entry `EXTENSION` of the extensions is removed. The job itself is not changed.
    """
    extensions = {key: value for key, value in workload.extensions.items() if key != EXTENSION}
    # The map of nodes contains the algorithm of each node.
    nodes = workload.nodes
    plain = replace(nodes, algorithm=np.full_like(nodes.algorithm, -1))
    return replace(workload, nodes=plain, algorithms=(), extensions=extensions)


def _list_pairs(value: JsonValue) -> list[tuple[str, str]]:
    """Return the items of a JSON object as (name, text) in its order; [] for any other value.

    Values that are no strings are converted by `str`.
    """
    entries = value if isinstance(value, dict) else {}
    return [(key, str(item)) for key, item in entries.items()]
