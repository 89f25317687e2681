"""The execution-trace format as declarations: its reader, its writer and their options."""

from __future__ import annotations

from hub_core.plugin_api import Format, FormatReader, FormatWriter, Layout, Option, OptionType

_DANGLING = "drop dependencies on nodes that are not in the file, and count them"
_SIZE_READ = "size of the collective that a foreign trace with sizes in bytes was made for"
_SIZE_WRITTEN = (
    "size of the collective that comm_size is written for "
    "(default: the algorithm's own size, else 1 MiB a unit)"
)
_DIALECT = "how messages state their size: in bytes (absolute), in chunks (symbolic), or both"
_FLATTEN = "write control dependencies as data dependencies, for readers that ignore them"
_RANKS = "write the traces of these ranks alone, as 0,17,4000-4010 (default: all)"

CHAKRA = Format(
    name="chakra",
    description=(
        "Chakra execution traces, one file a rank (collective profile v1 and foreign dialects)"
    ),
    suffixes=(".et",),
    # Record 0 is GlobalMetadata: a version string of five characters, or an attribute with a plain
    # name. What the reader refuses by name is claimed too: a first record that is a node (legacy
    # files), and compressed files.
    signature=rb"(?s)\A(?:\x1f\x8b|.{1,5}(?:\x0a\x05[0-9]\.[0-9]\.[0-9]"
    rb"|\x12.{1,5}\x0a[\x01-\x20][a-z_]{3}"
    rb"|(?:\x08.{1,10})?\x12[\x01-\x40][A-Z][A-Za-z_]{2}))",
    layout=Layout.PREFIX,
)

CHAKRA_READER = FormatReader(
    CHAKRA,
    "hub_core.chakra.read:read",
    (
        Option("drop_dangling", OptionType.BOOL, False, _DANGLING),
        Option("size", OptionType.SIZE, None, _SIZE_READ),
    ),
)

CHAKRA_WRITER = FormatWriter(
    CHAKRA,
    "hub_core.chakra.algorithms.write:write",
    (
        Option("size", OptionType.SIZE, None, _SIZE_WRITTEN),
        Option("dialect", OptionType.TEXT, "both", _DIALECT, ("both", "absolute", "symbolic")),
        Option("flatten", OptionType.BOOL, False, _FLATTEN),
        Option("ranks", OptionType.TEXT, None, _RANKS),
    ),
)
