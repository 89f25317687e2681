"""Options of the reader and the writer."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class JobReadOptions:
    """Options of the reader `chakra-workload`."""

    groups: str | None = option(
        OptionType.TEXT,
        None,
        """the process groups as JSON, as {"1": [0, 1]}: the text of a group file""",
    )
    drop_dangling: bool = option(
        OptionType.BOOL,
        False,
        "drop dependencies on nodes that are not in the file, and count them",
    )
