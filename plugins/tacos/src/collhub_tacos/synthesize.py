"""Synthesis: try forms and numbers of chunks, keep the fastest, and hand it over with its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.path_network import PathNetwork
from collhub_tacos.phases.forms import FORMS, LADDERS, Progress, SynthesisCandidate
from collhub_tacos.setting import Setting
from hub_core.algorithm import Algorithm, JsonValue, Provenance
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError, UsageError
from hub_core.plugins.contract import Options, SynthesisRequest, SynthesisResult
from hub_core.topology import Occupancy
from hub_core.transfers import Transfers, algorithm_of
from hub_core.verification import verify

_NAME = "collhub-tacos"
# What the step table and the work on it take for one transfer.
_BYTES_A_TRANSFER = 640
# Transfers up to which the whole is put in time even where the steps of some ranks are wanted alone, and up to which the
# simulator is asked.
_MOST_JUDGED = 1_000_000


def synthesize(request: SynthesisRequest, options: Options) -> SynthesisResult:
    """The fastest algorithm found for a request; see `plugin.TACOS` for the options.

    Raises `UsageError` for options and sizes that do not fit, and `InputError` for networks that do not connect those
    who take part and for schedules beyond the stated memory.
    """
    setting = Setting.of(request, options)
    if setting.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    _check_memory(setting, _fewest_transfers(setting))
    best = _best(setting, request)
    is_partial = setting.wanted is not None
    _check_memory(setting, best.num_transfers)
    is_whole = not is_partial or best.num_transfers <= _MOST_JUDGED
    transfers = best.transfers(None if is_whole else setting.wanted)
    is_replayed = is_partial and _is_right(setting, best, transfers if is_whole else None)
    algorithm = _algorithm(setting, best, transfers, setting.wanted)
    time_ns = _ns(int(transfers.finish.max(initial=0)) if is_whole else best.time_ps)
    if not is_partial:
        time_ns = _judged_ns(setting, request, algorithm) or time_ns
    bounds = _bounds_ns(setting, best)
    statistics = _statistics(setting, request, best)
    record = _record(setting, statistics, time_ns, bounds)
    provenance = Provenance(_NAME, version(_NAME), request.topology.name, "", _given(options))
    algorithm = replace(algorithm, provenance=provenance, extensions={_NAME: record})
    return SynthesisResult(algorithm, time_ns, bounds, statistics, is_partial, is_replayed)


def _is_right(setting: Setting, best: SynthesisCandidate, transfers: Transfers | None) -> bool:
    """Check the whole: by the core where all `transfers` are at hand, else on the synthesizer's own arrays.

    False where neither can be. Raises `InputError` for what is wrong.
    """
    if transfers is None:
        return best.replay(setting.progress)
    report = verify(_algorithm(setting, best, transfers, None))
    if not report.ok:
        raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
    return True


def _algorithm(
    setting: Setting,
    candidate: SynthesisCandidate,
    transfers: Transfers,
    wanted: tuple[int, ...] | None,
) -> Algorithm:
    return algorithm_of(
        candidate.collective,
        candidate.chunks,
        transfers,
        npus=setting.members.tolist(),
        num_npus=setting.network.num_npus,
        wanted=wanted,
        collective_bytes=setting.collective_bytes,
    )


def _judged_ns(setting: Setting, request: SynthesisRequest, algorithm: Algorithm) -> int | None:
    """The simulator's time where the order of what happens in one instant counts, and the own one may differ.

    That is where links are free before messages arrive, and where messages meet at switches.
    """
    is_own_exact = setting.occupancy is Occupancy.ALPHA_BETA and not isinstance(
        setting.network, PathNetwork
    )
    is_other_network = setting.network.topology.name != request.topology.name
    if is_own_exact or is_other_network or len(algorithm.steps) > 2 * _MOST_JUDGED:
        return None
    return request.simulate(algorithm)


def _best(setting: Setting, request: SynthesisRequest) -> SynthesisCandidate:
    """The fastest over forms and numbers of chunks. Ctrl-C ends the search; without a result it is raised again."""
    best: dict[str, SynthesisCandidate] = {}
    is_interrupted = False
    searches = _searches(setting)
    try:
        for place, search in enumerate(searches):
            for candidate in search(_part_of(setting.progress, place, len(searches))):
                if candidate.form not in best or candidate.time_ps < best[candidate.form].time_ps:
                    best[candidate.form] = candidate
                is_interrupted |= candidate.is_interrupted
            if is_interrupted:
                break
    except KeyboardInterrupt:
        if not best:
            raise
        is_interrupted = True
    fastest = min(
        best.values(),
        key=lambda candidate: _time_ns(setting, request, candidate, is_alone=len(best) == 1),
    )
    return replace(fastest, is_interrupted=is_interrupted)


def _time_ns(
    setting: Setting, request: SynthesisRequest, candidate: SynthesisCandidate, *, is_alone: bool
) -> int:
    """What a form takes beside others, by the simulator where its word counts more."""
    if is_alone or candidate.num_transfers > _MOST_JUDGED:
        return _ns(candidate.time_ps)
    transfers = candidate.transfers(None)
    own = _ns(int(transfers.finish.max(initial=0)))
    return _judged_ns(setting, request, _algorithm(setting, candidate, transfers, None)) or own


_FormSearch = Callable[[Progress], Iterator[SynthesisCandidate]]


def _searches(setting: Setting) -> list[_FormSearch]:
    """The forms to try. Raises `UsageError` for a method that belongs to another collective."""
    kind, method = setting.collective.kind, setting.method
    if kind is not CollectiveKind.ALL_REDUCE:
        if method != "auto":
            message = f"the method {method} is a form of an all-reduce, not of {kind}"
            raise UsageError(message, cure="leave -O method away", code="option-range")
        return [partial(_climb, setting)]
    # Imported here: numba takes a second.
    from collhub_tacos.phases.fused import fused, is_promising, latency, unsuitability

    def on_many_trees(progress: Progress) -> Iterator[SynthesisCandidate]:
        if method == "fused" or is_promising(setting):
            yield fused(setting, progress)

    def on_one_tree(progress: Progress) -> Iterator[SynthesisCandidate]:
        yield latency(setting, progress)

    forms: dict[str, _FormSearch] = {
        "two-phase": partial(_climb, setting),
        "latency": on_one_tree,
        "fused": on_many_trees,
    }
    if method != "auto":
        return [forms[method]]
    has_trees = unsuitability(setting.network) is None and not setting.has_relays
    return list(forms.values()) if has_trees else [forms["two-phase"]]


def _climb(setting: Setting, progress: Progress) -> Iterator[SynthesisCandidate]:
    """Candidates by growing number of chunks, until two in a row do not help."""
    kind = setting.collective.kind
    ladder = setting.candidates(LADDERS[kind])
    times: list[int] = []
    for place, pieces in enumerate(ladder):
        candidate = FORMS[kind](setting, pieces, _part_of(progress, place, len(ladder)))
        yield candidate
        times.append(candidate.time_ps)
        if len(times) > 2 and min(times[-2:]) >= min(times[:-2]):
            return


def _part_of(progress: Progress, place: int, places: int) -> Progress:
    return lambda fraction, what: progress((place + fraction) / places, what)


def _fewest_transfers(setting: Setting) -> int:
    """What any schedule has at least, with the stated chunks or one a share: a transfer to each rank that lacks a unit."""
    pieces = setting.pieces or 1
    units, others = setting.units(pieces), setting.collective.num_ranks - 1
    has_one_end = setting.collective.kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER)
    return others * (pieces if has_one_end else units)


def _check_memory(setting: Setting, num_transfers: int) -> None:
    """Raise `InputError` where the steps of all ranks would take more memory than stated."""
    needed = num_transfers * _BYTES_A_TRANSFER
    if setting.wanted is None and needed > setting.memory:
        message = f"the steps of all ranks take {needed / 2**30:.1f} GiB, the option memory allows {setting.memory / 2**30:.1f} GiB"
        cure = "give -O memory=..., or make the steps of some ranks alone: --write-ranks 0,17"
        raise InputError(message, cure=cure, code="memory")


def _bounds_ns(setting: Setting, best: SynthesisCandidate) -> dict[str, int]:
    """Lower bounds for messages of the size that was chosen, rounded down; `fluid` for those of any size."""
    unit_bytes = setting.chunk_bytes(best.collective.unit_count)
    network = LinkNetwork.of(setting.network.topology)
    bounds = lower_bounds_ps(
        best.collective, network, setting.members, unit_bytes, setting.occupancy
    )
    return {name: bound // 1000 for name, bound in bounds.items()}


def _statistics(
    setting: Setting, request: SynthesisRequest, best: SynthesisCandidate
) -> dict[str, JsonValue]:
    chunk_bytes = setting.chunk_bytes(best.collective.unit_count)
    found: dict[str, JsonValue] = {
        "form": best.form,
        "chunks": best.pieces,
        "chunk bytes": chunk_bytes,
        **best.details,
    }
    if setting.network.topology.name != request.topology.name:
        found["judged on"] = setting.network.topology.name
    return found | ({"interrupted": True} if best.is_interrupted else {})


def _record(
    setting: Setting, statistics: Mapping[str, JsonValue], time_ns: int, bounds: Mapping[str, int]
) -> dict[str, JsonValue]:
    """What the algorithm carries with it."""
    bound = max(bounds.values(), default=None)
    return {
        **statistics,
        "topology": setting.network.topology.name,
        "occupancy": str(setting.occupancy),
        "collective_bytes": setting.collective_bytes,
        "time_ns": time_ns,
        "bounds_ns": dict(bounds),
        "ratio_to_bound": time_ns / bound if bound else None,
    }


def _given(options: Options) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def _ns(time_ps: int) -> int:
    return -(-time_ps // 1000)
