"""Read a folder for ASTRA-sim whose workload is an entire job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collhub_job_traces import JobReadOptions
from collhub_job_traces import read as read_traces

from collhub_astra_sim.folders.configurations import (
    AlgorithmUses,
    find_workload_prefix,
    read_groups,
)
from collhub_astra_sim.folders.folder import (
    BINARY_NAMES,
    MEMORY,
    NETWORK,
    NETWORK_KEY,
    SCRIPT,
)
from collhub_astra_sim.folders.found_files import FolderFiles
from collhub_astra_sim.options import CONGESTION_AWARE, CONGESTION_UNAWARE, JobFolderOptions
from collhub_astra_sim.workloads.hazards import EXTENSION
from hub_core import HubError
from hub_core.chakra import Batch, NodeType, ShapeBook, TraceError, decode_nodes, open_rank_file
from hub_core.model import Algorithm, JsonValue, ProcessGroup, Workload
from hub_core.plugin_api import Source, SourcePart

_MEMORY_KEY = "memory-type"
PRIVATE_ATTRIBUTES = frozenset({"duration_ns", "root", "collhub_algorithm"})
"""Attributes of the hub's traces that ASTRA-sim does not read."""


def read(source: Source, options: JobFolderOptions) -> Workload:
    """Read the job of a folder, with its configurations as an extension.

    Raises `InputError` for missing or contradictory files.
    """
    files = FolderFiles.of(source)
    uses = AlgorithmUses(files, are_natives_enough=True)
    prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
    prefix = find_workload_prefix(files, prefixes, files.chosen_prefix or options.workload)
    if prefix is None:
        raise files.error("the folder has no traces of a workload")
    groups = read_groups(files)
    traces = _read_workload(files, prefix, groups)
    configuration: dict[str, JsonValue] = {
        "system": _read_text(files.files[uses.file]),
        "network": _read_network_text(files),
        "backend": script_backend(files),
        "memory": _read_memory_text(files),
        "custom": [*prefixes],
        "by_kind": {str(kind): used for kind, used in uses.by_kind.items()},
        "per_node": {str(node): used for node, used in uses.by_node.items()},
    }
    return replace(
        traces,
        algorithms=tuple(_read_algorithm(files, used) for used in prefixes),
        extensions={**traces.extensions, EXTENSION: configuration},
    )


def _read_algorithm(files: FolderFiles, prefix: str) -> Algorithm:
    """Read the custom algorithm of a set of traces."""
    # Imported here, because most jobs have no custom algorithms.
    from hub_core import ChakraReadOptions, chakra_algorithm

    return chakra_algorithm(files.source_of(prefix), ChakraReadOptions())


def _read_workload(
    files: FolderFiles, prefix: str, groups: Mapping[str, tuple[int, ...]]
) -> Workload:
    """Read the workload of the rank files, with the groups of the folder.

    Raises `InputError` for a group that no file of the folder contains.
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


def _read_network_text(files: FolderFiles) -> str | None:
    """Return the text of the only network YAML, or of `network.yml`; None without one."""
    texts = {name: text for name, text in files.texts(".yml", ".yaml") if NETWORK_KEY in text}
    if len(texts) > 1 and NETWORK in texts:
        texts = {NETWORK: texts[NETWORK]}
    if len(texts) > 1:
        raise files.error(f"several files describe networks: {', '.join(sorted(texts)[:8])}")
    return next((text.decode("utf-8", "replace") for text in texts.values()), None)


def script_backend(files: FolderFiles) -> str | None:
    """Return the backend whose binary the folder's script runs; None without such a script."""
    part = files.files.get(SCRIPT)
    text = b"" if part is None else part.load()
    for is_aware, backend in ((True, CONGESTION_AWARE), (False, CONGESTION_UNAWARE)):
        if BINARY_NAMES[is_aware].encode("ascii") in text:
            return backend
    return None


def _read_memory_text(files: FolderFiles) -> str | None:
    """Return the text of the remote memory's configuration, None without one."""
    names = [file for file, value in files.objects() if _MEMORY_KEY in value]
    if len(names) > 1 and MEMORY not in names:
        raise files.error(f"several files describe memories: {', '.join(names[:8])}")
    name = MEMORY if MEMORY in names else next(iter(names), None)
    return None if name is None else _read_text(files.files[name])


def claims(source: Source) -> bool:
    """Return whether the workload of a folder is more than one custom algorithm.

    The algorithm may run on all ranks or on one group.
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
    """Return whether a rank has nodes other than custom algorithms that occur once each.

    None for an idle rank.
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
