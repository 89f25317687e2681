"""The simulator of jobs, from a folder for ASTRA-sim or from traces with a system by options.

Also the check of jobs of such folders: hazards of nodes, and those that only a simulation shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import CONGESTION_AWARE, CONGESTION_UNAWARE, JobOptions
from collhub_astra_sim.workloads.choices import NamedAlgorithms
from collhub_astra_sim.workloads.hazards import ABORTS, EXTENSION, find_hazards, report_empty_work
from collhub_astra_sim.workloads.simulate import (
    ASTRA_SIM_SLOTS,
    LayerTimes,
    add_marker_times,
    make_unstarted_times,
    run_workload_layer,
)
from collhub_astra_sim.workloads.stopped_jobs import find_network_abort
from collhub_astra_sim.workloads.system import (
    NATIVE_TYPES,
    RemoteMemory,
    System,
    build_system,
    refuse_given,
)
from hub_core import HubError, NodeTable, UsageError
from hub_core.model import (
    Diagnostic,
    InputError,
    JobCollective,
    JsonValue,
    NodeKind,
    Severity,
    Workload,
)
from hub_core.network import Topology
from hub_core.plugin_api import (
    CheckReport,
    CheckRequest,
    NoOptions,
    Source,
    WorkloadRequest,
    WorkloadTimes,
)


def simulate(request: WorkloadRequest, options: JobOptions) -> WorkloadTimes:
    """Simulate a job; return the times of its ranks and nodes in ns (simulator `analytical`).

    A job from a folder for ASTRA-sim: see `_simulate_folder`. If ASTRA-sim would abort, and the
    option `slots` is that of ASTRA-sim, no rank has a time, and findings give the reasons.

    Any other job runs on the network of the request, otherwise on that of `read_input_topology`.
    The options give the system, without memory for LOAD and STORE, and the backend, by default
    congestion-aware. Markers (nodes without work) are bridged before. A marker has the time of the
    end of its last parent, 0 without parents. Findings about computations without work come last.

    Raises `UsageError` without a network, and for a folder if options of the system are given.
    Raises `InputError` for an invalid system, network or job, and errors of the simulation.
    """
    folder = request.workload.extensions.get(EXTENSION)
    if isinstance(folder, dict):
        return _simulate_folder(request, folder, options)
    system, _ = _read_system({}, options)
    backend = options.network or CONGESTION_AWARE
    # Imported here, because a job of a folder retains its markers.
    from collhub_job_traces import bridge_markers

    workload, simulated_rows = bridge_markers(request.workload)
    topology = request.topology
    if topology is None and request.read_input_topology is not None:
        topology = request.read_input_topology()
    if topology is None:
        raise UsageError("the job has no network", cure="name one with --topology")
    times = _run_simulation(
        workload, topology, system, {}, None, options, backend, request.wants_transfers
    )
    start, end = add_marker_times(request.workload, simulated_rows, times.start_ns, times.end_ns)
    findings = (*times.diagnostics, *report_empty_work(workload, system))
    transfers = times.transfers
    if transfers is not None:
        transfers = replace(transfers, row=simulated_rows[transfers.row])
    times = replace(times, start_ns=start, end_ns=end, diagnostics=findings, transfers=transfers)
    return _convert_times(times, options, backend)


def _simulate_folder(
    request: WorkloadRequest, folder: Mapping[str, JsonValue], options: JobOptions
) -> WorkloadTimes:
    """Simulate a job from a folder for ASTRA-sim, or report why ASTRA-sim would abort.

    Network: that of the request, else of the folder. Backend: that of `options`, else of the
    folder, else congestion-aware. Reasons to abort are errors, in this order:

    1. Hazards of the job with a code in `ABORTS`.
    2. The error of `find_network_abort`, if `options` or `folder` names the backend. Without a
       named backend the congestion-unaware one is used instead, and the error becomes a final
       warning. A network of the request is checked only if it has exactly one dimension.

    With a reason and the option `slots` of ASTRA-sim, no rank has a time, and the reasons are the
    only findings. Otherwise the job is simulated, and reasons are not reported. Raises `UsageError`
    without a network, or for options of the system if the folder has a system.
    """
    workload = request.workload
    system, memory = _read_system(folder, options)
    topology = request.topology
    if topology is None:
        text = folder.get("network")
        if not isinstance(text, str):
            raise UsageError("the job has no network", cure="name one with --topology")
        topology = network_yaml.read(Source.of_bytes("network.yml", text.encode()), NoOptions())
    aborts = [finding for finding in find_hazards(workload, system) if finding.code in ABORTS]
    backend = options.network or folder.get("backend")
    on_network = None
    # Several dimensions with congestion are simulated if the user names the network.
    if request.topology is None or len(topology.dimensions) == 1:
        on_network = find_network_abort(topology, str(backend or CONGESTION_AWARE))
    notes: tuple[Diagnostic, ...] = ()
    if on_network is not None and backend is None:
        backend = CONGESTION_UNAWARE
        message = f"{on_network.message}; these are the times of the congestion-unaware one"
        cure = "-O network=congestion-unaware chooses it"
        notes = (replace(on_network, message=message, severity=Severity.WARNING, cure=cure),)
    elif on_network is not None:
        aborts.append(on_network)
    backend = str(backend or CONGESTION_AWARE)
    if aborts and options.slots == ASTRA_SIM_SLOTS:
        no_times = (None,) * workload.num_ranks
        times = LayerTimes(
            no_times, no_times, *make_unstarted_times(workload), (), tuple(aborts), 0
        )
        return _convert_times(times, options, backend)
    times = _run_simulation(
        workload, topology, system, folder, memory, options, backend, request.wants_transfers
    )
    return _convert_times(replace(times, diagnostics=times.diagnostics + notes), options, backend)


def _run_simulation(
    workload: Workload,
    topology: Topology,
    system: System,
    folder: Mapping[str, JsonValue],
    memory: RemoteMemory | None,
    options: JobOptions,
    backend: str,
    wants_transfers: bool,
) -> LayerTimes:
    """Simulate a job with the custom algorithms of its folder and nodes; return times in ns.

    `folder`: the configurations of the job's folder, {} without one; its member `per_node` maps the
    identity of a node, as text, to the prefix of its algorithm. Without it, no node has one.
    `memory`: the remote memory of LOAD and STORE nodes; None refuses these nodes. `backend`:
    messages share links only with the congestion-aware one. `wants_transfers`: also report messages
    on shared links. Queues, rendezvous and slots are those of `options`.

    The simulation stops where ASTRA-sim aborts, only if `folder` is not empty and `options.slots`
    is `ASTRA_SIM_SLOTS`. Raises `InputError` (`no-algorithm`) for a collective node that names an
    algorithm although its kind cannot have one. Errors of `run_workload_layer` are passed on.
    """
    algorithms = _read_algorithms(workload, folder, system)
    named = _add_named_algorithms(workload, algorithms)
    # The prefixes of custom algorithms by identity of nodes.
    mapping = folder.get("per_node")
    pairs = mapping if isinstance(mapping, dict) else {}
    return run_workload_layer(
        workload,
        topology,
        system,
        algorithms=algorithms,
        per_node={int(node): str(prefix) for node, prefix in pairs.items()},
        named=named,
        queues=options.queues,
        rendezvous=options.rendezvous,
        memory=memory,
        backend=backend,
        slots=options.slots,
        stops_at_abort=bool(folder) and options.slots == ASTRA_SIM_SLOTS,
        wants_transfers=wants_transfers,
    )


def _convert_times(times: LayerTimes, options: JobOptions, backend: str) -> WorkloadTimes:
    """Convert the simulated times to the result that the hub reports."""
    return WorkloadTimes(
        times.rank_finish_ns,
        times.start_ns,
        times.end_ns,
        times.link_loads,
        times.diagnostics,
        rank_exposed_ns=times.rank_exposed_ns,
        transfers=times.transfers,
        slots=options.slots,
        details={"events": times.events, "network": backend},
    )


def _read_system(
    folder: Mapping[str, JsonValue], options: JobOptions
) -> tuple[System, RemoteMemory | None]:
    """Return the system of a folder or of the options, and the remote memory or None.

    If `folder` has a text `system`, the system is read from it, and the memory from the
    text `memory` (None if there is no such text). Otherwise the system is that of
    `options`, and the memory is None. Raise `UsageError` if options of the system are given
    although the folder has a system, and `InputError` for an invalid configuration.
    """
    text, memory = folder.get("system"), folder.get("memory")
    if not isinstance(text, str):
        return System.of_json(json.dumps(build_system(options)), "the options"), None
    refuse_given(options)
    remote_memory = RemoteMemory.of_json(memory) if isinstance(memory, str) else None
    return System.of_json(text), remote_memory


def _read_algorithms(
    workload: Workload, folder: Mapping[str, JsonValue], system: System
) -> dict[str, NodeTable]:
    """Return the trace nodes of a folder's custom algorithms, by prefix of their trace files.

    Prefix i of the list `custom` of `folder` belongs to `workload.algorithms[i]`. A list of
    different length is cut to the shorter one. An algorithm without a size is used with 0
    bytes. The result is {} if `custom` is no list or empty, or `by_kind` is no map.

    The map `by_kind` gives a prefix for a kind of collective. For each kind in
    `system.custom`, the nodes of that prefix also get the key that `system.custom` has for the
    kind: a path. Raises `KeyError` if `by_kind` lacks the kind, or if the prefix has no nodes.
    """
    prefixes, by_kind = folder.get("custom"), folder.get("by_kind")
    if not isinstance(prefixes, list) or not prefixes or not isinstance(by_kind, dict):
        return {}
    # Imported here, because most jobs have no custom algorithms.
    from hub_core import chakra_nodes

    tables = {
        str(prefix): chakra_nodes(algorithm, algorithm.collective_bytes or 0)
        # Nodes name further algorithms.
        for prefix, algorithm in zip(prefixes, workload.algorithms, strict=False)
    }
    # A configuration names traces by a path relative to the simulator's working directory.
    for kind, configured_prefix in system.custom.items():
        prefix_of_folder = by_kind.get(str(kind.kind))
        tables[configured_prefix] = tables[str(prefix_of_folder)]
    return tables


def _add_named_algorithms(
    workload: Workload, algorithms: dict[str, NodeTable]
) -> NamedAlgorithms | None:
    """Add the traces of all algorithms that nodes refer to; return which one each node uses.

    Only collective nodes count. `algorithms` gets one table of nodes for each distinct pair of
    algorithm I (index in `workload.algorithms`) and size S, with the name `algorithm I for S
    bytes`. S is the bytes of the node (0 if unknown), for an all-gather of equal parts times the
    members of its group: a node has the input of a rank, an algorithm the entire output.

    `names` of the result are these names, sorted by I, then by S. `number` has for every node of
    the job the index of its name, -1 for none. The result is None if no collective refers to an
    algorithm. Raises `InputError` (`no-algorithm`) if the kind of such a collective is not in
    `NATIVE_TYPES`.
    """
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.algorithm >= 0))
    if not len(rows):
        return None
    is_other = ~np.isin(nodes.collective[rows], NATIVE_TYPES)
    if is_other.any():
        row = int(rows[np.argmax(is_other)])
        message = "ASTRA-sim runs no algorithm for this kind of collective"
        cure = "run collhub expand, which replaces it by messages"
        raise InputError(message, location=nodes.location(row), cure=cure, code="no-algorithm")
    # Imported here, because most jobs name none.
    from hub_core import chakra_nodes

    members = [len(workload.members(group)) for group in range(-1, len(workload.groups))]
    # Jobs count the input of a rank of an all-gather, algorithms the entire output.
    is_gather = (nodes.collective[rows] == JobCollective.ALL_GATHER) & (nodes.counts[rows] < 0)
    parts = np.where(is_gather, np.array(members)[nodes.group[rows] + 1], 1)
    keys = np.stack([nodes.algorithm[rows].astype(np.int64), nodes.bytes[rows].clip(0) * parts])
    distinct_keys, key_of_row = np.unique(keys, axis=1, return_inverse=True)
    names = tuple(f"algorithm {index} for {size} bytes" for index, size in distinct_keys.T.tolist())
    for name, (index, size) in zip(names, distinct_keys.T.tolist(), strict=True):
        algorithm = workload.algorithms[index]
        algorithms[name] = chakra_nodes(algorithm, size)
    number = np.full(len(nodes), -1, np.int64)
    number[rows] = key_of_row.reshape(-1)
    return NamedAlgorithms(names, number)


MAX_FINDINGS = 8
"""Maximum number of listed findings of a simulation; a job that hangs has one per rank."""


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check a workload that was read from a folder for ASTRA-sim for inputs on which it fails.

    A workload without the system configuration of such a folder gives a passed report that is not
    applicable. The findings are:
    1. Hazards: inputs on which ASTRA-sim is known to hang, abort or compute wrong results
       (`find_hazards`).
    2. In a thorough check, if no hazard is an error and the folder has a network: findings of a
       simulation of the job on this network with default options. There are at most `MAX_FINDINGS`
       with different messages, then one with the number of the remaining ones. A `HubError` of the
       simulation is not raised: its diagnostics are the findings. Only the simulation detects
       collectives in an order that hangs, and messages that abort.

    The check fails if a finding is an error. The file of each finding is the source name of the
    workload, None without one. Raises `UsageError` without a workload, and `InputError` for an
    invalid system configuration.
    """
    if request.workload is None:
        raise UsageError("the check needs a workload")
    extension = request.workload.extensions.get(EXTENSION)
    system = extension.get("system") if isinstance(extension, dict) else None
    if not isinstance(extension, dict) or not isinstance(system, str):
        return CheckReport(True, is_applicable=False)
    findings = list(find_hazards(request.workload, System.of_json(system)))
    is_fatal = any(finding.severity is Severity.ERROR for finding in findings)
    if request.is_thorough and not is_fatal and isinstance(extension.get("network"), str):
        findings += _simulate_findings(request.workload)
        is_fatal = any(finding.severity is Severity.ERROR for finding in findings)
    file = request.workload.provenance.source_name or None
    located = [
        replace(finding, location=replace(finding.location, file=file)) for finding in findings
    ]
    return CheckReport(not is_fatal, diagnostics=tuple(located))


def _simulate_findings(workload: Workload) -> Iterator[Diagnostic]:
    """Simulate a job with default options; yield its findings by rank, at most `MAX_FINDINGS`.

    - Of findings with equal messages, only the first in the order of the simulation counts.
    - The findings of a rank are in the order of the simulation. A finding without a rank is sorted
      as one of rank 0.
    - If more than `MAX_FINDINGS` different findings exist, an additional one states the number of
      the others. It has the code of the last finding in the sorted order.

    If the simulation raises a `HubError`, all its diagnostics are yielded instead, without a limit.
    """
    try:
        times = simulate(WorkloadRequest(workload), JobOptions())
    except HubError as error:
        yield from error.diagnostics
        return
    first: dict[str, Diagnostic] = {}
    for finding in times.diagnostics:
        first.setdefault(finding.message, finding)
    different = sorted(first.values(), key=lambda finding: finding.location.rank or 0)
    yield from different[:MAX_FINDINGS]
    if len(different) > MAX_FINDINGS:
        more = f"{len(different) - MAX_FINDINGS} more findings are listed by collhub simulate"
        yield Diagnostic(different[-1].code, more)
