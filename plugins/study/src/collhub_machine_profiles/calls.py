"""Calls of collectives, measured or planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hub_core.plugin_api import Library


class CollectiveCall(Protocol):
    """Call of a collective; `Measurement` and `PlannedCall` have these fields.

    `size_bytes` is the full buffer. A library without a version is any version.
    """

    @property
    def collective(self) -> str:
        """Name of the collective, such as `all-gather`."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the full buffer."""

    @property
    def library(self) -> Library:
        """Library that runs the call."""

    @property
    def dtype(self) -> str:
        """`int8` for sums of 8-bit integers, "" for all else."""


ANY_NCCL = Library("NCCL")
"""NCCL of any version."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call whose time is to be predicted, by default by any version of NCCL."""

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    library: Library = ANY_NCCL
    dtype: str = ""


def may_be_equal(first: Library, second: Library) -> bool:
    """Whether two libraries are the same one; an unknown version is any version."""
    is_same = (first.name, first.variant) == (second.name, second.variant)
    return is_same and (not first.version or not second.version or first.version == second.version)
