"""Sample selections, of the form that `collhub tune` passes to selection writers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.plugin_api.outputs import SelectedCollective, SelectedWindow, Selection
from hub_core.testing.samples import halving_doubling_all_reduce, ring_all_gather, ring_all_reduce

_SIZES = (1 << 10, 1 << 14, 1 << 20)


def sample_selection(num_ranks: int = 4, num_nodes: int = 1) -> Selection:
    """A selection with two in-place all-reduces, each fastest at some sizes, and one all-gather.

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
    get_algorithm: Callable[[str, int], Algorithm],
) -> SelectedCollective:
    """Build a `SelectedCollective` that selects the fastest algorithm at every size.

    `sizes`: ascending, in bytes. `times_ns`: per algorithm, its time at every size. A window begins
    at every size at which the fastest algorithm changes; the first begins at 0, the last is open.
    `get_algorithm`: from name and size.
    """

    def slowdowns(requested_sizes: Collection[int]) -> dict[str, float]:
        """Mean time over the fastest time at these sizes, per algorithm, ascending."""
        indices = [i for i, size in enumerate(sizes) if size in requested_sizes]
        best = [min(times[i] for times in times_ns.values()) for i in indices]
        means = {
            name: sum(times[i] / fastest for i, fastest in zip(indices, best, strict=True))
            / len(indices)
            for name, times in times_ns.items()
        }
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def windows(names: Collection[str] | None) -> tuple[SelectedWindow, ...]:
        """Windows of the fastest algorithms among `names` (None: all)."""
        candidates = [name for name in times_ns if names is None or name in names]
        if not candidates:
            return ()
        winners = [min(candidates, key=lambda name: times_ns[name][i]) for i in range(len(sizes))]
        starts = [i for i in range(len(winners)) if not i or winners[i] != winners[i - 1]]
        result = []
        for start, end in zip(starts, [*starts[1:], len(winners)], strict=True):
            min_bytes = sizes[start] if start else 0
            max_bytes = sizes[end] - 1 if end < len(sizes) else None
            window_sizes = tuple(sizes[start:end])
            result.append(SelectedWindow(min_bytes, max_bytes, winners[start], window_sizes))
        return tuple(result)

    return SelectedCollective(collective, windows, slowdowns, get_algorithm)
