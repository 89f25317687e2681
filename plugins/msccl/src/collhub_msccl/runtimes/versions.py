"""Versions of the runtimes of MSCCL-IR that load such files, with the source of this information.

`known_runtimes` reflects the commits in this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.plugin_api import RuntimeVersions

_READ = "2026-11"


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """Project name, the product that numbers its versions, and the versions in ascending order."""

    title: str
    versioned_by: str
    versions: tuple[RuntimeVersions, ...]


HISTORIES: Mapping[str, RuntimeHistory] = {
    "msccl": RuntimeHistory(
        "microsoft/msccl",
        "NCCL",
        (
            RuntimeVersions(
                "2.12", "2.12", True, "https://github.com/microsoft/msccl (b23e9cd)", _READ
            ),
        ),
    ),
    "executor": RuntimeHistory(
        "Azure/msccl-executor-nccl",
        "NCCL",
        (
            RuntimeVersions(
                "2.23",
                "2.23",
                True,
                "https://github.com/Azure/msccl-executor-nccl (c6f6b36)",
                _READ,
            ),
        ),
    ),
    # Rules: ROCm/rccl 0cbce2a7. RCCL's own version numbers do not decide: 2.28.3 is in ROCm 7.12
    # and 7.13.
    "rccl": RuntimeHistory(
        "ROCm/rccl",
        "ROCm",
        (
            RuntimeVersions(
                "5.5",
                "7.12",
                True,
                "https://github.com/ROCm/rccl/blob/develop/CHANGELOG.md",
                _READ,
                "MSCCL since RCCL 2.15.5",
            ),
            RuntimeVersions(
                "7.13",
                None,
                False,
                "https://github.com/ROCm/rocm-systems/blob/develop/projects/rccl/CHANGELOG.md",
                _READ,
                "MSCCL was removed, mscclLoadAlgo and mscclRunAlgo do nothing",
            ),
        ),
    ),
}
"""Histories by the name in `collhub verify --runtime`."""


def describe_versions(name: str, subject: str) -> list[str]:
    """Note on a runtime whose newest version ignores the files; empty list if it uses them.

    `subject`: beginning of the note with its verb, such as `the files are`.
    """
    history = HISTORIES[name]
    newest, used = history.versions[-1], [row for row in history.versions if row.uses_files][-1]
    if newest.uses_files:
        return []
    product = history.versioned_by
    return [
        f"{subject} loaded by {history.title} up to {product} {used.last}; "
        f"{product} {newest.first} and later do not: {newest.reason}"
    ]
