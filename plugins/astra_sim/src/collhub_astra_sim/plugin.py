"""Offers of this distribution to the hub: folders for ASTRA-sim, its networks, and simulators.

Heavy imports are inside functions because listing the plugins imports this module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from collhub_astra_sim import networks
from collhub_astra_sim.options import (
    AnalyticalOptions,
    AstraBinaryOptions,
    AstraFolderOptions,
    AstraFolderReadOptions,
    JobFolderOptions,
    JobOptions,
    JobWriteOptions,
    NativeAlgorithmOptions,
    Ns3WriteOptions,
)
from hub_core.model import CollectiveKind
from hub_core.plugin_api import (
    Check,
    CheckLine,
    CheckReport,
    CheckRequest,
    Command,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    RuleSet,
    SimulationRequest,
    Simulator,
    Subject,
    Synthesizer,
    TopologyReader,
    TopologyWriter,
    WarmOptions,
    WorkloadReader,
    WorkloadRequest,
    WorkloadSimulator,
    WorkloadWriter,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

ANALYTICAL = Simulator(
    "analytical",
    "ASTRA-sim's analytical timing model, exact to the cycle, on any topology",
    "collhub_astra_sim.simulating.analytical:simulate",
    AnalyticalOptions,
    places_ranks=True,
    scales=True,
)

ASTRA_SIM = Simulator(
    "astra-sim",
    "the real ASTRA-sim (analytical backends), run as a program that the user names",
    "collhub_astra_sim.binary:simulate",
    AstraBinaryOptions,
    places_ranks=True,
)

_FOLDER = Format(
    "astra-sim",
    "a folder that ASTRA-sim runs as it is: traces, configurations and run.sh",
    # The system configuration identifies such a folder: it names custom algorithms.
    (".json",),
    rb'"([a-z-]+-implementation-custom|per-node-custom-implementation)"',
    layout=Layout.FOLDER,
)

_JOB = Format(
    "astra-sim-job",
    "a folder that ASTRA-sim runs as it is, whose workload is a whole job",
    (".json",),
    rb'"([a-z-]+-implementation(-custom)?|per-node-custom-implementation)"',
    layout=Layout.FOLDER,
    # Of the system configuration, so that an error about this file names the folder.
    members=(
        "scheduling-policy",
        "endpoint-delay",
        "active-chunks-per-dimension",
        "preferred-dataset-splits",
        "all-reduce-implementation",
    ),
)

JOB_READER = WorkloadReader(
    _JOB,
    "collhub_astra_sim.folders.read:read_job",
    JobFolderOptions,
    claims="collhub_astra_sim.folders.read:claims",
    network="collhub_astra_sim.folders.read:read_network",
)

JOB_SIMULATOR = WorkloadSimulator(
    "analytical",
    "ASTRA-sim's workload layer, exact to the cycle",
    "collhub_astra_sim.workloads.simulator:simulate",
    JobOptions,
)

JOB_FOLDER = WorkloadWriter(_FOLDER, "collhub_astra_sim.folders.job_write:write", JobWriteOptions)

FOLDER = FormatWriter(_FOLDER, "collhub_astra_sim.folders.write:write", AstraFolderOptions)

FOLDER_READER = FormatReader(_FOLDER, "collhub_astra_sim.folders.read:read", AstraFolderReadOptions)

FOLDER_NETWORK = TopologyReader(
    # Folders of jobs have networks too.
    replace(_FOLDER, signature=_JOB.signature),
    "collhub_astra_sim.folders.read:read_network",
    samples="collhub_astra_sim.samples:samples",
)

NETWORK_YAML = TopologyReader(
    Format(
        "astra-sim-network",
        "network YAML of ASTRA-sim",
        (".yml", ".yaml"),
        networks.NETWORK_YAML,
        members=("topology", "npus_count", "bandwidth", "latency"),
    ),
    "collhub_astra_sim.networks.network_yaml:read",
    samples="collhub_astra_sim.networks.network_yaml:samples",
)

NETWORK_JSON = TopologyReader(
    Format(
        "astra-sim-1-network",
        "network JSON of ASTRA-sim 1",
        (".json",),
        networks.NETWORK_JSON,
        members=(
            "topology-name", "topologies-per-dim", "dimensions-count", "units-count", "links-count",
            "link-latency", "link-bandwidth",
        ),
    ),
    "collhub_astra_sim.networks.network_json:read",
    samples="collhub_astra_sim.networks.network_json:samples",
)  # fmt: skip

_NS3 = Format("ns3", "network of ASTRA-sim's ns-3 backend, or SimAI's", (".txt",), networks.NS3)
_HTSIM = Format("htsim", "fat tree for htsim, also ASTRA-sim's", (".topo",), networks.HTSIM)
_NETWORKS = "collhub_astra_sim.networks"

CABLES: Sequence[TopologyReader | TopologyWriter] = (
    TopologyReader(_NS3, f"{_NETWORKS}.ns3:read", samples="collhub_astra_sim.samples:ns3"),
    TopologyWriter(_NS3, f"{_NETWORKS}.ns3:write", Ns3WriteOptions),
    TopologyReader(
        _HTSIM, f"{_NETWORKS}.fat_trees:read", samples="collhub_astra_sim.samples:htsim"
    ),
    TopologyWriter(_HTSIM, f"{_NETWORKS}.htsim_write:write"),
)

SEVERAL = Command(
    "astra-sim",
    "Write several algorithms and sizes as one folder for ASTRA-sim.",
    "collhub_astra_sim.folders.command:astra_sim",
)

_NATIVE = "collhub_astra_sim.synthesize"
# Each native algorithm supports the first few of these.
_NATIVE_COLLECTIVES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)

NATIVE_ALGORITHMS = tuple(
    Synthesizer(
        name,
        f"ASTRA-sim's own {title}, with the delays of its endpoints",
        f"{_NATIVE}:{name.replace('-', '_')}",
        NativeAlgorithmOptions,
        collectives=_NATIVE_COLLECTIVES[:count],
    )
    for name, title, count in (
        ("astra-ring", "ring", 4),
        ("astra-direct", "direct exchange", 4),
        ("astra-halving-doubling", "halving and doubling", 3),
        ("astra-double-binary-tree", "double binary tree, one of the two", 1),
    )
)

BINARY = Check(
    "astra-sim",
    Subject.INSTALLATION,
    "whether the ASTRA-sim binary that is named, if any, gives the known time of one message",
    "collhub_astra_sim.binary:check",
)

KERNELS = Check(
    "analytical-kernels",
    Subject.INSTALLATION,
    "compiles the kernels beforehand, for doctor --warm",
    "collhub_astra_sim.plugin:check",
    WarmOptions,
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader | WorkloadReader | Synthesizer]:
    """Return the offers of readers of folders and of synthesizers of native algorithms."""
    return [FOLDER_READER, JOB_READER, *NATIVE_ALGORITHMS]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | WorkloadWriter | Simulator | WorkloadSimulator]:
    """Return the offers of writers of folders and of simulators.

    Each offer names its function as text, so that listing it does not import the function.
    """
    return [FOLDER, JOB_FOLDER, ANALYTICAL, ASTRA_SIM, JOB_SIMULATOR]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyWriter]:
    """Return the offers of readers and writers of networks, in files and in folders."""
    return [NETWORK_YAML, NETWORK_JSON, FOLDER_NETWORK, *CABLES]


HAZARDS = Check(
    "astra-sim-hazards",
    Subject.WORKLOAD,
    "inputs on which ASTRA-sim hangs or aborts, in jobs of its own folders",
    "collhub_astra_sim.workloads.simulator:check",
)


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return the checks of this plugin and the rules of its findings.

    They are `BINARY` (of the ASTRA-sim binary), `HAZARDS` (of jobs), `KERNELS` (compiled in
    advance), and the rules of the readers of folders and networks. The plugin system calls this
    function.
    """
    rules = "collhub_astra_sim.rules:list_rules"
    return [
        BINARY,
        HAZARDS,
        KERNELS,
        RuleSet("astra-sim", "findings in folders and networks of simulators", rules),
    ]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the offer of the command that writes several algorithms."""
    return [SEVERAL]


_WARM_BYTES = 64


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the simulation kernels that are not stored yet, if the option `warm` is set.

    Later simulations then start without compiling. Small simulations on two ranks run every
    kernel: a ring all-reduce, a training step, and the tables of a custom algorithm. The check
    passes, with the elapsed seconds in its line; errors of the simulations are raised, for example
    if a kernel cannot be compiled. Without `warm` no code is compiled, and the check passes without
    a line.
    """
    if not options.warm:
        return CheckReport(True)
    start = time.perf_counter()
    # Imported here, so that a check that is not requested needs no time.
    from collhub_kernels import compile_at_once

    from collhub_astra_sim.simulating.analytical import simulate
    from collhub_astra_sim.workloads.collective_plans import build_custom_tables
    from collhub_astra_sim.workloads.simulator import simulate as simulate_job
    from hub_core import chakra_nodes, parse_topology
    from hub_core.testing import ring_all_reduce, training_step

    network, algorithm = parse_topology("ring:2"), ring_all_reduce(2)
    with compile_at_once():
        simulate(SimulationRequest(algorithm, network, _WARM_BYTES), AnalyticalOptions())
        simulate_job(WorkloadRequest(training_step(num_ranks=2), network), JobOptions())
        build_custom_tables([chakra_nodes(algorithm, _WARM_BYTES)])
    details = f"ready after {time.perf_counter() - start:.1f} s"
    return CheckReport(True, lines=(CheckLine("kernels", True, details),))
