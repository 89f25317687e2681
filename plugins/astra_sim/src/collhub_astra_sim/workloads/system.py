"""ASTRA-sim's system JSON and remote memory, with the keys that the model of jobs supports.

Source: `Sys::initialize_sys` and `AnalyticalRemoteMemory` of ASTRA-sim (public release of March
2026). Values on which ASTRA-sim hangs, crashes or reads an uninitialized variable are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NoReturn

from collhub_astra_sim.options import SystemOptions
from hub_core import UsageError, is_finite_number
from hub_core.model import InputError, JobCollective, JsonValue, Location

NATIVE_TYPES = (
    JobCollective.ALL_REDUCE, JobCollective.ALL_GATHER, JobCollective.REDUCE_SCATTER,
    JobCollective.ALL_TO_ALL,
)  # fmt: skip
"""The collectives with algorithms in ASTRA-sim, in the order of `machine_state`'s types."""

MAX_GROUP = 10**12 - 1
"""Of the numbers of process groups: larger ones are names, since tags of 64 bits contain them."""

_ALGORITHM = re.compile(
    r"(one)?(ring|Ring|halvingDoubling|HalvingDoubling|direct(\d*)|Direct(\d*))|doubleBinaryTree"
)
_POLICIES = ("FIFO", "LIFO", "EXPLICIT")
_DEFAULT_ENDPOINT_NS = 10


class Optimization(StrEnum):
    """Order of an all-reduce over several dimensions (key `collective-optimization`)."""

    BASELINE = "baseline"
    LOCAL_BANDWIDTH_AWARE = "localBWAware"


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """A remote memory: a transfer of b bytes takes latency_ns + b // bytes_per_ns."""

    kind: MemoryKind
    latency_ns: int = 0
    bytes_per_ns: int = 1
    npus_per_node: int = 1

    @classmethod
    def of_json(cls, content: bytes | str, name: str = "memory.json") -> RemoteMemory:
        """Parse the remote memory that a JSON object describes.

        The kind (`memory-type`) is a value of `MemoryKind`. With `NO_MEMORY_EXPANSION` all
        other keys are ignored. Otherwise `remote-mem-latency` (integer in ns, at least 0) and
        `remote-mem-bw` (integer in bytes/ns, at least 1) are required. A memory per node also
        requires `num-npus-per-node`, an integer of at least 1; for the other kinds this number
        is 1, whatever the file contains.

        `name`: name of the file, for errors. Raises `InputError` for invalid JSON, for another
        JSON value than an object, and for missing or invalid values.
        """
        keys = _Keys(content, name)
        kind = MemoryKind(keys.text("memory-type", tuple(MemoryKind)))
        if kind is MemoryKind.NONE:
            return cls(kind)
        npus = keys.integer("num-npus-per-node", 1) if kind is MemoryKind.PER_NODE else 1
        latency_ns = keys.integer("remote-mem-latency", 0)
        return cls(kind, latency_ns, keys.integer("remote-mem-bw", 1), npus)


@dataclass(frozen=True, slots=True)
class System:
    """A system configuration.

    `endpoint_ns`: before every message of a native algorithm. `splits`: streams of a collective.
    `active_chunks`: concurrent streams of a dimension. `optimization`: None if missing.
    `algorithms`: names of native algorithms, one per dimension. `custom`: prefix of the algorithm's
    traces. `per_node_file`: name of the YAML that maps nodes to prefixes. `local_memory_gb_per_s`
    (1e9 bytes/s), None: reductions take no time. `peak_tflops`: of the roofline.
    """

    endpoint_ns: int = _DEFAULT_ENDPOINT_NS
    splits: int = 1
    active_chunks: int = 1
    optimization: Optimization | None = None
    algorithms: Mapping[JobCollective, tuple[str, ...]] = field(default_factory=dict)
    custom: Mapping[JobCollective, str] = field(default_factory=dict)
    per_node_file: str | None = None
    local_memory_gb_per_s: float | None = None
    has_roofline: bool = False
    peak_tflops: float = 0.0
    is_replay_only: bool = False

    @classmethod
    def of_json(
        cls, content: bytes | str, name: str = "system.json", injection_scale: float = 1.0
    ) -> System:
        """Parse the system that a JSON text describes.

        Required keys: `preferred-dataset-splits` (integer, at least 1) and `scheduling-policy` (one
        of `_POLICIES`; its value is not used). Optional keys and their defaults:

        - `active-chunks-per-dimension`: integer, at least 1; 1
        - `endpoint-delay`: integer ns, at least 0; `_DEFAULT_ENDPOINT_NS` (10)
        - `collective-optimization`: `baseline` or `localBWAware`; None
        - `local-mem-bw`: GB/s, at least 0; None, also for 0
        - `roofline-enabled`: not 0 needs a `local-mem-bw` above 0 and `peak-perf` (TFLOPS, at least
          0); off. Without it `peak-perf` is not read.
        - `replay-only`: integer, at least 0; off
        - algorithms (`_Keys.algorithms`, `_Keys.custom`) and `per-node-custom-implementation`; none

        True and false count as the integers 1 and 0. Unknown keys are ignored. `injection_scale`:
        ASTRA-sim's option, a factor of the endpoint delay, also of the default; the product is
        rounded towards 0 to ns. `name`: name of the file, for errors. Raises `InputError`
        (`invalid-system`) for other JSON than an object, missing and invalid values, and
        `model-shared-bus` other than 0, because a shared bus is not modelled.
        """
        keys = _Keys(content, name)
        if keys.integer("model-shared-bus", 0, 0):
            keys.fail("model-shared-bus 1 is not modelled", "set it to 0")
        keys.text("scheduling-policy", _POLICIES)
        optimization = None
        if "collective-optimization" in keys.values:
            optimization = Optimization(keys.text("collective-optimization", tuple(Optimization)))
        has_roofline = bool(keys.integer("roofline-enabled", 0, 0))
        memory = keys.number("local-mem-bw") if "local-mem-bw" in keys.values else None
        if has_roofline and not memory:
            keys.fail("roofline-enabled needs local-mem-bw", "specify it in GB/s")
        endpoint_ns = keys.integer("endpoint-delay", 0, _DEFAULT_ENDPOINT_NS)
        return cls(
            endpoint_ns=int(endpoint_ns * injection_scale),
            splits=keys.integer("preferred-dataset-splits", 1),
            active_chunks=keys.integer("active-chunks-per-dimension", 1, 1),
            optimization=optimization,
            algorithms=keys.algorithms(),
            custom=keys.custom(),
            per_node_file=keys.optional_text("per-node-custom-implementation"),
            local_memory_gb_per_s=memory or None,
            has_roofline=has_roofline,
            peak_tflops=keys.number("peak-perf") if has_roofline else 0.0,
            is_replay_only=bool(keys.integer("replay-only", 0, 0)),
        )


class MemoryKind(StrEnum):
    """The NPUs that share a remote memory (key `memory-type`)."""

    NONE = "NO_MEMORY_EXPANSION"
    PER_NPU = "PER_NPU_MEMORY_EXPANSION"
    PER_NODE = "PER_NODE_MEMORY_EXPANSION"
    POOL = "MEMORY_POOL"


class _Keys:
    """The object of a configuration file, with typed access to its values.

    All methods raise `InputError` for a value of another type or range.
    """

    def __init__(self, content: bytes | str, name: str) -> None:
        """Parse the JSON text `content` of the file `name` to a mapping from keys to values.

        Raises `InputError` for invalid or too deeply nested JSON, and for another value than an
        object. The last value of a repeated key is used. Values are checked only when they are
        read.
        """
        self._name = name
        try:
            values: JsonValue = json.loads(content)
        except (ValueError, RecursionError) as error:
            self.fail(f"this is not JSON: {error}")
        if not isinstance(values, dict):
            self.fail("a JSON object was expected")
        self.values: Mapping[str, JsonValue] = values

    def fail(self, message: str, cure: str = "") -> NoReturn:
        """Raise an `InputError` with `message`, located at the file."""
        raise InputError(message, location=Location(self._name), cure=cure, code="invalid-system")

    def _get_value(self, key: str) -> JsonValue:
        """Return the value of a required key, without a check of its type; JSON null gives None.

        Raise `InputError` (`invalid-system`) if the key is missing.
        """
        if key not in self.values:
            self.fail(
                f"the key {key!r} is missing: ASTRA-sim crashes, hangs or guesses", "specify it"
            )
        return self.values[key]

    def integer(self, key: str, minimum: int, default: int | None = None) -> int:
        """Return the integer value of a key, or `default` if the key is missing.

        True is 1 and false is 0, because the JSON library of ASTRA-sim converts them to
        integers. Raise `InputError` for a value below `minimum`, for null, for a number with a
        decimal point (also 1.0), and for another type. If `default` is None, a missing key is
        an error too. `default` is not checked.
        """
        if default is not None and key not in self.values:
            return default
        value = self._get_value(key)
        if not isinstance(value, int) or value < minimum:
            self.fail(f"{key}: {value!r} is not an integer of at least {minimum}")
        return int(value)

    def number(self, key: str) -> float:
        """Return the number of a required key as float; it must be finite and at least 0.

        Raise `InputError` if the key is missing or has another value, such as null, NaN, true,
        false, or an integer beyond the range of floats.
        """
        value = self._get_value(key)
        if not is_finite_number(value) or value < 0:
            self.fail(f"{key}: {value!r:.40} is not a number of at least 0", "write a number")
        return float(value)

    def text(self, key: str, choices: tuple[str, ...]) -> str:
        """Return the text of a required key; it must equal one of `choices`, in the same case.

        Raise `InputError` if the key is missing or has another value, also null.
        """
        value = self._get_value(key)
        if value not in choices:
            self.fail(f"{key}: {value!r} is not one of {', '.join(choices)}")
        return str(value)

    def optional_text(self, key: str) -> str | None:
        """Return the text of a key; None if the key is missing, or its value is null or "".

        Raise `InputError` for a value of another type.
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(f"{key}: a file name was expected, not {value!r}")
        return value or None

    def _get_names(self, key: str) -> tuple[str, ...]:
        """Return the list of texts of a key as a tuple, in its order.

        Empty texts and repetitions are allowed. Raise `InputError` for a value that is no list,
        for an empty list, and for entries that are no texts. Raise `KeyError` if the key is
        missing.
        """
        value = self.values[key]
        if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
            self.fail(f"{key}: a list of names was expected, not {value!r}")
        return tuple(str(name) for name in value)

    def algorithms(self) -> dict[JobCollective, tuple[str, ...]]:
        """Return the names of native algorithms by collective, for the keys that exist.

        The keys are `all-reduce-implementation`, and likewise for all-gather, reduce-scatter and
        all-to-all; this is the order of the result. A value is a list of one name per dimension;
        the number of dimensions is not checked. Names are `ring`, `direct`, `halvingDoubling` (also
        with a capital letter, with `one` before them, and `direct` with a number after it, such as
        `oneDirect4`) and `doubleBinaryTree`. Raises `InputError` (`invalid-system`) for another
        name, and for a value that is no list of texts or is empty.
        """
        names_by_collective = {}
        for collective in NATIVE_TYPES:
            key = f"{collective.label}-implementation"
            if key not in self.values:
                continue
            names_by_collective[collective] = self._get_names(key)
            for name in names_by_collective[collective]:
                if not _ALGORITHM.fullmatch(name):
                    self.fail(
                        f"{key}: {name!r} is no algorithm of ASTRA-sim",
                        "choose ring, direct, halvingDoubling, doubleBinaryTree or a one... form",
                    )
        return names_by_collective

    def custom(self) -> dict[JobCollective, str]:
        """Return the prefix of the file names of each collective's custom algorithm.

        The keys are `all-reduce-implementation-custom`, and likewise for all-gather,
        reduce-scatter and all-to-all; this is the order of the result. Collectives without a
        key are missing. A value is a list of one text, which may be empty. Raises `InputError`
        for any other value, also null.
        """
        prefixes = {}
        for collective in NATIVE_TYPES:
            key = f"{collective.label}-implementation-custom"
            if key in self.values:
                names = self._get_names(key)
                if len(names) > 1:
                    self.fail(f"{key}: ASTRA-sim takes one prefix, not {len(names)}")
                prefixes[collective] = names[0]
        return prefixes


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_GB = 1e9


def build_system(options: SystemOptions) -> dict[str, object]:
    """Return the content of a system.json with the values of the options, which are not checked.

    Values if an option is missing (None):

    - `all-reduce-implementation`, and likewise for all-gather, reduce-scatter and all-to-all:
      ["ring"]. Otherwise the text of the option, divided at commas: one algorithm per dimension.
    - `endpoint-delay`: 10 ns. `collective-optimization`: "localBWAware".
    - `preferred-dataset-splits` (option `splits`), `active-chunks-per-dimension`: 1, also for 0
    - `local-mem-bw` in GB/s (option `memory_bandwidth` in bytes/s): left out
    - `peak-perf` (option `peak_tflops`, TFLOP/s) and `roofline-enabled` (1): both left out

    `scheduling-policy` is always "FIFO".
    """
    content: dict[str, object] = {
        f"{kind.replace('_', '-')}-implementation": (getattr(options, kind) or "ring").split(",")
        for kind in _COLLECTIVES
    }
    content |= {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 10 if options.endpoint_delay is None else options.endpoint_delay,
        "preferred-dataset-splits": options.splits or 1,
        "active-chunks-per-dimension": options.active_chunks or 1,
        "collective-optimization": options.optimization or "localBWAware",
    }
    if options.memory_bandwidth is not None:
        content["local-mem-bw"] = options.memory_bandwidth / _GB
    if options.peak_tflops is not None:
        content |= {"roofline-enabled": 1, "peak-perf": options.peak_tflops}
    return content


def refuse_given(options: SystemOptions) -> None:
    """Raise `UsageError` if an option of the system is given besides a folder's system.json.

    These are the options of `SystemOptions` whose default is None; each value but None is
    refused. The message names the first one, in the order of the fields. Options with
    another default (`network`) are ignored.
    """
    names = [item.name for item in fields(SystemOptions) if item.default is None]
    conflicting = [name for name in names if getattr(options, name) is not None]
    if conflicting:
        message = f"the folder has a system.json: option {conflicting[0]} has no effect"
        raise UsageError(message, cure="change system.json of the folder")
