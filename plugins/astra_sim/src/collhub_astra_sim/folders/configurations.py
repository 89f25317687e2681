"""The files and configurations of a folder for ASTRA-sim: traces, algorithms, groups.

Folders of other programs are accepted, too: configurations are recognized by their content, and
paths in them are matched by their longest tail, since the working directory of the simulator is
unknown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, cast

from collhub_astra_sim.folders.folder import (
    ALL_RANKS_GROUPS,
    COLLECTIVE_KEYS,
    COMM_TYPES,
    GROUPS,
    PER_NODE_KEY,
    SYSTEM,
    WORKLOAD,
)
from hub_core.chakra import NodeType, TraceError
from hub_core.model import CollectiveKind, InputError, Location
from hub_core.plugin_api import Source, SourcePart

LONGEST_TEXT = 1 << 20
"""Maximum bytes of a configuration; longer files are ignored."""

_MOST_TEXTS = 64
_RANK_FILE = re.compile(r"(?P<prefix>.+)\.(?P<rank>0|[1-9][0-9]{0,6})\.et\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """A folder as its reader receives it.

    `source`: as named by the user. `root`: the folder. `files`: by path in the folder. `sets`: the
    files PREFIX.<rank>.et by prefix in the folder, each part with its rank.
    """

    source: Source
    root: str
    files: Mapping[str, SourcePart]
    sets: Mapping[str, tuple[SourcePart, ...]]

    @classmethod
    def of(cls, source: Source) -> FolderFiles:
        """Group the files of a source: traces named `PREFIX.<rank>.et` form one set per prefix.

        A rank is a number up to 9 999 999 without leading zeros; other files are in no set.
        Sets are sorted by prefix; in a set the traces are in the order of the source, with the
        rank of their name. `files` has all files, including the traces. Names and prefixes are
        relative to the deepest folder that contains all files (`root`, "" without files). No
        content is read.
        """
        folders = {os.path.dirname(part.name) for part in source.parts}
        root = os.path.commonpath(folders) if folders else ""
        files = {_make_relative(part.name, root): part for part in source.parts}
        sets: dict[str, list[SourcePart]] = {}
        for name, part in files.items():
            match = _RANK_FILE.match(name)
            if match:
                ranked = SourcePart(part.name, part.load, int(match["rank"]), part.size)
                sets.setdefault(match["prefix"], []).append(ranked)
        return cls(source, root, files, {prefix: tuple(sets[prefix]) for prefix in sorted(sets)})

    @property
    def chosen_prefix(self) -> str | None:
        """Return the prefix of the set of traces that the user named as input.

        It is the source's name, relative to the folder, if a set has this prefix. Otherwise it
        is None, for example if the user named the folder.
        """
        name = _make_relative(self.source.name, self.root)
        return name if name in self.sets else None

    def source_of(self, prefix: str) -> Source:
        """Return the set of traces `prefix` as a source that reports to the same receiver.

        Its name is the prefix below `root`. Its parts are in the order of the files, which need
        not be that of the ranks. Raise `KeyError` for a prefix without traces.
        """
        name = os.path.join(self.root, prefix)
        return Source(name, self.sets[prefix], self.source.report)

    def part_at(self, path: str) -> SourcePart | None:
        """Return the file of the folder that `path` in a configuration means; None if unclear.

        It is the file whose path has the same last parts as `path`, as many as possible. If
        several files have them, the file whose name is exactly these parts is used; without one,
        the result is None. None also if no file has the same name.
        """
        name = _find_match(path, list(self.files))
        return self.files[name] if name is not None else None

    def set_at(self, path: str) -> str | None:
        """Return the prefix of the set of traces that a path in a configuration names; else None.

        Matched as in `part_at`.
        """
        return _find_match(path, list(self.sets))

    def texts(self, *suffixes: str) -> Iterator[tuple[str, bytes]]:
        """Yield (path in the folder, content) of the files whose names have one of the suffixes.

        Suffixes are case-sensitive; without suffixes there are no files. The files are sorted by
        depth of their folder, then by path. Only the first 64 of them (`_MOST_TEXTS`) are
        considered. Of these, empty files and files above `LONGEST_TEXT` bytes (1 MiB) are
        skipped, but still count. A file of unknown size is loaded, even if it is empty or longer.
        """
        names = [name for name in self.files if name.endswith(suffixes)]
        names.sort(key=lambda name: (name.count("/"), name))
        for name in names[:_MOST_TEXTS]:
            part = self.files[name]
            if part.size is None or 0 < part.size <= LONGEST_TEXT:
                yield name, part.load()

    def objects(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield (path in the folder, content) of the JSON files that contain an object.

        Files with invalid JSON or another value are skipped; order and limits as in `texts`.
        """
        for name, content in self.texts(".json"):
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield name, value

    def error(self, message: str, cure: str = "", file: str = "") -> InputError:
        """Create an `InputError` (`astra-sim-folder`) about a file; the caller raises it.

        `file`: path in the folder; "" for an error about the source. Raise `KeyError` for a
        path that is not in the folder.
        """
        location = Location(self.files[file].name if file else self.source.name)
        return InputError(message, location=location, cure=cure, code="astra-sim-folder")


def _make_relative(name: str, root: str) -> str:
    """Return the path `name` relative to `root`, with `/` as separator.

    The result is "." if both are equal. A path that is not in `root` is not shortened. Only
    the texts are compared; `..` and links are not resolved.
    """
    path = PurePath(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _find_match(path: str, names: list[str]) -> str | None:
    """Return the name that matches the longest possible tail of `path`, or None.

    Paths in configurations are relative to the simulator's working directory, which is
    unknown. So tails of the path (its last parts) are tried, from the full path down to the
    file name. A name matches if its last parts are those of the tail. The first tail with a
    match decides. If several names match it, the result is the one that equals the tail.
    None means that no name matches the file name, or that several match the deciding tail and
    none of them equals it.
    """
    parts = PurePath(os.path.normpath(path)).parts
    for first in range(len(parts)):
        tail = parts[first:]
        fitting = [name for name in names if PurePath(name).parts[-len(tail) :] == tail]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            exact = PurePath(*tail).as_posix()
            return exact if exact in fitting else None
    return None


NODE_LIMIT = 1 << 31
"""ASTRA-sim reads the node IDs of its map of nodes as signed 32-bit integers."""


@dataclass(slots=True)
class FolderAlgorithm:
    """An algorithm of a folder: the prefix of its traces, and its uses in the workload.

    `groups`: names of the communicator groups that run it, the empty name for all ranks.
    `comm_size`: bytes of the first workload node that runs it.
    """

    prefix: str
    groups: set[str] = field(default_factory=set)
    comm_size: int | None = None

    @property
    def name(self) -> str:
        """The last part of the prefix, which users use as its name."""
        return self.prefix.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class FolderConfiguration:
    """The configurations of a folder for its algorithms.

    `algorithms`: by prefix of their traces. `num_npus`: NPUs of the workload, 0 without workload.
    `groups`: NPUs by name of the communicator group.
    """

    algorithms: Mapping[str, FolderAlgorithm]
    num_npus: int
    groups: Mapping[str, tuple[int, ...]]


class _Attribute(Protocol):
    """An attribute of a node, as protobuf decodes it."""

    name: str

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802
        """Return the name of the field that is set."""


class _Node(Protocol):
    """A node of a trace, as protobuf decodes it."""

    id: int
    type: int
    attr: Sequence[_Attribute]


class AlgorithmUses:
    """The algorithms that workload nodes run, from the system configuration of a folder.

    `file`: the system configuration. `by_kind`, `by_node`: prefixes of traces by kind of collective
    and by identity of the workload node.
    """

    def __init__(self, files: FolderFiles, *, are_natives_enough: bool = False) -> None:
        """Read which custom algorithms the system configuration of a folder names.

        A custom algorithm is a set of traces that replaces ASTRA-sim's native algorithm. The
        configuration is the JSON object with a key for custom algorithms; with `are_natives_enough`
        also a key for native ones suffices. Of several such objects `system.json` is used.
        Attributes:

        - `file`: name of the configuration
        - `by_kind`: prefix of the traces by collective, only for the custom keys in the file
        - `by_node`: prefix by identity of a workload node, from the YAML file named by
          `PER_NODE_KEY`; {} without that key

        Prefixes are relative to the folder. Raises `InputError`: no such object, or several without
        `system.json`; a value of a collective that is no list of exactly one text; a missing, empty
        or invalid YAML file; a node number of 2^31 or more; a prefix of no or of several sets of
        traces.
        """
        self._files = files
        self._keys = {*COLLECTIVE_KEYS.values(), PER_NODE_KEY}
        if are_natives_enough:
            self._keys |= {key.removesuffix("-custom") for key in COLLECTIVE_KEYS.values()}
        self.by_kind: dict[CollectiveKind, str] = {}
        self.by_node: dict[int, str] = {}
        self.file, system = self._find_system()
        for kind, key in COLLECTIVE_KEYS.items():
            if key in system:
                value = system[key]
                # ASTRA-sim aborts on any other value.
                if not (isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)):
                    message = f"{key} is no list of exactly one prefix, on which ASTRA-sim aborts"
                    raise self._files.error(message, 'write for example ["traces/ring"]', self.file)
                self.by_kind[kind] = self._find_set(value[0])
        if PER_NODE_KEY in system:
            self.by_node = self._read_node_map(system[PER_NODE_KEY])

    def prefix_of(self, node: int, comm_type: object) -> str | None:
        """Return the prefix of a workload node's custom algorithm; None for a native algorithm.

        `node`: identity of the node. `comm_type`: number of its collective, as in `COMM_TYPES`.
        An entry for the node takes precedence over the one for its collective. A `comm_type`
        that is unknown, None or of another type has no entry.
        """
        kinds = [kind for kind, number in COMM_TYPES.items() if number == comm_type]
        by_kind = self.by_kind.get(kinds[0]) if kinds else None
        return self.by_node.get(node, by_kind)

    def _find_system(self) -> tuple[str, dict[str, object]]:
        """Return the file name and the JSON object of the system configuration.

        Candidates are the JSON objects of the folder (`FolderFiles.objects`) with at least one
        of `self._keys`, the keys that name algorithms. Of several candidates `system.json` at
        the root of the folder is used. Raises `InputError` (`astra-sim-folder`) without a
        candidate, and for several of which none is this file.
        """
        objects = self._files.objects()
        candidates = {name: value for name, value in objects if self._keys & value.keys()}
        if len(candidates) > 1 and SYSTEM in candidates:
            candidates = {SYSTEM: candidates[SYSTEM]}
        if len(candidates) == 1:
            return next(iter(candidates.items()))
        several = f"several system configurations name algorithms: {', '.join(sorted(candidates))}"
        none = "no system configuration (JSON) names a custom algorithm"
        cure = (
            f"keep one, named {SYSTEM}" if candidates else "name the folder, or a set of its traces"
        )
        raise self._files.error(several if candidates else none, cure)

    def _read_node_map(self, path: object) -> dict[int, str]:
        """Read the YAML map from numbers of workload nodes to prefixes of traces.

        `path`: path of the map in the configuration. Prefixes are converted to those of the
        folder. Raises `InputError` if `path` is no text or names no file of the folder, if the
        file has no entries or is no map from decimal numbers below 2^31 to scalars, and if the
        folder has no traces of a prefix.
        """
        part = self._files.part_at(path) if isinstance(path, str) else None
        if part is None:
            message = f"{PER_NODE_KEY} names no file of the folder"
            raise self._files.error(message, file=self.file)
        pairs = _read_pairs(part)
        if not pairs or not all(
            node.isascii() and node.isdecimal() and len(node) < 20 for node in pairs
        ):
            message = f"{part.name} is no YAML map of workload nodes to prefixes"
            raise self._files.error(message, "write for example 0: traces/ring", self.file)
        for node in pairs:
            if int(node) >= NODE_LIMIT:
                message = f"{part.name}: ASTRA-sim aborts on node {node}: its map has 32-bit ids"
                raise self._files.error(message, "number the nodes below 2147483648", self.file)
        return {int(node): self._find_set(prefix) for node, prefix in pairs.items()}

    def _find_set(self, path: str) -> str:
        """Return the prefix of the traces that a configuration names by `path`.

        It is relative to the folder, and found as in `FolderFiles.part_at`. Raise `InputError`
        (`astra-sim-folder`) if no set of traces, or no unique one, matches.
        """
        prefix = self._files.set_at(path)
        if prefix is None:
            message = f"the traces {path[:200]!r} that it names are not in the folder"
            raise self._files.error(message, "name the folder that contains them, too", self.file)
        return prefix


def _read_pairs(part: SourcePart) -> dict[str, str]:
    """Return the keys and values of a YAML map of scalars, as they are written in the file.

    Values are not converted: `1.0` and `null` are texts. A merge key (`<<`) is a key like any
    other. Of repeated keys the last one counts. The map is {} for:

    - files above `LONGEST_TEXT` bytes, if the size of the part is known
    - invalid YAML, several documents, and an empty file
    - other content, such as a list, or a map with a nested list or map

    Errors of opening the file (`OSError`, `HubError`) pass through.
    """
    # Imported here, because most folders have no such map.
    import yaml

    if part.size is not None and part.size > LONGEST_TEXT:
        return {}
    try:
        # Nodes instead of values: with merge keys, a few lines could expand to unlimited values.
        root = yaml.compose(part.load(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    if not all(isinstance(node, yaml.ScalarNode) for entry in entries for node in entry):
        return {}
    return {key.value: value.value for key, value in entries}


def read_configuration(files: FolderFiles, workload: str | None = None) -> FolderConfiguration:
    """Read a folder: its custom algorithms with their uses, its groups, and the number of NPUs.

    `workload`: prefix of the workload's traces; required only if several sets of traces might be
    the workload. The number of NPUs is that of the workload's traces, 0 without a workload. All
    nodes of the workload are read. Raises `InputError` for missing, contradictory, ambiguous or
    invalid files.
    """
    uses = AlgorithmUses(files)
    prefixes = sorted({*uses.by_kind.values(), *uses.by_node.values()})
    algorithms = {prefix: FolderAlgorithm(prefix) for prefix in prefixes}
    prefix_of_workload = find_workload_prefix(files, prefixes, workload)
    parts = files.sets[prefix_of_workload] if prefix_of_workload is not None else ()
    for part in parts:
        _note_uses(part.load(), part.name, uses, algorithms)
    return FolderConfiguration(algorithms, len(parts), read_groups(files))


def find_workload_prefix(
    files: FolderFiles, algorithms: list[str], stated: str | None
) -> str | None:
    """Return the prefix of the traces that are the workload, the program of all ranks.

    `algorithms`: prefixes of custom algorithms. `stated`: the user's choice, which may be one of
    them. Without it, the other sets of traces are considered: `workload` if it is among them,
    otherwise the only one. None if all sets belong to algorithms. Raises `InputError` if `stated`
    has no traces, or if several remain.
    """
    candidates = [prefix for prefix in files.sets if prefix not in algorithms]
    if stated is not None and stated not in files.sets:
        raise files.error(f"there are no traces {stated[:200]!r}", f"name one of {candidates}")
    if stated is not None or WORKLOAD in candidates:
        return stated or WORKLOAD
    if len(candidates) > 1:
        listed = ", ".join(candidates[:8])
        cure = "name it with -O workload=PREFIX"
        raise files.error(f"several sets of traces may be the workload: {listed}", cure)
    return candidates[0] if candidates else None


def _note_uses(
    content: bytes, file: str, uses: AlgorithmUses, algorithms: Mapping[str, FolderAlgorithm]
) -> None:
    """Record which algorithms the collectives in the trace of one NPU run, in which groups.

    Changes the entries of `algorithms`: adds the group's name ("" for all ranks) and, if the
    algorithm has no size yet, the node's size if it is positive. Nodes with native algorithms are
    skipped. Raises `InputError` for bytes that are no trace.
    """
    for node in _read_nodes(content, file):
        if node.type != NodeType.COMM_COLL:
            continue
        # Of duplicate attributes the first counts, as in ASTRA-sim.
        attributes: dict[str, object] = {}
        for attribute in node.attr:
            kind = attribute.WhichOneof("value")
            if kind is not None:
                attributes.setdefault(attribute.name, getattr(attribute, kind))
        prefix = uses.prefix_of(node.id, attributes.get("comm_type"))
        if prefix is None:
            continue
        used = algorithms[prefix]
        group = attributes.get("pg_name", "")
        used.groups.add("" if group in ALL_RANKS_GROUPS else str(group))
        size = attributes.get("comm_size")
        if used.comm_size is None and type(size) is int and size > 0:
            used.comm_size = size


def _read_nodes(content: bytes, file: str) -> Iterator[_Node]:
    """Yield the nodes of a trace, without its metadata, the first message.

    Nothing is yielded for an empty trace. Raises `InputError` with the position of the first
    invalid byte, after the nodes before it were yielded.
    """
    # Imports protobuf, which a folder without a workload does not need.
    from hub_core.chakra import decoded_records

    messages = decoded_records(content, file)
    try:
        # The first message is metadata.
        next(messages, None)
        yield from cast("Iterator[_Node]", messages)
    except TraceError as error:
        location = Location(error.file, byte=error.byte)
        raise InputError(error.reason, location=location, code=error.code) from None


def read_groups(files: FolderFiles) -> Mapping[str, tuple[int, ...]]:
    """Return the NPUs of the communicator groups by name; {} if no file defines groups.

    A file defines groups if it is a JSON object that is not empty, all keys are decimal numbers,
    and all values are lists of integers of at least 0. NPUs and groups keep the order of the file.
    Other JSON files, also invalid ones, are ignored. Only the first 64 files `*.json` are
    considered, sorted by depth of their folder, then by path, and only those of at most 1 MiB
    (`FolderFiles.texts`).

    If several files define groups, the `groups.json` at the root of the folder is used. Raise
    `InputError` (`astra-sim-folder`) if there are several without it.
    """
    groups_by_file = {}
    for name, value in files.objects():
        groups: dict[str, tuple[int, ...]] = {}
        for key, members in value.items():
            if not key.isdecimal() or not isinstance(members, list):
                continue
            if all(type(npu) is int and npu >= 0 for npu in members):
                groups[key] = tuple(members)
        if value and len(groups) == len(value):
            groups_by_file[name] = groups
    if GROUPS in groups_by_file or len(groups_by_file) == 1:
        return groups_by_file.get(GROUPS) or next(iter(groups_by_file.values()))
    if groups_by_file:
        listed = ", ".join(sorted(groups_by_file))
        raise files.error(f"several files define groups: {listed}", f"keep one, named {GROUPS}")
    return {}
