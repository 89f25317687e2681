"""Candidates for an all-reduce in one phase, where whole vectors are small enough for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from collhub_tacos.bounds.form_bounds import whole_vector_ps
from collhub_tacos.networks.path_network import links_of_arcs
from collhub_tacos.one_shot.in_trees import InTrees, in_trees
from collhub_tacos.one_shot.partial_sums import PartialSums, partial_sums
from collhub_tacos.one_shot.steps import steps_of_sums
from collhub_tacos.phases.candidate import Nodes, SynthesisCandidate
from collhub_tacos.progress import Progress
from collhub_tacos.setting import Setting
from hub_core.columns import expanded_ranges
from hub_core.model import Algorithm
from hub_core.schedules import Chunks, Transfers

# Messages on the way fill the links: latencies are then no longer what counts.
_LADDER = (1, 2, 4, 8)
# Cells of trees on links, and pairs of NPUs, up to which building them takes about a second.
_MOST_CELLS, _MOST_PAIRS = 1 << 24, 1 << 16
_WORK = "collecting in one phase"


def unsuitability(setting: Setting) -> str | None:
    """Why an all-reduce in one phase is not made, None where it is."""
    npus, links = setting.network.num_npus, setting.network.num_links
    if setting.has_relays:
        return "some NPUs take no part"
    if setting.wanted is not None:
        return "the steps of some ranks alone are wanted"
    if npus * links > _MOST_CELLS or npus * npus > _MOST_PAIRS:
        return f"{npus} NPUs with {links} links are too many"
    return None


def one_shot(
    setting: Setting, limit_ps: Callable[[], int | None], progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Candidates with the vector in more and more pieces, for as long as that helps.

    None where the fullest link alone takes longer than `limit_ps()`, the fastest time so far.
    """
    progress(0.0, _WORK)
    limit = limit_ps()
    # Every NPU but the last sends whole vectors: that needs no trees to be told.
    if limit is not None and whole_vector_ps(setting) > limit:
        return
    trees = in_trees(setting.network, setting.link_times(1))
    if not trees.connects_all:
        return
    sums = partial_sums(trees)
    ladder = setting.candidates(_LADDER)
    for place, pieces in enumerate(ladder):
        limit = limit_ps()
        if limit is not None and _least_ps(setting, sums, pieces) > limit:
            return
        progress(place / len(ladder), _WORK)
        yield _candidate(setting, trees, sums, pieces)
        if limit is not None and limit_ps() == limit:
            return


def _least_ps(setting: Setting, sums: PartialSums, pieces: int) -> int:
    """What the fullest link is busy for, and what a message takes longer; picoseconds."""
    times = setting.link_times(pieces)
    paths, hops = links_of_arcs(setting.network, times)
    first, lengths = paths.indptr[sums.arc], np.diff(paths.indptr)[sums.arc]
    links = paths.links[expanded_ranges(first, lengths)]
    messages = pieces * np.bincount(links, minlength=len(hops.busy))
    takes = messages * hops.busy + hops.arrival - hops.busy
    return int(np.max(takes[messages > 0], initial=0))


def _candidate(
    setting: Setting, trees: InTrees, sums: PartialSums, pieces: int
) -> SynthesisCandidate:
    collective = replace(
        setting.collective, unit_count=setting.units(pieces), in_place=True, out_of_place=True
    )
    steps, scratch_units = steps_of_sums(trees, sums, setting.link_times(pieces), pieces)
    whole = Algorithm(collective, steps, scratch_units, collective_bytes=setting.collective_bytes)
    return SynthesisCandidate(
        form="one-shot",
        pieces=pieces,
        collective=collective,
        chunks=Chunks.cut(collective, np.ones(pieces, np.int64)),
        num_transfers=len(sums) * pieces,
        time_ps=_least_ps(setting, sums, pieces),
        transfers=_no_transfers,
        replay=lambda progress: False,
        whole=whole,
    )


def _no_transfers(nodes: Nodes) -> Transfers:
    """None: an NPU may hold several sums of one chunk, which transfers do not tell apart."""
    raise AssertionError("the steps of one phase are made at once")
