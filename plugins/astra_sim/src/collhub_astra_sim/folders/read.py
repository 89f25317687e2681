"""Read a folder for ASTRA-sim: one algorithm, the NPUs that run it, and the network."""

from __future__ import annotations

import re
from dataclasses import replace

from collhub_astra_sim import networks
from collhub_astra_sim.folders.configurations import (
    FolderAlgorithm,
    FolderConfiguration,
    read_configuration,
)
from collhub_astra_sim.folders.folder import BINARY_NAMES, NETWORK, NETWORK_KEY, SCRIPT
from collhub_astra_sim.folders.found_files import FolderFiles
from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import AstraFolderReadOptions
from hub_core import chakra_algorithm
from hub_core.model import Algorithm, Diagnostic, InputError, Location, Severity, placed
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source


def read(source: Source, options: AstraFolderReadOptions) -> Algorithm:
    """Reader of the format `astra-sim`: the algorithm, with the NPUs of its group as placement.

    If the user names traces that no configuration uses, only the traces are read. Raises
    `InputError` and `UsageError` for missing or ambiguous parts of the folder.
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
    _note_backend(files)
    members = _select_members(files, configuration, used, options.group)
    return _place_ranks(files, algorithm, members, configuration.num_npus)


def read_network(source: Source, options: NoOptions) -> Topology:
    """Read the network of a folder: its only network YAML, or the one named `network.yml`.

    Raises `InputError` if there is none, or several.
    """
    files = FolderFiles.of(source)
    signature = re.compile(networks.NETWORK_YAML)
    names = [
        file
        for file, text in files.texts(".yml", ".yaml")
        if signature.search(text) or NETWORK_KEY in text
    ]
    if NETWORK in names:
        names = [NETWORK]
    if len(names) != 1:
        several = f"several files describe networks: {', '.join(names[:8])}"
        message = several if names else "the folder has no network YAML"
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


def _note_backend(files: FolderFiles) -> None:
    """Report a note if the folder was written for the congestion-unaware backend."""
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
    """Return the algorithm that the user named, by its traces or by option, otherwise the only one.

    Raises `InputError` if it is missing or ambiguous.
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
    """Return the NPUs of the group that runs an algorithm, None for all.

    Raises `InputError` for a group that is missing, ambiguous, or not ascending.
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


def _place_ranks(
    files: FolderFiles, algorithm: Algorithm, members: tuple[int, ...] | None, num_npus: int
) -> Algorithm:
    """Return the algorithm placed on the NPUs that run it.

    `members` None: the first `num_npus` NPUs, or one per rank if that is 0. Raises `InputError` if
    the numbers of NPUs and ranks differ.
    """
    count = len(members) if members is not None else num_npus or algorithm.num_ranks
    if count != algorithm.num_ranks:
        message = f"{algorithm.num_ranks} ranks have traces, {count} NPUs run them"
        raise files.error(message, "provide one trace for every NPU that takes part")
    return placed(algorithm, members or range(count))
