"""Read a folder for ASTRA-sim whose workload is a whole job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collhub_job_traces import JobReadOptions
from collhub_job_traces import read as read_traces

from collhub_astra_sim.folders.configurations import (
    AlgorithmUses,
    folder_groups,
    workload_prefix,
)
from collhub_astra_sim.folders.found_files import FolderFiles
from collhub_astra_sim.folders.run_script import (
    BINARY_NAMES,
    MEMORY,
    NETWORK,
    NETWORK_KEY,
    SCRIPT,
)
from collhub_astra_sim.options import CONGESTION_AWARE, CONGESTION_UNAWARE, JobFolderOptions
from collhub_astra_sim.workloads.hazards import EXTENSION
from hub_core import HubError
from hub_core.chakra import Batch, NodeType, ShapeBook, TraceError, decode_nodes, open_rank_file
from hub_core.model import Algorithm, JsonValue, ProcessGroup, Workload
from hub_core.plugin_api import Source, SourcePart

_MEMORY_KEY = "memory-type"
PRIVATE_ATTRIBUTES = frozenset({"duration_ns", "root", "collhub_algorithm"})
"""Attributes of the hub's own traces that ASTRA-sim does not read."""


def read(source: Source, options: JobFolderOptions) -> Workload:
    """The job of a folder, with its configurations as extension.

    Raises `InputError` for what is missing or contradicts itself.
    """
    files = FolderFiles.of(source)
    uses = AlgorithmUses(files, are_natives_enough=True)
    prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
    prefix = workload_prefix(files, prefixes, files.chosen_prefix or options.workload)
    if prefix is None:
        raise files.error("the folder has no traces of a workload")
    groups = folder_groups(files)
    traces = _traces(files, prefix, groups)
    said: dict[str, JsonValue] = {
        "system": _text(files.files[uses.file]),
        "network": _network(files),
        "backend": script_backend(files),
        "memory": _memory(files),
        "custom": [*prefixes],
        "by_kind": {str(kind): used for kind, used in uses.by_kind.items()},
        "per_node": {str(node): used for node, used in uses.by_node.items()},
    }
    return replace(
        traces,
        algorithms=tuple(_algorithm(files, used) for used in prefixes),
        extensions={**traces.extensions, EXTENSION: said},
    )


def _algorithm(files: FolderFiles, prefix: str) -> Algorithm:
    """The custom algorithm of a set of traces."""
    # Imported here, since most jobs have none.
    from hub_core import ChakraReadOptions, chakra_algorithm

    return chakra_algorithm(files.source_of(prefix), ChakraReadOptions())


def _traces(files: FolderFiles, prefix: str, groups: Mapping[str, tuple[int, ...]]) -> Workload:
    """The workload of the rank files; groups as the folder states them."""
    source = replace(files.source_of(prefix), report=lambda found: None)
    # Times in ns are an attribute of the hub: ASTRA-sim reads duration_micros.
    workload = read_traces(source, JobReadOptions(), foreign=frozenset({"duration_ns"}))
    named = [group.name for group in workload.groups]
    for name in named:
        if name not in groups:
            message = f"communicator group {name[:80]!r} is in no groups file of the folder"
            raise files.error(message, "add it to the groups file")
    others = [name for name in groups if name not in named]
    stated = tuple(ProcessGroup(name, groups[name]) for name in (*named, *others))
    return replace(workload, groups=stated)


def _text(part: SourcePart) -> str:
    return part.load().decode("utf-8", "replace")


def _network(files: FolderFiles) -> str | None:
    """The text of the only network YAML, or of the one that is named as in the examples."""
    found = {name: text for name, text in files.texts(".yml", ".yaml") if NETWORK_KEY in text}
    if len(found) > 1 and NETWORK in found:
        found = {NETWORK: found[NETWORK]}
    if len(found) > 1:
        raise files.error(f"several files describe networks: {', '.join(sorted(found)[:8])}")
    return next((text.decode("utf-8", "replace") for text in found.values()), None)


def script_backend(files: FolderFiles) -> str | None:
    """The backend whose binary the script of the folder runs; None without such a script."""
    part = files.files.get(SCRIPT)
    text = b"" if part is None else part.load()
    for is_aware, backend in ((True, CONGESTION_AWARE), (False, CONGESTION_UNAWARE)):
        if BINARY_NAMES[is_aware].encode("ascii") in text:
            return backend
    return None


def _memory(files: FolderFiles) -> str | None:
    """The text of the remote memory, None where no file describes one."""
    found = [name for name, value in files.objects() if _MEMORY_KEY in value]
    if len(found) > 1 and MEMORY not in found:
        raise files.error(f"several files describe memories: {', '.join(found[:8])}")
    chosen = MEMORY if MEMORY in found else next(iter(found), None)
    return None if chosen is None else _text(files.files[chosen])


def claims(source: Source) -> bool:
    """Whether the workload of a folder is more than one custom algorithm on all ranks or a group.

    A job is whatever else ASTRA-sim runs: computations, messages, native collectives, an algorithm
    that runs several times. Ranks outside the group have one computation that takes no time. False
    also where the folder cannot be read, or where the user named an algorithm's traces.
    """
    try:
        files = FolderFiles.of(source)
        uses = AlgorithmUses(files, are_natives_enough=True)
        prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
        if files.chosen_prefix in prefixes:
            return False
        prefix = files.chosen_prefix or workload_prefix(files, prefixes, None)
        parts = files.sets[prefix] if prefix is not None else ()
        ranks = [_ranks_work(part, uses) for part in parts]
        # Without a collective nothing runs an algorithm.
        return bool(ranks) and (any(ranks) or not any(rank is False for rank in ranks))
    except (TraceError, HubError):
        return False


def _ranks_work(part: SourcePart, uses: AlgorithmUses) -> bool | None:
    """Whether a rank does more than run custom algorithms, each once (False), or idle (None)."""
    file, _ = open_rank_file(part.name, part.rank or 0, part.load())
    nodes = decode_nodes(Batch([file]), ShapeBook(["comm_type"], ()))
    is_collective = nodes.type == NodeType.COMM_COLL
    others = set(nodes.type[~is_collective].tolist())
    if not is_collective.any():
        is_idle = len(nodes.id) == 1 and others == {NodeType.COMP} and not nodes.micros.any()
        return None if is_idle else True
    kinds = nodes.attributes.values["comm_type"][is_collective].tolist()
    prefixes = [
        uses.prefix_of(node, kind)
        for node, kind in zip(nodes.id[is_collective].tolist(), kinds, strict=True)
    ]
    return bool(others) or None in prefixes or len(set(prefixes)) < len(prefixes)
