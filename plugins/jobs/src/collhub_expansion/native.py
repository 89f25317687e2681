"""Native algorithms: those that ASTRA-sim's system configuration of a job names, else rings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from collhub_expansion.plan import Calls
from hub_core import InputError, Registry, Topology, UsageError
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, CollectiveKind, JsonValue, Workload
from hub_core.plugin_api import NoOptions, Source, TopologyReader, resolve

EXTENSION = "astra-sim"
_NETWORK_FORMAT = "astra-sim-network"
_SYNTHESIZERS = {
    "ring": "astra-ring",
    "direct": "astra-direct",
    "halving-doubling": "astra-halving-doubling",
    "double-binary-tree": "astra-double-binary-tree",
}
# As the system configuration spells them, in lower case.
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
# At more than this no reduction takes a nanosecond, and it is no bandwidth for the hub.
_MOST_GB_PER_S = 9e8


@dataclass(frozen=True, slots=True)
class NativeSystem:
    """What a system configuration says of native algorithms.

    `endpoint_ns`: before every message. `memory_gb_per_s`: None where reductions take no time.
    `splits`: streams of a collective, of which `active` run at once. `names`: algorithms of a kind,
    one a dimension. `custom`: algorithms that the job brings along. `optimization`: how an
    all-reduce goes through dimensions. `is_stated`: whether the job came with a configuration.
    """

    endpoint_ns: int = 10
    memory_gb_per_s: float | None = None
    splits: int = 1
    active: int = 1
    names: Mapping[CollectiveKind, tuple[str, ...]] = field(default_factory=dict)
    custom: Mapping[CollectiveKind, Algorithm] = field(default_factory=dict)
    optimization: str = ""
    is_stated: bool = False


def stated_network(workload: Workload, registry: Registry) -> Topology | None:
    """The network of the folder that a job came from, None where there is none."""
    stated = workload.extensions.get(EXTENSION)
    text = stated.get("network") if isinstance(stated, dict) else None
    if not isinstance(text, str):
        return None
    reader = registry.find(TopologyReader, _NETWORK_FORMAT)
    source = Source.of_bytes("network.yml", text.encode())
    found = resolve(reader.offer.read)(source, NoOptions())
    return found if isinstance(found, Topology) else None


def native_system(workload: Workload) -> NativeSystem:
    """The system that a job came with. Raises `InputError` for what cannot be expanded."""
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
    return NativeSystem(
        int(values.get("endpoint-delay", 10)),
        values.get("local-mem-bw") or None,
        int(values.get("preferred-dataset-splits", 1)),
        int(values.get("active-chunks-per-dimension", 1)),
        names,
        _custom(workload, stated),
        str(values.get("collective-optimization", "")),
        is_stated=True,
    )


def _custom(workload: Workload, stated: Mapping[str, JsonValue]) -> dict[CollectiveKind, Algorithm]:
    """The algorithms that the job's folder has traces of, by kind."""
    prefixes, by_kind = stated.get("custom"), stated.get("by_kind")
    if not isinstance(prefixes, list) or not isinstance(by_kind, dict):
        return {}
    return {
        CollectiveKind(kind): workload.algorithms[prefixes.index(prefix)]
        for kind, prefix in by_kind.items()
    }


@dataclass(frozen=True, slots=True)
class NativeChoice:
    """A native algorithm: the synthesizer that makes it, and its options."""

    synthesizer: str
    options: Mapping[str, str]

    @property
    def alternates(self) -> bool:
        """Whether every other stream goes up another tree."""
        return self.synthesizer == _SYNTHESIZERS["double-binary-tree"]


@dataclass(frozen=True, slots=True)
class NativePhase:
    """A part of a native collective: `kind` among the ranks that differ in one dimension alone.

    `level`: the dimension. `stride`: between the numbers of these `ranks`. `size`: bytes that each
    of them puts in.
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
    """The phases of a stream of all ranks, one after the other (`generate_collective`).

    `sizes`: of the dimensions. `mask`: bit d says that dimension d takes part. Raises `InputError`
    where ASTRA-sim aborts, never ends, or leaves the order to chance.
    """
    names = _stated_names(system, kind)
    if names[0].startswith("one"):
        # One dimension of all ranks; what else is named counts for nothing.
        names, sizes = names[:1], (prod(sizes),)
    levels = [level for level in range(len(names)) if sizes[level:] and mask >> level & 1]
    levels = [level for level in levels if sizes[level] > 1]
    _check_levels(system, kind, len(names), len(sizes), len(levels))
    found = []
    for one, level in _in_order(system, kind, levels):
        name, width = _spelt(names[level])
        choice = _choice(system, name, width, is_small=False)
        found.append(NativePhase(one, choice, level, prod(sizes[:level]), sizes[level], size))
        if one is CollectiveKind.REDUCE_SCATTER:
            size //= sizes[level]
        elif one is CollectiveKind.ALL_GATHER:
            size *= sizes[level]
    return found


def _check_levels(
    system: NativeSystem, kind: CollectiveKind, names: int, dimensions: int, levels: int
) -> None:
    """Raise `InputError` for what has no phases, or none that are certain."""
    cure = f"name an algorithm, for example --collective {kind}=torus-rings"
    if names > dimensions:
        wrong = f"the job's system names {names} algorithms of {kind} for {dimensions} dimensions"
    elif not levels:
        # ASTRA-sim waits for ever for a stream without phases.
        wrong = f"no dimension with an algorithm takes part in this {kind}"
    elif kind is CollectiveKind.ALL_REDUCE and levels > 1 and not system.optimization:
        wrong = "collective-optimization is not stated, and ASTRA-sim guesses"
    else:
        return
    raise InputError(wrong, cure=cure, code="several-dimensions")


def _in_order(
    system: NativeSystem, kind: CollectiveKind, levels: list[int]
) -> list[tuple[CollectiveKind, int]]:
    """(collective, dimension) of every phase."""
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
    system: NativeSystem, kind: CollectiveKind, wanted: str | None, *, is_small: bool
) -> NativeChoice:
    """The native algorithm of a kind.

    `wanted`: by name, None for the configured one. `is_small`: of a group smaller than the job.
    Raises `InputError` and `UsageError` where there is none.
    """
    if kind not in NATIVE_KINDS:
        message = f"ASTRA-sim has no native algorithm of {kind}"
        cure = f"name one, for example --collective {kind}=direct"
        raise InputError(message, cure=cure, code="no-native")
    name, width = (wanted, 0) if wanted else _configured(system, kind, is_small)
    if name not in _SYNTHESIZERS:
        known = ", ".join(_SYNTHESIZERS)
        raise UsageError(f"there is no native algorithm {name!r}", cure=f"use one of {known}")
    return _choice(system, name, width, is_small=is_small)


def _choice(system: NativeSystem, name: str, width: int, *, is_small: bool) -> NativeChoice:
    """The algorithm with the delays of the system."""
    options = {"endpoint_delay": str(system.endpoint_ns)}
    if system.memory_gb_per_s:
        rate = min(system.memory_gb_per_s, _MOST_GB_PER_S)
        options["memory_bandwidth"] = f"{rate:.17g}GB/s"
    if is_small:
        options["small_group"] = "true"
    if width:
        options["width"] = str(width)
    return NativeChoice(_SYNTHESIZERS[name], options)


def _configured(system: NativeSystem, kind: CollectiveKind, is_small: bool) -> tuple[str, int]:
    """(name, messages at once) of the algorithm that the configuration names, or ring."""
    if not system.is_stated:
        return "ring", 0
    names = _stated_names(system, kind)
    return ("ring", 0) if is_small and len(names) > 1 else _spelt(names[0])


def _stated_names(system: NativeSystem, kind: CollectiveKind) -> tuple[str, ...]:
    """The algorithms that the configuration names, one a dimension."""
    names = system.names.get(kind, ())
    if not names:
        message = f"the job's system names no algorithm of {kind}"
        raise InputError(message, cure=f"name one, for example --collective {kind}=ring")
    return names


def _spelt(name: str) -> tuple[str, int]:
    """(name, messages at once) of an algorithm as the configuration spells it."""
    spelling = name.removeprefix("one").lower()
    if direct := re.fullmatch(r"direct(\d*)", spelling):
        return "direct", int(direct[1] or 0)
    return _SPELLINGS.get(spelling, spelling), 0


def tree_root(turn: int) -> str:
    """The root of the double binary trees' next tree."""
    # The one with the highest rank as root comes first.
    return "lowest" if turn % 2 else "highest"


def native_pieces(system: NativeSystem, kind: CollectiveKind, size: int, ranks: int) -> list[int]:
    """Bytes of the streams into which ASTRA-sim cuts a collective (its `generate_collective`).

    At least a byte for every rank of the job; what is left over is one more stream of full size.
    """
    # Rounded down, as there.
    chunk = size // system.splits
    if kind is not CollectiveKind.ALL_GATHER and chunk < ranks:
        return [ranks] * system.splits
    return [chunk] * -(-size // max(chunk, 1))


def own_algorithms(workload: Workload, calls: Calls) -> Int64Array:
    """Index in `Workload.algorithms` by collective, -1 where the job names none: int64.

    From the column `algorithm`, else from the names by node of a folder for ASTRA-sim. Raises
    `InputError` where the ranks of a collective name different ones.
    """
    named = _named(workload)[calls.row]
    found = np.full(len(calls.group), -1, np.int64)
    found[calls.instance] = named
    differs = np.flatnonzero(found[calls.instance] != named)
    if len(differs):
        row = int(calls.row[differs[0]])
        file = workload.provenance.source_name or None
        place = workload.nodes.location(row, file)
        message = f"node {workload.nodes.identity[row]} names another algorithm than its group"
        cure = "name one algorithm for a collective on all its ranks"
        raise InputError(message, location=place, cure=cure, code="algorithm")
    return found


def _named(workload: Workload) -> Int64Array:
    """The algorithm that each node names, int64 by row."""
    column = workload.nodes.algorithm.astype(np.int64)
    stated = workload.extensions.get(EXTENSION)
    numbers = _by_node(stated) if isinstance(stated, dict) else {}
    if not numbers:
        return column
    of_node = [numbers.get(one, -1) for one in workload.nodes.identity.tolist()]
    return np.where(column >= 0, column, np.array(of_node, np.int64))


def _by_node(stated: Mapping[str, JsonValue]) -> dict[int, int]:
    """Index of the algorithm by identity of the node, the same on all ranks."""
    prefixes, by_node = stated.get("custom"), stated.get("per_node")
    if not isinstance(prefixes, list) or not isinstance(by_node, dict):
        return {}
    return {int(node): prefixes.index(prefix) for node, prefix in by_node.items()}
