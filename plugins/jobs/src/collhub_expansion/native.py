"""Native algorithms (of ASTRA-sim's system configuration, else rings), and named algorithms."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collhub_expansion.plan import PlannedCalls
from hub_core import InputError, Registry, Topology, UsageError
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, CollectiveKind, Workload
from hub_core.plugin_api import NoOptions, Source, TopologyReader, resolve

EXTENSION = "astra-sim"
_NETWORK_FORMAT = "astra-sim-network"
_SYNTHESIZERS = {
    "ring": "astra-ring",
    "direct": "astra-direct",
    "halving-doubling": "astra-halving-doubling",
    "double-binary-tree": "astra-double-binary-tree",
}
# Spellings in the system configuration, in lower case.
_SPELLINGS = {
    "halvingdoubling": "halving-doubling",
    "doublebinarytree": "double-binary-tree",
    "ring": "ring",
}
NATIVE_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
# Above this, a reduction takes less than 1 ns, and the hub refuses the bandwidth.
_MAX_GB_PER_S = 9e8


@dataclass(frozen=True, slots=True)
class NativeSystem:
    """Native algorithms in a system configuration.

    `endpoint_ns`: delay before every message. `memory_gb_per_s`: None if reductions take no time.
    `splits`: streams per collective, of which `active` run concurrently. `names`: algorithms per
    kind, one per dimension. `custom`: algorithms in the job. `optimization`: order of dimensions
    in an all-reduce. `is_stated`: whether the job has a configuration.
    """

    endpoint_ns: int = 10
    memory_gb_per_s: float | None = None
    splits: int = 1
    active: int = 1
    names: Mapping[CollectiveKind, tuple[str, ...]] = field(default_factory=dict)
    custom: Mapping[CollectiveKind, Algorithm] = field(default_factory=dict)
    optimization: str = ""
    is_stated: bool = False


def read_recorded_network(workload: Workload, registry: Registry) -> Topology | None:
    """Read the network that was stored with a job, as text in the extension of its folder.

    Returns None for a job without this extension or this text, and if the reader returns something
    else than a topology. Raises `HubError` for an invalid network, and if no reader of its format
    is installed.
    """
    stated = workload.extensions.get(EXTENSION)
    text = stated.get("network") if isinstance(stated, dict) else None
    if not isinstance(text, str):
        return None
    reader = registry.find(TopologyReader, _NETWORK_FORMAT)
    source = Source.of_bytes("network.yml", text.encode())
    topology = resolve(reader.offer.read)(source, NoOptions())
    return topology if isinstance(topology, Topology) else None


def native_system(workload: Workload) -> NativeSystem:
    """Return the native algorithms and delays in the ASTRA-sim system configuration of a job.

    The configuration is the JSON text `system` in the extension `astra-sim` of the workload.
    Without this text the result is `NativeSystem()` with `is_stated` False. Otherwise
    `is_stated` is True, and the fields are read from these keys:

    - `endpoint_ns`: `endpoint-delay`, by default 10
    - `memory_gb_per_s`: `local-mem-bw`; None if it is missing or 0
    - `splits`: `preferred-dataset-splits`, by default 1
    - `active`: `active-chunks-per-dimension`, by default 1
    - `names`: `KIND-implementation` for each kind of `NATIVE_KINDS` with this key, such as
      `all-reduce-implementation`; one name per dimension
    - `optimization`: `collective-optimization`, by default ""
    - `custom`: algorithms of the workload by kind, as the extension names them; by default none

    The text was checked when the job was read. Errors are therefore not converted: `ValueError`
    for invalid JSON, values or prefixes, `TypeError` for null.
    """
    stated = workload.extensions.get(EXTENSION)
    text = stated.get("system") if isinstance(stated, dict) else None
    if not isinstance(stated, dict) or not isinstance(text, str):
        return NativeSystem()
    values = json.loads(text)
    names = {
        kind: tuple(values[f"{kind}-implementation"])
        for kind in NATIVE_KINDS
        if f"{kind}-implementation" in values
    }
    # File prefixes of the workload's algorithms, and a prefix by kind.
    prefixes, by_kind = stated.get("custom"), stated.get("by_kind")
    custom: dict[CollectiveKind, Algorithm] = {}
    if isinstance(prefixes, list) and isinstance(by_kind, dict):
        custom = {
            CollectiveKind(kind): workload.algorithms[prefixes.index(prefix)]
            for kind, prefix in by_kind.items()
        }
    return NativeSystem(
        int(values.get("endpoint-delay", 10)),
        values.get("local-mem-bw") or None,
        int(values.get("preferred-dataset-splits", 1)),
        int(values.get("active-chunks-per-dimension", 1)),
        names,
        custom,
        str(values.get("collective-optimization", "")),
        is_stated=True,
    )


@dataclass(frozen=True, slots=True)
class NativeChoice:
    """Native algorithm: its synthesizer, and the options."""

    synthesizer: str
    options: Mapping[str, str]

    @property
    def alternates(self) -> bool:
        """Whether streams alternate between two trees."""
        return self.synthesizer == _SYNTHESIZERS["double-binary-tree"]


@dataclass(frozen=True, slots=True)
class NativePhase:
    """Phase of a native collective among the ranks that differ only in one dimension.

    `level`: the dimension. `stride`: distance between these `ranks`. `size`: input bytes of each.
    """

    kind: CollectiveKind
    choice: NativeChoice
    level: int
    stride: int
    ranks: int
    size: int


def native_phases(
    system: NativeSystem, kind: CollectiveKind, size: int, sizes: Sequence[int], mask: int
) -> list[NativePhase]:
    """Return the phases that ASTRA-sim runs one after the other in a stream of all ranks.

    `system` names one algorithm per dimension for the kind; `sizes`: ranks by dimension. If the
    first name begins with `one`, all ranks form a single dimension, and further names are ignored.
    A dimension takes part if it has a name, several ranks, and its bit in `mask` (-1: all).

    - Order: an all-gather visits dimensions in descending order, other kinds ascending. An
      all-reduce is a reduce-scatter in all dimensions but the last, an all-reduce there, and
      all-gathers back. With the optimization `baseline` it is an all-reduce in every dimension.
    - Bytes: `size` in the first phase. They are divided by the ranks of the dimension after a
      reduce-scatter (rounded down), and multiplied by these after an all-gather.

    Raises `InputError` without names. Raises it with the code `several-dimensions` for more names
    than dimensions, for no phase, and for an all-reduce in several dimensions if the system states
    no optimization. Then raises `KeyError` for an unknown name.
    """
    names = _configured_names(system, kind)
    if names[0].startswith("one"):
        # One dimension of all ranks; further names are ignored.
        names, sizes = names[:1], (prod(sizes),)
    levels = [level for level in range(len(names)) if sizes[level:] and mask >> level & 1]
    levels = [level for level in levels if sizes[level] > 1]
    reason = ""
    if len(names) > len(sizes):
        stated = f"the job's system names {len(names)} algorithms of {kind}"
        reason = f"{stated} for {len(sizes)} dimensions"
    elif not levels:
        # ASTRA-sim never finishes a stream without phases.
        reason = f"no dimension with an algorithm takes part in this {kind}"
    elif kind is CollectiveKind.ALL_REDUCE and len(levels) > 1 and not system.optimization:
        reason = "collective-optimization is not stated, and ASTRA-sim guesses"
    if reason:
        cure = f"name an algorithm, for example --collective {kind}=torus-rings"
        raise InputError(reason, cure=cure, code="several-dimensions")
    phases = []
    for phase_kind, level in _order_phases(system, kind, levels):
        name, width = _parse_spelling(names[level])
        choice = _choice(system, name, width, is_small=False)
        phases.append(
            NativePhase(phase_kind, choice, level, prod(sizes[:level]), sizes[level], size)
        )
        if phase_kind is CollectiveKind.REDUCE_SCATTER:
            size //= sizes[level]
        elif phase_kind is CollectiveKind.ALL_GATHER:
            size *= sizes[level]
    return phases


def _order_phases(
    system: NativeSystem, kind: CollectiveKind, levels: list[int]
) -> list[tuple[CollectiveKind, int]]:
    """Return the phases of a collective in order, each as (kind, dimension).

    `levels`: the dimensions that take part, ascending. An all-gather visits them in
    descending order, any other kind in ascending order. An all-reduce has one phase per
    dimension only if the optimization of the system is `baseline`. Otherwise its phases are
    a reduce-scatter in every dimension but the last, an all-reduce in the last one, and an
    all-gather in the remaining dimensions in descending order. Without dimensions the list
    is empty.
    """
    if kind is CollectiveKind.ALL_GATHER:
        return [(kind, level) for level in reversed(levels)]
    if kind is not CollectiveKind.ALL_REDUCE or system.optimization == "baseline":
        return [(kind, level) for level in levels]
    inner, last = levels[:-1], levels[-1:]
    return [
        *((CollectiveKind.REDUCE_SCATTER, level) for level in inner),
        *((kind, level) for level in last),
        *((CollectiveKind.ALL_GATHER, level) for level in reversed(inner)),
    ]


def native_choice(
    system: NativeSystem, kind: CollectiveKind, requested_name: str | None, *, is_small: bool
) -> NativeChoice:
    """Return the native algorithm of a kind of collective, as a synthesizer with options.

    Native algorithms are those of ASTRA-sim. `requested_name`: its name. None or "": the one
    that the system configures for the first dimension. It is `ring` in two cases: without a
    system, and if the group is small and the system configures several. `is_small`: the group
    is smaller than the job.

    Raises `InputError` (`no-native`) for a kind without native algorithms, `UsageError` for an
    unknown name, and `InputError` if the system configures none.
    """
    if kind not in NATIVE_KINDS:
        message = f"ASTRA-sim has no native algorithm of {kind}"
        cure = f"name one, for example --collective {kind}=direct"
        raise InputError(message, cure=cure, code="no-native")
    # The width is the limit of concurrent messages, 0 without one.
    name, width = requested_name or "ring", 0
    if not requested_name and system.is_stated:
        names = _configured_names(system, kind)
        if not is_small or len(names) == 1:
            name, width = _parse_spelling(names[0])
    if name not in _SYNTHESIZERS:
        known = ", ".join(_SYNTHESIZERS)
        raise UsageError(f"there is no native algorithm {name!r}", cure=f"use one of {known}")
    return _choice(system, name, width, is_small=is_small)


def _choice(system: NativeSystem, name: str, width: int, *, is_small: bool) -> NativeChoice:
    """Return a native algorithm as a synthesizer with options for the delays of the system.

    `endpoint_delay` (in ns) is always set. `memory_bandwidth` is set only if the system has
    one that is not 0; it is limited to 9e8 GB/s. `width` (limit of concurrent messages) is
    set unless it is 0, and `small_group` only if `is_small` (the group is smaller than the
    job). Raise `KeyError` for an unknown name.
    """
    options = {"endpoint_delay": str(system.endpoint_ns)}
    if system.memory_gb_per_s:
        rate = min(system.memory_gb_per_s, _MAX_GB_PER_S)
        options["memory_bandwidth"] = f"{rate:.17g}GB/s"
    if is_small:
        options["small_group"] = "true"
    if width:
        options["width"] = str(width)
    return NativeChoice(_SYNTHESIZERS[name], options)


def _configured_names(system: NativeSystem, kind: CollectiveKind) -> tuple[str, ...]:
    """Return the algorithms that the system configures for a kind, one per dimension.

    There is at least one; `InputError` is raised if the system names none.
    """
    names = system.names.get(kind, ())
    if not names:
        message = f"the job's system names no algorithm of {kind}"
        raise InputError(message, cure=f"name one, for example --collective {kind}=ring")
    return names


def _parse_spelling(name: str) -> tuple[str, int]:
    """Convert the configured name of an algorithm to (name, limit of concurrent messages).

    A prefix `one` in lower case is dropped; after that, upper and lower case are equal. Only
    `direct` can have a limit: `direct4` has 4. A limit of 0 means none. Unknown names are
    returned in lower case.
    """
    spelling = name.removeprefix("one").lower()
    if direct := re.fullmatch(r"direct(\d*)", spelling):
        return "direct", int(direct[1] or 0)
    return _SPELLINGS.get(spelling, spelling), 0


def tree_root(index: int) -> str:
    """Return the root of the next double binary tree; the highest rank comes first."""
    return "lowest" if index % 2 else "highest"


def split_native(system: NativeSystem, kind: CollectiveKind, size: int, ranks: int) -> list[int]:
    """Return the bytes of each stream into which ASTRA-sim divides a collective of `size` bytes.

    Source: `generate_collective`. With s = size // `system.splits`, there are size / s streams,
    rounded up, of s bytes each; if s is no divisor of the size, their sum exceeds it. If s is
    less than `ranks`, and the collective is no all-gather, there are `splits` streams of
    `ranks` bytes instead. An all-gather with s = 0 has `size` streams of 0 bytes.
    """
    chunk = size // system.splits
    if kind is not CollectiveKind.ALL_GATHER and chunk < ranks:
        return [ranks] * system.splits
    return [chunk] * -(-size // max(chunk, 1))


def find_named_algorithms(workload: Workload, calls: PlannedCalls) -> Int64Array:
    """Return the algorithm that is named for each collective: int64[collectives], -1 for none.

    The result is an index into `Workload.algorithms`, in the order of the collectives in
    `calls`. A node names an algorithm by its column `algorithm` if that is not negative.
    Otherwise it does by its id in `per_node` of the extension `astra-sim`, which maps ids to
    file prefixes; these are numbered by the list `custom` there.

    Raises `InputError` (`algorithm`) with the location of a node if two ranks of a collective
    name different algorithms, or only some of them name one. Raises `ValueError` for a prefix
    that is not in `custom`.
    """
    named = _list_named_algorithms(workload)[calls.row]
    algorithm_of_call = np.full(len(calls.group), -1, np.int64)
    algorithm_of_call[calls.instance] = named
    differs = np.flatnonzero(algorithm_of_call[calls.instance] != named)
    if len(differs):
        row = int(calls.row[differs[0]])
        file = workload.provenance.source_name or None
        location = workload.nodes.location(row, file)
        message = f"node {workload.nodes.identity[row]} names another algorithm than its group"
        cure = "name one algorithm for a collective on all its ranks"
        raise InputError(message, location=location, cure=cure, code="algorithm")
    return algorithm_of_call


def _list_named_algorithms(workload: Workload) -> Int64Array:
    """Return the index of the workload's algorithm that each node names: int64[nodes], -1 for none.

    A number of at least 0 in the column `algorithm` is used. Otherwise the extension of the job
    decides by node id, which is the same on all ranks: `per_node` has a file prefix by id as text,
    and the result is its index in the list `custom`. If one of them is missing or of another type,
    only the column counts. Raises `ValueError` for a prefix that is not in `custom`, and for an id
    that is no number.
    """
    column = workload.nodes.algorithm.astype(np.int64)
    stated = workload.extensions.get(EXTENSION)
    if not isinstance(stated, dict):
        return column
    prefixes, by_node = stated.get("custom"), stated.get("per_node")
    if not isinstance(prefixes, list) or not isinstance(by_node, dict) or not by_node:
        return column
    numbers = {int(node): prefixes.index(prefix) for node, prefix in by_node.items()}
    of_node = [numbers.get(identity, -1) for identity in workload.nodes.identity.tolist()]
    return np.where(column >= 0, column, np.array(of_node, np.int64))
