"""The options of what this distribution offers."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the writer."""

    comments: bool = option(OptionType.BOOL, False, "write a line that names the columns")
