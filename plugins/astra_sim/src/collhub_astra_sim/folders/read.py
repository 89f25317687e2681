"""Readers of folders that ASTRA-sim runs: one algorithm, its network, or the job of the workload.

A folder whose workload is one custom algorithm is read as an algorithm (`read`); any other workload
is read as a job (`read_job`). `claims` decides between both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from collhub_job_traces import JobReadOptions
from collhub_job_traces import read as read_traces

from collhub_astra_sim import networks
from collhub_astra_sim.folders.configurations import (
    AlgorithmUses,
    FolderAlgorithm,
    FolderConfiguration,
    FolderFiles,
    find_workload_prefix,
    read_configuration,
    read_groups,
)
from collhub_astra_sim.folders.folder import BINARY_NAMES, MEMORY, NETWORK, NETWORK_KEY, SCRIPT
from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import (
    CONGESTION_AWARE,
    CONGESTION_UNAWARE,
    AstraFolderReadOptions,
    JobFolderOptions,
)
from collhub_astra_sim.workloads.hazards import EXTENSION
from hub_core import ChakraReadOptions, HubError, chakra_algorithm
from hub_core.chakra import Batch, NodeType, ShapeBook, TraceError, decode_nodes, open_rank_file
from hub_core.model import (
    Algorithm,
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    ProcessGroup,
    Severity,
    Workload,
    placed,
)
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source, SourcePart


def read(source: Source, options: AstraFolderReadOptions) -> Algorithm:
    """Read an algorithm from a folder (format `astra-sim`), placed on the NPUs that run it.

    If the user opened the traces of one algorithm, only these traces are read in two cases: the
    configuration of their folder is invalid (reported as a warning), or it does not use them. No
    option `algorithm` or `group`, size or placement then applies. In all other cases:

    - Algorithm: the option `algorithm`, else the opened traces, else the only one of the folder.
    - Size: that in the traces. If they have sizes in chunks only, the `comm_size` of the workload.
    - Placement: rank i is on the i-th NPU of the option `group`, else of the only group that runs
      the algorithm, else on NPU i.

    A note (`congestion-unaware`) is reported if the script of the folder runs that backend. Raises
    `InputError` (`astra-sim-folder`) for missing or ambiguous parts, and if the numbers of traces
    and of NPUs (those of the group or of the folder) differ. Errors of the readers are raised.
    """
    files = FolderFiles.of(source)
    named = files.chosen_prefix
    if named is None:
        configuration = read_configuration(files, options.workload)
    else:
        surrounding = _read_surrounding_configuration(files, options)
        if surrounding is None or named not in surrounding.algorithms:
            return _read_traces(files, named, options)
        configuration = surrounding
    used = _select_algorithm(files, configuration, named, options.algorithm)
    algorithm = _read_traces(files, used.prefix, options)
    if algorithm.collective_bytes is None and used.comm_size is not None:
        # Sizes in chunks: the workload's node gives the size.
        algorithm = replace(algorithm, collective_bytes=used.comm_size)
    script = files.files.get(SCRIPT)
    if script is not None and BINARY_NAMES[False].encode("ascii") in script.load():
        finding = Diagnostic(
            "congestion-unaware",
            "the folder is for ASTRA-sim's congestion-unaware backend",
            Severity.NOTE,
            Location(script.name),
            cure="-O network=congestion-unaware simulates as it does",
        )
        files.source.report(finding)
    members = _select_members(files, configuration, used, options.group)
    count = len(members) if members is not None else configuration.num_npus or algorithm.num_ranks
    if count != algorithm.num_ranks:
        message = f"{algorithm.num_ranks} ranks have traces, {count} NPUs run them"
        raise files.error(message, "provide one trace for every NPU that takes part")
    return placed(algorithm, members or range(count))


# The backends read YAML, and JSON as a kind of it.
_NETWORK_SUFFIXES = (".yml", ".yaml", ".json")


def read_network(source: Source, options: NoOptions) -> Topology:
    """Read the network of a folder: its only network file, or the `network.yml` at its root.

    A file with the suffix .yml or .yaml is a network if it matches the signature of the format or
    contains `NETWORK_KEY`, one with the suffix .json only if it contains this key. Only the first
    64 files with these suffixes are considered, sorted by depth of their folder, then by path.
    Empty files and files above 1 MiB are skipped (`FolderFiles.texts`).

    Raises `InputError` if no network is found, if there are several without the `network.yml` at
    the root (both `astra-sim-folder`), and for a file that the network reader refuses.
    """
    files = FolderFiles.of(source)
    signature = re.compile(networks.NETWORK_YAML)
    names = [
        file
        for file, text in files.texts(*_NETWORK_SUFFIXES)
        if NETWORK_KEY in text or (not file.endswith(".json") and signature.search(text))
    ]
    if NETWORK in names:
        names = [NETWORK]
    if len(names) != 1:
        several = f"several files describe networks: {', '.join(names[:8])}"
        message = several if names else "the folder has no network"
        raise files.error(message, "name the network with --topology")
    part = files.files[names[0]]
    return network_yaml.read(Source(part.name, (part,), source.report), options)


def _read_surrounding_configuration(
    files: FolderFiles, options: AstraFolderReadOptions
) -> FolderConfiguration | None:
    """Read the configuration of the traces' folder; None, with a warning, if it is invalid."""
    try:
        return read_configuration(files, options.workload)
    except InputError as error:
        # Other files in the folder may be unrelated to the traces.
        finding = error.diagnostics[0]
        message = f"{finding.message}; the traces are read without size, network and groups"
        files.source.report(replace(finding, message=message, severity=Severity.WARNING))
        return None


def _read_traces(files: FolderFiles, prefix: str, options: AstraFolderReadOptions) -> Algorithm:
    """Read the algorithm of one set of traces.

    Raises `InputError` if they are no algorithm, and `KeyError` for a prefix without traces.
    """
    return chakra_algorithm(files.source_of(prefix), options)


def _select_algorithm(
    files: FolderFiles,
    configuration: FolderConfiguration,
    named: str | None,
    option_name: str | None,
) -> FolderAlgorithm:
    """Return the algorithm that the user chose, or the only one of the folder.

    - If `option_name` (option `algorithm`) is not None, the candidates are the algorithms whose
      prefix or name equals it. The name is the last part of the prefix: `a/ring` has `ring`.
      `named` is then ignored.
    - Otherwise, if `named` is not None, the candidate is the algorithm with this prefix. `named` is
      the prefix of the traces that the user opened; it is not compared with names.
    - Otherwise all algorithms of `configuration` are candidates.

    Raises `InputError` unless exactly one candidate exists, also if two algorithms have the name
    `option_name`.
    """
    algorithms = configuration.algorithms
    if option_name is not None:
        fitting = [
            algorithm
            for algorithm in algorithms.values()
            if option_name in (algorithm.prefix, algorithm.name)
        ]
    else:
        fitting = [
            algorithm for algorithm in algorithms.values() if named in (None, algorithm.prefix)
        ]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(algorithm.name for algorithm in algorithms.values())
    if option_name is not None:
        message, cure = f"there is no algorithm {option_name[:80]!r} in it", f"name one of {names}"
    else:
        message = f"the folder contains {len(algorithms)} algorithms: {names}"
        cure = "name one with -O algorithm=NAME"
    raise files.error(message, cure)


def _select_members(
    files: FolderFiles,
    configuration: FolderConfiguration,
    used: FolderAlgorithm,
    option_group: str | None,
) -> tuple[int, ...] | None:
    """Return the NPUs that run an algorithm, one per rank; None for all NPUs.

    The group is `option_group` if it is not None, even if no node of this group runs `used`.
    Otherwise it is the only entry of `used.groups`: the groups of the workload's nodes that run
    `used`, where "" is the group of nodes of all ranks.

    None is returned for the group "" (also as `option_group`), and without `option_group` if
    `used.groups` is empty. For any other group the result is its NPUs in the order of the groups
    file, which must be strictly ascending; an empty group gives ().

    Raises `InputError` in these cases: without `option_group` if `used.groups` has several entries
    (including ""); if the groups file does not define the group; and if its NPUs are not strictly
    ascending.
    """
    groups = {option_group} if option_group is not None else used.groups
    if not groups or groups == {""}:
        return None
    if len(groups) > 1:
        listed = ", ".join(repr(name) for name in sorted(groups))
        message = f"several groups run {used.name} at the same time: {listed} ('': all ranks)"
        raise files.error(message, "name one with -O group=NAME; it then has the network to itself")
    (name,) = groups
    if name not in configuration.groups:
        message = f"communicator group {name[:80]!r} is in no groups file of the folder"
        raise files.error(message, "add it, or name another with -O group=NAME")
    members = configuration.groups[name]
    if list(members) != sorted(set(members)):
        message = f"the NPUs of group {name!r} do not ascend; ASTRA-sim confuses ranks and peers"
        raise files.error(message, "sort them: rank i is the i-th")
    return members


_MEMORY_KEY = "memory-type"
PRIVATE_ATTRIBUTES = frozenset({"duration_ns", "root", "collhub_algorithm", "collhub_counts"})
"""Attributes of the hub's traces that ASTRA-sim does not read."""


def read_job(source: Source, options: JobFolderOptions) -> Workload:
    """Read the job of a folder with its configurations (format `astra-sim-job`).

    The workload is the set of traces that the user named, or the option `workload`, or the set
    `workload`, or the only set that is not a custom algorithm, in this order. Its findings are
    dropped. `groups` are those of the groups file: used ones first. `algorithms` are the custom
    algorithms that the system configuration names, by ascending prefix of their traces.

    The extension `EXTENSION` has: `system`, `network`, `memory` (texts; the last two None without a
    file), `backend` (named in `run.sh`, or None), `custom` (prefixes of `algorithms`), `by_kind`
    and `per_node` (prefix by collective, and by node number as text). Of several files of a kind,
    `system.json`, `network.yml` or `memory.json` is used; without it, raises `InputError`. It is
    also raised for no system configuration, no or several workloads, a prefix without traces, a
    used group that the groups file lacks, and invalid files.
    """
    files = FolderFiles.of(source)
    uses = AlgorithmUses(files, are_natives_enough=True)
    prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
    prefix = find_workload_prefix(files, prefixes, files.chosen_prefix or options.workload)
    if prefix is None:
        raise files.error("the folder has no traces of a workload")
    groups = read_groups(files)
    traces = _read_workload(files, prefix, groups)
    names = [file for file, value in files.objects() if _MEMORY_KEY in value]
    if len(names) > 1 and MEMORY not in names:
        raise files.error(f"several files describe memories: {', '.join(names[:8])}")
    name = MEMORY if MEMORY in names else next(iter(names), None)
    texts = {name: text for name, text in files.texts(*_NETWORK_SUFFIXES) if NETWORK_KEY in text}
    if len(texts) > 1 and NETWORK not in texts:
        raise files.error(f"several files describe networks: {', '.join(sorted(texts)[:8])}")
    network = texts.get(NETWORK, next(iter(texts.values()), None))
    configuration: dict[str, JsonValue] = {
        "system": _read_text(files.files[uses.file]),
        "network": None if network is None else network.decode("utf-8", "replace"),
        "backend": script_backend(files),
        "memory": None if name is None else _read_text(files.files[name]),
        "custom": [*prefixes],
        "by_kind": {str(kind): used for kind, used in uses.by_kind.items()},
        "per_node": {str(node): used for node, used in uses.by_node.items()},
    }
    return replace(
        traces,
        algorithms=tuple(
            chakra_algorithm(files.source_of(used), ChakraReadOptions()) for used in prefixes
        ),
        extensions={**traces.extensions, EXTENSION: configuration},
    )


def _read_workload(
    files: FolderFiles, prefix: str, groups: Mapping[str, tuple[int, ...]]
) -> Workload:
    """Read the job of the traces with this prefix, with process groups from the groups file.

    `groups`: NPUs of each group by name. The job gets all of them: first the groups that nodes
    use, in the order of `read_traces`, then the unused ones in the order of `groups`. Raises
    `InputError` for the first used group that is not in `groups`, and the errors of `read_traces`.

    The attribute `duration_ns` of nodes is ignored, because ASTRA-sim reads only
    `duration_micros`. Findings of the reader are dropped.
    """
    source = replace(files.source_of(prefix), report=lambda found: None)
    # Ignore duration_ns, an attribute of the hub: ASTRA-sim reads duration_micros.
    workload = read_traces(source, JobReadOptions(), foreign=frozenset({"duration_ns"}))
    used_names = [group.name for group in workload.groups]
    for name in used_names:
        if name not in groups:
            message = f"communicator group {name[:80]!r} is in no groups file of the folder"
            raise files.error(message, "add it to the groups file")
    unused_names = [name for name in groups if name not in used_names]
    all_groups = tuple(ProcessGroup(name, groups[name]) for name in (*used_names, *unused_names))
    return replace(workload, groups=all_groups)


def _read_text(part: SourcePart) -> str:
    """Return the content of a file as text; invalid bytes are replaced."""
    return part.load().decode("utf-8", "replace")


def script_backend(files: FolderFiles) -> str | None:
    """Return the backend of ASTRA-sim whose binary run.sh names; None if it names no binary.

    The name may be anywhere in the file, also in a comment. If both binaries are named, the
    result is the congestion-aware backend. The script must be at the top of the folder;
    None without it.
    """
    part = files.files.get(SCRIPT)
    text = b"" if part is None else part.load()
    for is_aware, backend in ((True, CONGESTION_AWARE), (False, CONGESTION_UNAWARE)):
        if BINARY_NAMES[is_aware].encode("ascii") in text:
            return backend
    return None


def claims(source: Source) -> bool:
    """Return whether the workload of a folder is a job, not just one custom algorithm per rank.

    False if the user named the traces of an algorithm, if every rank is idle or only runs custom
    algorithms, each at most once, and for folders that cannot be read.
    """
    try:
        files = FolderFiles.of(source)
        uses = AlgorithmUses(files, are_natives_enough=True)
        prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
        if files.chosen_prefix in prefixes:
            return False
        prefix = files.chosen_prefix or find_workload_prefix(files, prefixes, None)
        parts = files.sets[prefix] if prefix is not None else ()
        ranks = [_has_other_work(part, uses) for part in parts]
        # Without a collective no algorithm runs.
        return bool(ranks) and (any(ranks) or not any(rank is False for rank in ranks))
    except (TraceError, HubError):
        return False


def _has_other_work(part: SourcePart, uses: AlgorithmUses) -> bool | None:
    """Return whether a rank's workload is more than collectives with custom algorithms.

    Such a folder is read as a job, not as an algorithm. `part`: trace of the rank; `uses`: custom
    algorithms by node and by collective. The first matching rule decides:
    1. None for an idle rank: its only node is a computation with 0 microseconds.
    2. True without collectives, for example for a computation with a duration or two computations.
    3. True if there is also a node of another type, a collective without a custom algorithm, or two
       collectives with the same algorithm.
    4. False otherwise: there are only collectives, each with a different custom algorithm.

    Raises `TraceError` for an invalid trace, including one without nodes.
    """
    file, _ = open_rank_file(part.name, part.rank or 0, part.load())
    nodes = decode_nodes(Batch([file]), ShapeBook(["comm_type"], ()))
    is_collective = nodes.type == NodeType.COMM_COLL
    other_types = set(nodes.type[~is_collective].tolist())
    if not is_collective.any():
        is_idle = len(nodes.id) == 1 and other_types == {NodeType.COMP} and not nodes.micros.any()
        return None if is_idle else True
    kinds = nodes.attributes.values["comm_type"][is_collective].tolist()
    prefixes = [
        uses.prefix_of(node, kind)
        for node, kind in zip(nodes.id[is_collective].tolist(), kinds, strict=True)
    ]
    return bool(other_types) or None in prefixes or len(set(prefixes)) < len(prefixes)
