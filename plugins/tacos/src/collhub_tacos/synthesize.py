"""Synthesis: take the fastest candidate, and hand it over with its bounds and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from collhub_tacos.bounds.proved import proved_bounds
from collhub_tacos.candidates import (
    MOST_JUDGED,
    SynthesisCandidate,
    algorithm_for,
    last_finish_ps,
    whole_ns,
    whole_with_time,
)
from collhub_tacos.networks.distances import unreachable
from collhub_tacos.plugin import TacosOptions
from collhub_tacos.search import fastest_candidate
from collhub_tacos.setting import Setting
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
# What the step table and the work on it take for one transfer.
_BYTES_A_TRANSFER = 640
_GIB = 2**30


def synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    """Fastest algorithm found for a request.

    Raises `UsageError` for options and sizes that do not fit, and `InputError` for networks that do
    not connect those who take part and for schedules beyond the stated memory.
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling.compilations import COMPILING, compilations

    # While kernels are compiled, that is reported.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    setting = Setting.of(request, options)
    _check_ranks(setting)
    _check_links(setting)
    _check_memory(setting, _fewest_transfers(setting))
    best = fastest_candidate(setting, request)
    _check_memory(setting, best.num_transfers)
    made = _made(setting, request, best)
    proved = proved_bounds(setting, best, made.time_ns)
    bounds = proved.bounds_ns
    statistics = _statistics(setting, request, best)
    algorithm = replace(
        made.algorithm,
        provenance=_provenance(request, options),
        extensions={_NAME: _record(setting, statistics, made.time_ns, bounds) | proved.proof},
    )
    is_partial = setting.wanted is not None
    return SynthesisResult(
        algorithm,
        made.time_ns,
        bounds,
        statistics,
        is_partial,
        made.is_replayed,
    )


def _check_ranks(setting: Setting) -> None:
    if setting.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )


def _check_links(setting: Setting) -> None:
    """Raise `InputError` where there is no link; of others the kernels tell who is cut off."""
    first, second = setting.members[:2].tolist()
    if not setting.network.num_links:
        raise unreachable(setting.network, first, second)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Algorithm with its time; `is_replayed`: whether the whole was checked where it is a part."""

    algorithm: Algorithm
    time_ns: int
    is_replayed: bool


def _made(
    setting: Setting,
    request: SynthesisRequest,
    best: SynthesisCandidate,
) -> _Answer:
    """Steps that are wanted: of all ranks, or of some."""
    if setting.wanted is not None:
        return _made_in_part(setting, best)
    algorithm, time_ns = whole_with_time(setting, request, best)
    return _Answer(algorithm, time_ns, is_replayed=False)


def _made_in_part(setting: Setting, best: SynthesisCandidate) -> _Answer:
    """Steps of some ranks; of few transfers the whole is put in time and checked all the same."""
    # Of many transfers, those of the wanted ranks alone fit in memory.
    is_whole = best.num_transfers <= MOST_JUDGED
    transfers = best.transfers(None if is_whole else setting.wanted)
    is_replayed = _is_right(setting, best, transfers if is_whole else None)
    algorithm = algorithm_for(setting, best, transfers, setting.wanted)
    time_ps = last_finish_ps(transfers) if is_whole else best.time_ps
    return _Answer(algorithm, whole_ns(time_ps), is_replayed)


def _is_right(setting: Setting, best: SynthesisCandidate, transfers: Transfers | None) -> bool:
    """Check the whole: by the core where all `transfers` are at hand, else on own arrays.

    False where neither can be. Raises `InputError` for what is wrong.
    """
    if transfers is None:
        return best.replay(setting.progress)
    report = verify(algorithm_for(setting, best, transfers, None))
    if not report.ok:
        raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
    return True


def _fewest_transfers(setting: Setting) -> int:
    """Transfers of any schedule, with the stated chunks or one a share, at least."""
    pieces = setting.pieces or 1
    units, others = setting.units(pieces), setting.collective.num_ranks - 1
    # A gather or scatter moves each share once, others bring every unit to all that lack it.
    has_one_end = setting.collective.kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER)
    return others * (pieces if has_one_end else units)


def _check_memory(setting: Setting, num_transfers: int) -> None:
    """Raise `InputError` where the steps of all ranks would take more memory than stated."""
    needed = num_transfers * _BYTES_A_TRANSFER
    if setting.wanted is not None or needed <= setting.memory:
        return
    takes = f"the steps of all ranks take {needed / _GIB:.1f} GiB"
    raise InputError(
        f"{takes}, the option memory allows {setting.memory / _GIB:.1f} GiB",
        cure="give -O memory=..., or make the steps of some ranks alone: --write-ranks 0,17",
        code="memory",
    )


def _statistics(
    setting: Setting, request: SynthesisRequest, best: SynthesisCandidate
) -> dict[str, JsonValue]:
    """What is told about the choice."""
    found: dict[str, JsonValue] = {
        "form": best.form,
        "chunks": best.pieces,
        "chunk bytes": setting.chunk_bytes(best.collective.unit_count),
        **best.details,
    }
    if setting.network.topology.name != request.topology.name:
        found["judged on"] = setting.network.topology.name
    if best.is_interrupted:
        found["interrupted"] = True
    return found


def _record(
    setting: Setting, statistics: Mapping[str, JsonValue], time_ns: int, bounds: Mapping[str, int]
) -> dict[str, JsonValue]:
    """What the algorithm carries with it."""
    certain = (time for name, time in bounds.items() if not name.endswith(ONE_SIZE))
    bound = max(certain, default=None)
    return {
        **statistics,
        "topology": setting.network.topology.name,
        "occupancy": str(setting.occupancy),
        "collective_bytes": setting.collective_bytes,
        "time_ns": time_ns,
        "bounds_ns": dict(bounds),
        "ratio_to_bound": time_ns / bound if bound else None,
    }


def _provenance(request: SynthesisRequest, options: TacosOptions) -> Provenance:
    given = {name: str(value) for name, value in asdict(options).items()}
    # Sources that are imported without being installed have no version.
    version = installed_version(_NAME) or ""
    return Provenance(_NAME, version, request.topology.name, "", given)
