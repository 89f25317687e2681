"""Declarations of the execution-trace formats: readers, writer and options."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    OptionType,
    choice,
    option,
    optional,
)

CHAKRA = Format(
    name="chakra",
    description=(
        "Chakra execution traces, one file per rank (collective profile v1 and foreign dialects)"
    ),
    suffixes=(".et",),
    # Record 0 is GlobalMetadata: a version string of five characters, or an attribute with a plain
    # name. Files whose first record is a node (legacy files) are claimed as well, so that the
    # reader can refuse them with a reason.
    signature=rb"(?s)\A.{1,5}(?:\x0a\x05[0-9]\.[0-9]\.[0-9]"
    rb"|\x12.{1,5}\x0a[\x01-\x20][a-z_]{3}"
    rb"|(?:\x08.{1,10})?\x12[\x01-\x40][A-Z][A-Za-z_]{2})",
    layout=Layout.PREFIX,
)
CHAKRA_JSON = Format(
    name="chakra-json",
    description="Chakra execution traces in JSON (chakra_jsonizer, feeder), one file per rank",
    suffixes=(".json", ".json.gz"),
    # GlobalMetadata, which may be empty, has a version and attributes; the first node follows.
    signature=rb'\A\s*\{\s*(?:\}\s*\{\s*"|"version"\s*:\s*"[^"]{0,20}"\s*\}\s*\{\s*"'
    rb'|(?:"version"\s*:\s*"[^"]{0,20}"\s*,\s*)?"attr"\s*:\s*\[\s*\{\s*"name"\s*:)'
    # The form of the feeder.
    rb'|"workload_graph"\s*:\s*\[',
    layout=Layout.PREFIX,
)


@dataclass(frozen=True, slots=True)
class ChakraReadOptions:
    """Options of the reader `chakra`."""

    drop_dangling: bool = option(
        OptionType.BOOL,
        False,
        "drop dependencies on nodes that are not in the file, and count them",
    )
    size: int | None = optional(
        "size of the collective of a foreign trace with sizes in bytes",
        OptionType.SIZE,
    )


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of all writers of the traces of an algorithm."""

    size: int | None = optional(
        "size of the collective, from which comm_size is computed"
        " (default: the size of the algorithm, else 1 MiB per unit)",
        OptionType.SIZE,
    )
    dialect: str = choice(
        ("both", "absolute", "symbolic"),
        "unit of message sizes: bytes (absolute), chunks (symbolic), or both",
    )
    flatten: bool = option(
        OptionType.BOOL,
        False,
        "write control dependencies as data dependencies, for readers that ignore them",
    )


@dataclass(frozen=True, slots=True)
class ChakraWriteOptions(TraceOptions):
    """Options of the writer `chakra`."""

    ranks: str | None = optional(
        "write only the traces of these ranks, as 0,17,4000-4010 (default: all)"
    )


CHAKRA_READER = FormatReader(
    CHAKRA, "hub_core.trace_profile.read:chakra_algorithm", ChakraReadOptions
)
CHAKRA_JSON_READER = FormatReader(
    CHAKRA_JSON,
    "hub_core.trace_profile.read:chakra_algorithm",
    ChakraReadOptions,
    samples="hub_core.testing.workloads:json_trace_samples",
)
CHAKRA_WRITER = FormatWriter(CHAKRA, "hub_core.trace_profile.write:write", ChakraWriteOptions)
"""The writer of traces: its format and its record of options."""
