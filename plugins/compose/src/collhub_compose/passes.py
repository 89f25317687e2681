"""The functions with one algorithm as their input, as passes of `collhub transform`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_compose.options import (
    EmbedOptions,
    RelabelOptions,
    ReplicateOptions,
    RescaleOptions,
)
from collhub_compose.ranks import embed, relabel
from collhub_compose.replication import replicate
from collhub_compose.units import rescale
from hub_core.model import Algorithm, parse_ranks
from hub_core.plugin_api import PassReport

# The result, and what is said of it.
Passed = tuple[Algorithm, PassReport]


def replicated(algorithm: Algorithm, options: ReplicateOptions) -> Passed:
    """Copies side by side; see `replicate`."""
    result = replicate(algorithm, options.instances, options.interleaved)
    return _told(algorithm, result)


def relabelled(algorithm: Algorithm, options: RelabelOptions) -> Passed:
    """The same collective on other ranks; see `relabel`."""
    if options.ranks is None:
        # Not refused, so that a pass works as it is; but said.
        return algorithm, PassReport(("nothing: no ranks are given, as -O ranks=3,0-2",))
    result = relabel(algorithm, parse_ranks(options.ranks))
    return _told(algorithm, result)


def embedded(algorithm: Algorithm, options: EmbedOptions) -> Passed:
    """The same among more ranks, without `ranks` the first ones; see `embed`."""
    if options.num_ranks is None:
        return algorithm, PassReport(("nothing: no number of ranks is given, as -O num_ranks=16",))
    ranks: Sequence[int] = range(algorithm.num_ranks)
    if options.ranks is not None:
        ranks = parse_ranks(options.ranks)
    result = embed(algorithm, ranks, options.num_ranks)
    return _told(algorithm, result)


def rescaled(algorithm: Algorithm, options: RescaleOptions) -> Passed:
    """The same steps on finer units; see `rescale`."""
    result = rescale(algorithm, options.factor)
    return _told(algorithm, result)


def _told(before: Algorithm, after: Algorithm) -> Passed:
    """The result of a pass with what it changed, one line each."""
    changes = []
    new = _facts(after)
    for name, value in _facts(before).items():
        if value != new[name]:
            changes.append(f"{name}: {value} -> {new[name]}")
    # What one tool knows of the algorithm is not true of another one.
    dropped = sorted(set(before.extensions) - set(after.extensions))
    if dropped:
        changes.append(f"extensions dropped: {', '.join(dropped)}")
    return after, PassReport(tuple(changes))


def _facts(algorithm: Algorithm) -> dict[str, str]:
    """What a user would compare, by name."""
    collective, steps = algorithm.collective, algorithm.steps
    messages = steps.channel[steps.sends]
    return {
        "collective": str(collective.kind),
        "root": str(collective.root),
        "ranks": str(collective.num_ranks),
        "units": str(collective.unit_count),
        "steps": str(len(steps)),
        "channels": str(len(np.unique(messages))),
        "in place": _yes_or_no(collective.in_place),
        "out of place": _yes_or_no(collective.out_of_place),
    }


def _yes_or_no(is_claimed: bool) -> str:
    return "claimed" if is_claimed else "not claimed"
