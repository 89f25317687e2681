"""Synthesis of an algorithm: the fastest candidate with its bounds, statistics and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from collhub_tacos.bounds.proved import prove_bounds
from collhub_tacos.plugin import TacosOptions
from collhub_tacos.search.candidates import (
    MAX_SIMULATED_TRANSFERS,
    SynthesisCandidate,
    build_algorithm,
    build_timed_algorithm,
    get_finish_ps,
    round_up_to_ns,
)
from collhub_tacos.search.fastest_candidate import find_fastest_candidate
from collhub_tacos.search.setting import Setting
from collhub_tacos.symmetry import unreachable_error
from hub_core import installed_version
from hub_core.model import Algorithm, CollectiveKind, InputError, JsonValue, Provenance, UsageError
from hub_core.plugin_api import (
    ONE_SIZE,
    SynthesisRequest,
    SynthesisResult,
)
from hub_core.schedules import Transfers
from hub_core.verification import verify

_NAME = "collhub-tacos"
# Estimated memory of one transfer in the step table and during the work on it.
_BYTES_PER_TRANSFER = 640
_GIB = 2**30


def synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    """Synthesize the fastest algorithm for a request.

    Raises `UsageError` for invalid options and sizes, and `InputError` for networks that do not
    connect all participating NPUs and for schedules that exceed the memory limit.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling import COMPILING, compilations

    # Report to the user that kernels are being compiled.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    """Search, verify and assemble the result; raises like `synthesize`, also for a single rank.

    `UsageError` (`one-rank`) for one rank, and an error for a network without links. Memory is
    checked twice: before the search for a lower bound of the number of transfers (units or, for
    gather and scatter, chunks per share, times the other ranks), after it for the fastest
    candidate. The algorithm gets the provenance (options as texts) and an extension with
    statistics, bounds and proof. The result is partial if ranks were requested.
    """
    setting = Setting.of(request, options)
    if setting.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
    first, second = setting.members[:2].tolist()
    if not setting.network.num_links:
        raise unreachable_error(setting.network, first, second)
    # A lower bound for the number of transfers, by the requested chunks per share.
    pieces = setting.pieces or 1
    units, other_ranks = setting.count_units(pieces), setting.collective.num_ranks - 1
    # A gather or scatter moves each share once; other collectives bring every unit to all NPUs that
    # lack it.
    has_one_end = setting.collective.kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER)
    _check_memory(setting, other_ranks * (pieces if has_one_end else units))
    best = find_fastest_candidate(setting, request)
    _check_memory(setting, best.num_transfers)
    answer = _build_answer(setting, request, best)
    proved = prove_bounds(setting, best, answer.time_ns)
    bounds = proved.bounds_ns
    statistics = _collect_statistics(setting, request, best)
    option_texts = {name: str(value) for name, value in asdict(options).items()}
    # A source tree that is imported without being installed has no version.
    version = installed_version(_NAME) or ""
    algorithm = replace(
        answer.algorithm,
        provenance=Provenance(_NAME, version, request.topology.name, "", option_texts),
        extensions={
            _NAME: _build_extension(setting, statistics, answer.time_ns, bounds) | proved.proof
        },
    )
    is_partial = setting.requested_ranks is not None
    return SynthesisResult(
        algorithm,
        answer.time_ns,
        bounds,
        statistics,
        is_partial,
        answer.is_replayed,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Algorithm with its time.

    `is_replayed`: whether the entire schedule was verified although only a part is returned.
    """

    algorithm: Algorithm
    time_ns: int
    is_replayed: bool


def _build_answer(
    setting: Setting,
    request: SynthesisRequest,
    best: SynthesisCandidate,
) -> _Answer:
    """Build the requested steps: of all ranks, or of some after verifying the schedule.

    For requested ranks, all transfers are used if there are at most `MAX_SIMULATED_TRANSFERS`, and
    the time is that of their last arrival; otherwise only those of the ranks, and the time is the
    candidate's. Times are rounded up to ns.
    """
    if setting.requested_ranks is not None:
        # If there are many transfers, only those of the requested ranks fit in memory.
        is_whole = best.num_transfers <= MAX_SIMULATED_TRANSFERS
        transfers = best.transfers(None if is_whole else setting.requested_ranks)
        is_replayed = _verify(setting, best, transfers if is_whole else None)
        algorithm = build_algorithm(setting, best, transfers, setting.requested_ranks)
        time_ps = get_finish_ps(transfers) if is_whole else best.time_ps
        return _Answer(algorithm, round_up_to_ns(time_ps), is_replayed)
    algorithm, time_ns = build_timed_algorithm(setting, request, best)
    return _Answer(algorithm, time_ns, is_replayed=False)


def _verify(setting: Setting, best: SynthesisCandidate, transfers: Transfers | None) -> bool:
    """Verify the entire schedule: by the core if `transfers` are given, else by replay.

    Returns whether it was verified; False if a replay is impossible. Raises `InputError` (code
    `invalid-schedule` from the core) for an invalid schedule.
    """
    if transfers is None:
        return best.replay(setting.progress)
    report = verify(build_algorithm(setting, best, transfers, None))
    if not report.ok:
        raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
    return True


def _check_memory(setting: Setting, num_transfers: int) -> None:
    """Raise `InputError` if the steps of all ranks would exceed the memory limit.

    Not if only the steps of some ranks are requested. `num_transfers`: a lower bound.
    """
    needed = num_transfers * _BYTES_PER_TRANSFER
    if setting.requested_ranks is not None or needed <= setting.memory:
        return
    takes = f"the steps of all ranks take {needed / _GIB:.1f} GiB"
    raise InputError(
        f"{takes}, the option memory allows {setting.memory / _GIB:.1f} GiB",
        cure="give -O memory=..., or make the steps of some ranks alone: --write-ranks 0,17",
        code="memory",
    )


def _collect_statistics(
    setting: Setting, request: SynthesisRequest, best: SynthesisCandidate
) -> dict[str, JsonValue]:
    """Return the statistics for users: form, chunks, and the details of the candidate.

    Also the network's name if it is not that of the request, and whether Ctrl-C ended the search.
    """
    statistics: dict[str, JsonValue] = {
        "form": best.form,
        "chunks": best.pieces,
        "chunk bytes": setting.chunk_bytes(best.collective.unit_count),
        **best.details,
    }
    if setting.network.topology.name != request.topology.name:
        statistics["judged on"] = setting.network.topology.name
    if best.is_interrupted:
        statistics["interrupted"] = True
    return statistics


def _build_extension(
    setting: Setting, statistics: Mapping[str, JsonValue], time_ns: int, bounds: Mapping[str, int]
) -> dict[str, JsonValue]:
    """Return the data that are stored in the algorithm's extension: statistics, time and bounds.

    `ratio_to_bound`: time divided by the largest bound for messages of any size, None without one.
    """
    any_size_bounds = (time for name, time in bounds.items() if not name.endswith(ONE_SIZE))
    bound = max(any_size_bounds, default=None)
    return {
        **statistics,
        "topology": setting.network.topology.name,
        "occupancy": str(setting.occupancy),
        "collective_bytes": setting.collective_bytes,
        "time_ns": time_ns,
        "bounds_ns": dict(bounds),
        "ratio_to_bound": time_ns / bound if bound else None,
    }
