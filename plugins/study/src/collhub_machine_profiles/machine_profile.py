"""The profile of a machine as a document, schema `collhub-machine/1`: write it and read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collhub_machine_profiles.calls import CollectiveCall, MedianTimes, may_be_equal
from collhub_machine_profiles.gpus import GPUS, Gpu
from collhub_machine_profiles.time_models import (
    MEANINGS,
    NAMES,
    NETWORK_NAMES,
    FloatArray,
    NetworkModel,
    is_modelled,
)
from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location
from hub_core.plugin_api import Library, Measurement

SCHEMA = "collhub-machine/1"
_SCHEMA_FILE = "machine-1.json"
CONSTANTS_VERSION = 2
"""Version of the formulas to which the constants and networks of a profile belong.

Increase it if a constant keeps its name but changes its meaning. Version 1, which profiles do not
state: NVLS without the fill of its stages, LL steps that grow with threads, exchanges without the
copy of their last slices, hops between nodes that do not grow with the size.
"""


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant of the model. `points` counts the measurements that influence it.

    `source` is `fit`, `prior` (no measurement influences it) or `sibling` (a prior that comes
    from a similar machine).
    """

    value: float
    source: str
    points: int


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Number, median, 90th percentile and maximum of relative errors, as fractions."""

    points: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> ErrorSummary:
        """Summarize relative errors: number, median, 90th percentile and maximum.

        The statistics are of the absolute values, as fractions. Percentiles are interpolated
        linearly. Raises `IndexError` (from numpy) if there are no errors.
        """
        values = np.abs(np.array(list(errors), dtype=float))
        median, p90 = np.percentile(values, (50, 90))
        return cls(len(values), float(median), float(p90), float(values.max()))


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """Relative errors |predicted / measured - 1| of one predictor and configuration."""

    predictor: str
    collective: str
    ranks: int
    nodes: int
    library: str
    version: str
    points: int
    median: float
    p90: float
    worst: float

    def document(self) -> dict[str, object]:
        """Return all fields of the entry as a JSON object.

        `median`, `p90` and `worst` are rounded to 4 decimal places.
        """
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, **{name: round(fields[name], 4) for name in ("median", "p90", "worst")}}


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Measured tables and fitted constants of one machine with one main library version.

    `constants` is empty if the points do not suffice for a model. `day` is the date of the
    latest measurement, "" if the files have no dates.
    """

    name: str
    label: str
    gpu: str
    library: Library
    constants: Mapping[str, Constant]
    tables: tuple[MedianTimes, ...]
    errors: tuple[ErrorEntry, ...]
    sources: tuple[dict[str, object], ...]
    day: str = ""
    networks: tuple[NetworkModel, ...] = ()

    @property
    def known_gpu(self) -> Gpu | None:
        """Description of the GPU; None if the hub does not know its architecture and channels."""
        return GPUS.get(self.gpu)

    def modelled_gpu(self, call: CollectiveCall) -> Gpu | None:
        """Return the profile's GPU if the constants of the profile can predict `call`, else
        None.

        The GPU must be known, the profile must have constants, and the model must cover the
        call (`is_modelled`): it must be a call of NCCL on one node, for example.
        """
        gpu = self.known_gpu
        return gpu if gpu is not None and self.constants and is_modelled(gpu, call) else None

    def constant_values(self) -> FloatArray:
        """Return the values of the constants in the order of `NAMES`, float64.

        Raises `KeyError` for a profile without constants.
        """
        return np.array([self.constants[name].value for name in NAMES])

    def table_for(self, point: CollectiveCall) -> MedianTimes | None:
        """Return the table of measured times for the configuration of a call, or None.

        Collective, ranks, nodes, data type, and name and variant of the library must be equal. The
        versions must be equal too, unless one of them is unknown (empty). The first table with the
        same version text as the call is preferred; otherwise the result is the first table that
        matches. The size of the call is ignored.
        """
        same = [
            table
            for table in self.tables
            if (table.collective, table.ranks, table.nodes, table.dtype)
            == (point.collective, point.ranks, point.nodes, point.dtype)
            and may_be_equal(table.library, point.library)
        ]
        exact = [table for table in same if table.library.version == point.library.version]
        return next(iter([*exact, *same]), None)


def profile_name(label: str) -> str:
    """Return a label as a name of at most 60 characters: lower-case letters, digits and single
    hyphens; `machine` if nothing is left.
    """
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:60].strip("-") or "machine"


def profile_document(profile: MachineProfile) -> dict[str, object]:
    """Return the profile as a new JSON object of the schema `collhub-machine/1`.

    - `name`, `label`, `library` (name and version), and `constants_version`: always present
    - `gpu`: null for ""; `gpus_per_node`, `links`: null if the hub does not know the GPU
    - `nccl`, the channels of the GPU: null also if the GPU has no model
    - `constants`: by name, {} without constants. Each has its value with five significant digits,
      source, points and meaning.
    - `network`: a list with constants of five digits, null if empty
    - `tables`: a list, possibly empty, with times of six significant digits; `dtype` only if known
    - `errors`: a list, possibly empty, with errors rounded to four decimals
    - `date`: null for ""; `sources`: a list, possibly empty

    Lists keep the order of the profile. Raises `KeyError` for a constant that is not in `MEANINGS`.
    """
    gpu = profile.known_gpu
    constants = {
        name: {
            "value": float(f"{constant.value:.5g}"),
            "source": constant.source,
            "points": constant.points,
            "meaning": MEANINGS[name],
        }
        for name, constant in profile.constants.items()
    }
    nccl = None
    if gpu is not None and gpu.has_model:
        nccl = {
            "channels": gpu.search_channels,
            "speed": gpu.channel_speed,
            "collective_channels": gpu.channels,
            "nvls_speed": gpu.nvls_speed,
            "nvls_channels": gpu.nvls_channels,
        }
    networks = []
    for network in profile.networks:
        values = zip(NETWORK_NAMES, network.values, strict=True)
        networks.append(
            {
                "collective": "all-reduce",
                "library": _library_document(network.library),
                "ranks_per_node": network.ranks_per_node,
                "nodes": list(network.nodes),
                "points": network.points,
                "constants": {name: float(f"{value:.5g}") for name, value in values},
            }
        )
    return {
        "schema": SCHEMA,
        "name": profile.name,
        "label": profile.label,
        "gpu": profile.gpu or None,
        "gpus_per_node": gpu.gpus_per_node if gpu else None,
        "links": gpu.links if gpu else None,
        "library": {"name": profile.library.name, "version": profile.library.version},
        "nccl": nccl,
        "constants_version": CONSTANTS_VERSION,
        "constants": constants,
        "network": networks or None,
        "tables": [_table_document(table) for table in profile.tables],
        "errors": [error.document() for error in profile.errors],
        "date": profile.day or None,
        "sources": list(profile.sources),
    }


def _table_document(table: MedianTimes) -> dict[str, object]:
    document: dict[str, object] = {
        "collective": table.collective,
        "ranks": table.ranks,
        "nodes": table.nodes,
        "library": _library_document(table.library),
        "repeats": table.repeats,
    }
    if table.dtype:
        document["dtype"] = table.dtype
    pairs = zip(table.sizes, table.times_us, strict=True)
    return {**document, "points": [[int(size), float(f"{time:.6g}")] for size, time in pairs]}


def _library_document(library: Library) -> dict[str, str]:
    return {"name": library.name, "version": library.version, "variant": library.variant}


def profile_bytes(profile: MachineProfile) -> bytes:
    """Return the profile as JSON text in UTF-8, with one line per list entry and constant.

    The fields are those of `profile_document`, in its order. Each begins a line, indented by two
    blanks. Entries of non-empty lists (tables, errors, sources, network) and the constants each
    have a line, indented by four. All other values are on the line of their field. Characters
    outside ASCII are escaped. Equal profiles whose members have the same order give equal bytes.
    The text ends with a line feed.
    """
    lines = []
    for key, value in profile_document(profile).items():
        if isinstance(value, list) and value:
            inner = ",\n".join(f"    {json.dumps(entry)}" for entry in value)
            lines.append(f'  "{key}": [\n{inner}\n  ]')
        elif key == "constants" and isinstance(value, dict) and value:
            inner = ",\n".join(
                f'    "{name}": {json.dumps(entry)}' for name, entry in value.items()
            )
            lines.append(f'  "{key}": {{\n{inner}\n  }}')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_profile(file: str) -> MachineProfile:
    """Read the profile in a file.

    Raises `InputError` with the reason if the file cannot be read (`unreadable-input`), and the
    errors of `parse_profile`.
    """
    try:
        content = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        cure = "write a profile with 'collhub calibrate RESULT... -o machine.json'"
        raise InputError(
            f"{reason}", location=Location(file), cure=cure, code="unreadable-input"
        ) from None
    return parse_profile(content, file)


def parse_profile(content: bytes, file: str, *, checks_schema: bool = True) -> MachineProfile:
    """Parse the JSON text of a machine profile; `file` is its name in messages.

    `checks_schema`: False for shipped profiles, whose schema is checked by a test, because the
    check takes 0.2 CPU seconds. Then malformed members raise `KeyError` or `TypeError`. Constants
    get the order of `NAMES`; null becomes "" or an empty tuple.

    Raises `InputError`, located at the file, at the first of these checks that fails. The code is
    `invalid-profile` unless another one is given:

    1. The text is a JSON object (errors of `parse_json_object`), and its `schema` is
       `collhub-machine/1`.
    2. It satisfies the schema. Up to 20 violations are reported with their paths.
    3. `constants_version`, 1 if absent, is that of this version of the model (`other-constants`). A
       profile without constants and networks may have any version.
    4. The constants are exactly those in `NAMES`, or there are none.
    5. The sizes of each table increase strictly.
    """
    document = parse_json_object(content, file)
    location = Location(file)
    if document.get("schema") != SCHEMA:
        message = f"this is not a machine profile ($.schema is not {SCHEMA!r})"
        cure = "write one with 'collhub calibrate RESULT... -o machine.json'"
        raise InputError(message, location=location, cure=cure, code="invalid-profile")
    violations = schema_violations(document, _SCHEMA_FILE) if checks_schema else []
    if violations:
        raise InputError(
            [violation.finding(location, "invalid-profile") for violation in violations]
        )
    version = document.get("constants_version", 1)
    if version != CONSTANTS_VERSION and (document["constants"] or document["network"]):
        raise InputError(
            f"$.constants_version: the constants belong to version {version} of the model, this"
            f" collhub uses version {CONSTANTS_VERSION}, in which they have other meanings",
            location=location,
            cure="upgrade collhub"
            if version > CONSTANTS_VERSION
            else "calibrate the machine again with 'collhub calibrate RESULT... -o machine.json'",
            code="other-constants",
        )
    constants = {
        name: Constant(entry["value"], entry["source"], entry["points"])
        for name, entry in document["constants"].items()
    }
    if constants and set(constants) != set(NAMES):
        wrong = ", ".join(sorted(set(constants) ^ set(NAMES)))
        message = f"$.constants: missing or unknown: {wrong}"
        raise InputError(
            message, location=location, cure="calibrate the machine again", code="invalid-profile"
        )
    tables = [_table(table, index, location) for index, table in enumerate(document["tables"])]
    return MachineProfile(
        document["name"],
        document["label"],
        document["gpu"] or "",
        Library(**document["library"]),
        {name: constants[name] for name in NAMES if name in constants},
        tuple(tables),
        tuple(ErrorEntry(**error) for error in document["errors"]),
        tuple(document["sources"]),
        document["date"] or "",
        tuple(_network(network) for network in document["network"] or ()),
    )


def _network(document: dict[str, Any]) -> NetworkModel:
    return NetworkModel(
        Library(**document["library"]),
        document["ranks_per_node"],
        tuple(document["constants"][name] for name in NETWORK_NAMES),
        document["points"],
        tuple(sorted(document["nodes"])),
    )


def _table(document: dict[str, Any], index: int, location: Location) -> MedianTimes:
    sizes = np.array([size for size, _ in document["points"]], dtype=float)
    times_us = np.array([time for _, time in document["points"]], dtype=float)
    if not (np.diff(sizes) > 0).all():
        message = f"$.tables[{index}].points: sizes do not increase"
        raise InputError(
            message, location=location, cure="calibrate the machine again", code="invalid-profile"
        )
    return MedianTimes(
        document["collective"],
        document["ranks"],
        document["nodes"],
        Library(**document["library"]),
        document.get("dtype", ""),
        sizes,
        times_us,
        document["repeats"],
    )


def used_sources(
    points: Iterable[Measurement], described: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, object], ...]:
    """Return a record for each source of the points, sorted by its name; empty without points.

    A record has `name`, the fields that `described` gives for this name (such as repository, commit
    and licence; none for a name that it lacks), and `points`, the number of points of the source.
    """
    counts: dict[str, int] = {}
    for point in points:
        counts[point.source] = counts.get(point.source, 0) + 1
    return tuple(
        {"name": name, **described.get(name, {}), "points": counts[name]} for name in sorted(counts)
    )
