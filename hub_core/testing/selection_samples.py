"""Selections as `collhub tune` hands them to writers, from times that are given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.plugin_api.selection_writer import SelectedCollective, SelectedWindow, Selection
from hub_core.testing.samples import halving_doubling_all_reduce, ring_all_gather, ring_all_reduce

_SIZES = (1 << 10, 1 << 14, 1 << 20)


def sample_selection(num_ranks: int = 4, num_nodes: int = 1) -> Selection:
    """Two algorithms of all-reduce in place, the better one by size, and one of all-gather.

    `num_ranks`: a power of two.
    """
    samples = {
        "halving-doubling": halving_doubling_all_reduce(num_ranks),
        "ring": ring_all_reduce(num_ranks),
    }
    gather = ring_all_gather(num_ranks)
    reduced = selected(
        samples["ring"].collective,
        _SIZES,
        {"halving-doubling": (10, 20, 900), "ring": (20, 21, 300)},
        lambda name, size: samples[name],
    )
    gathered = selected(
        gather.collective,
        _SIZES,
        {"ring": (20, 21, 300)},
        lambda name, size: gather,
    )
    return Selection(f"ring:{num_ranks}", num_ranks, num_nodes, (reduced, gathered))


def selected(
    collective: Collective,
    sizes: Sequence[int],
    times_ns: Mapping[str, Sequence[int]],
    made: Callable[[str, int], Algorithm],
) -> SelectedCollective:
    """A collective with the fastest algorithm at every size, each size the first of a window."""

    def slowdowns(asked: Collection[int]) -> dict[str, float]:
        places = [place for place, size in enumerate(sizes) if size in asked]
        best = [min(times[place] for times in times_ns.values()) for place in places]
        means = {
            name: sum(times[place] / fastest for place, fastest in zip(places, best, strict=True))
            / len(places)
            for name, times in times_ns.items()
        }
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def windows(names: Collection[str] | None) -> tuple[SelectedWindow, ...]:
        known = [name for name in times_ns if names is None or name in names]
        if not known:
            return ()
        places = range(len(sizes))
        winners = [min(known, key=lambda name: times_ns[name][at]) for at in places]
        firsts = [at for at in range(len(winners)) if not at or winners[at] != winners[at - 1]]
        found = []
        for first, behind in zip(firsts, [*firsts[1:], len(winners)], strict=True):
            least = sizes[first] if first else 0
            most = sizes[behind] - 1 if behind < len(sizes) else None
            found.append(SelectedWindow(least, most, winners[first], tuple(sizes[first:behind])))
        return tuple(found)

    return SelectedCollective(collective, windows, slowdowns, made)
