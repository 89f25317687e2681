"""Options of the reader and the writer."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional


@dataclass(frozen=True, slots=True)
class AssumedRanks:
    """Treatment of ranks without a file."""

    ranks_missing: str = choice(
        ("refuse", "assume-same"),
        "ranks without a file: refuse, or assume that they do the same as the next lower one"
        " that has one",
    )
    ranks: int | None = optional(
        "ranks of the job, where those without a file are assumed (default: those of the groups)",
        OptionType.INT,
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class JobReadOptions(AssumedRanks):
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
