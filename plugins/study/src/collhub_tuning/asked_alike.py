"""What `compare` and `tune` are asked alike: algorithms to compare, and the root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hub_core import complete_offers
from hub_core.model import CollectiveKind, UsageError
from hub_core.plugin_api import Synthesizer

if TYPE_CHECKING:
    from collhub_tuning.questions import ComparedAlgorithm
    from hub_core import Registry
    from hub_core.network import Topology

algorithms_option = click.option(
    "--with",
    "names",
    metavar="NAME|FILE",
    multiple=True,
    shell_complete=complete_offers(Synthesizer),
    help="A synthesizer, or an algorithm in a file (repeatable; default: all synthesizers).",
)


def roots_of(kinds: Sequence[str], root: int | None, topology: Topology) -> dict[str, int | None]:
    """The root by collective, None where it has none. Raises `UsageError` for what is no NPU."""
    rooted = [kind for kind in kinds if CollectiveKind(kind).traits.is_rooted]
    if root is not None and not rooted:
        raise UsageError(f"--root has no meaning for {', '.join(kinds)}")
    if root is not None and root >= topology.num_npus:
        raise UsageError(f"the root {root} is no NPU of {topology.name}")
    return {kind: (root or 0) if kind in rooted else None for kind in kinds}


def named_algorithms(names: Sequence[str], registry: Registry) -> list[ComparedAlgorithm]:
    """What is named, else every synthesizer. Raises `HubError` for what is neither."""
    from collhub_tuning.auto import NAME as PORTFOLIO
    from collhub_tuning.questions import ComparedAlgorithm

    # What takes the best of all others would only repeat it.
    known = [one.name for one in registry.all(Synthesizer) if one.name != PORTFOLIO]
    found = []
    for name in dict.fromkeys(names or known):
        is_file = name not in known and _may_be_a_file(name)
        if name not in known and not is_file:
            # Says what is closest, and which plugin is broken.
            registry.find(Synthesizer, name)
        found.append(ComparedAlgorithm(name, is_file))
    if not found:
        raise UsageError(
            "there is no synthesizer to compare", cure="install one, or give files: --with FILE"
        )
    return found


def _may_be_a_file(name: str) -> bool:
    """Whether there is a file of the name, or a set of rank files with this prefix."""
    # A prefix names no file itself.
    place = Path(name)
    return place.exists() or place.with_name(f"{place.name}.0.et").exists()
