"""Synthesis of an algorithm: the fastest candidate with bounds, statistics and provenance.

The bounds are proven; a certificate proves the best verifiable one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import floor

import numpy as np

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
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
from collhub_tacos.time_cuts import (
    TimeCut,
    compute_evacuation_bound,
    find_tightest_cut,
    supports_time_cuts,
)
from hub_core import installed_version
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Provenance,
    UsageError,
)
from hub_core.network import Occupancy, Topology, lower_bound_ns
from hub_core.plugin_api import ONE_SIZE, SynthesisRequest, SynthesisResult
from hub_core.schedules import network_object
from hub_core.verification import verify

_NAME = "collhub-tacos"
# Estimated memory of one transfer in the step table and during the work on it.
_BYTES_PER_TRANSFER = 640
_GIB = 2**30
# Maximum number of links in a certificate, of which every rank's file has a copy.
_MAX_CERTIFICATE_LINKS = 1 << 13
_PICOSECONDS = 10**12
_ANY_SIZE = "fluid"


def synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    """Synthesize the fastest algorithm for a request, with its time and lower bounds in ns.

    If only some ranks are requested (`request.wanted`), the algorithm has only their steps.
    Kernels are compiled if necessary, which is reported to `request.progress`. Raises
    `UsageError` for invalid options, for a single rank (`one-rank`) and for chunks of less
    than one byte (`size-too-small`). Raises `InputError` for a network that does not
    connect all participating NPUs (`disconnected`), and for a schedule that exceeds the
    memory limit (`memory`).
    """
    # Imports numba, which takes a second.
    from collhub_packing.compiling import COMPILING, compilations

    # Report to the user that kernels are being compiled.
    with compilations(lambda: request.progress(0.0, COMPILING)):
        return _synthesize(request, options)


def _synthesize(request: SynthesisRequest, options: TacosOptions) -> SynthesisResult:
    """Return the fastest algorithm that the search finds, with its time, bounds and statistics.

    It has provenance, and an extension with statistics, time, bounds and the certificate
    (`prove_bounds`). There are two cases:

    - All ranks are requested: their steps must not exceed the option `memory`. This is checked
      before the search with a lower bound of the transfers, and after it with their number.
      The algorithm is not verified here.
    - `request.wanted` names some ranks: the algorithm has only their steps, the result is
      partial, and memory is not checked. The entire schedule is verified if possible
      (`_build_answer`).

    Raises `UsageError` for options that `Setting.of` refuses, then for a single rank
    (`one-rank`), then for units of less than one byte (`size-too-small`). Raises `InputError`
    for too many steps (`memory`), an invalid schedule, and a network that does not connect the
    participating NPUs. Other errors of `find_fastest_candidate` propagate.
    """
    setting = Setting.of(request, options)
    if setting.collective.num_ranks == 1:
        raise UsageError(
            "one rank has nothing to send", cure="let at least two ranks take part", code="one-rank"
        )
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
    """Build the algorithm of all ranks or of `setting.requested_ranks`; return it and its time.

    Without requested ranks, algorithm and time are those of `build_timed_algorithm`; no schedule is
    verified here. Otherwise the entire schedule is verified if possible, and the result records
    whether it was. With at most `MAX_SIMULATED_TRANSFERS` transfers, all are built for this, and
    the time is that of the last arrival. With more, only those of the requested ranks are built,
    and the time is the candidate's. Times are in ns, rounded up. Raises `InputError`
    (`invalid-schedule`) for a schedule that is not valid.
    """
    if setting.requested_ranks is None:
        algorithm, time_ns = build_timed_algorithm(setting, request, best)
        return _Answer(algorithm, time_ns, is_replayed=False)
    if best.num_transfers <= MAX_SIMULATED_TRANSFERS:
        transfers = best.transfers(None)
        report = verify(build_algorithm(setting, best, transfers, None))
        if not report.ok:
            raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
        is_replayed, time_ps = True, get_finish_ps(transfers)
    else:
        # Only the transfers of the requested ranks fit in memory. The candidate verifies the
        # schedule on its own arrays; False if it does not support that.
        transfers = best.transfers(setting.requested_ranks)
        is_replayed, time_ps = best.replay(setting.progress), best.time_ps
    algorithm = build_algorithm(setting, best, transfers, setting.requested_ranks)
    return _Answer(algorithm, round_up_to_ns(time_ps), is_replayed)


def _check_memory(setting: Setting, num_transfers: int) -> None:
    """Raise `InputError` (`memory`) if the steps of all ranks would exceed the memory limit.

    `num_transfers`: a lower bound; each takes `_BYTES_PER_TRANSFER` (640) bytes. The limit is
    `setting.memory`, itself included. Nothing is checked if only the steps of some ranks are
    requested.
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
    """Return the statistics of a candidate for users, by name.

    - `form`, `chunks` (pieces per part) and `chunk bytes` of the candidate, then its details
    - `judged on`: the name of the network, only if it is not that of the request
    - `interrupted`: True, only if Ctrl-C ended the search
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
    """Return the data that are stored in the algorithm's extension: `statistics` and these keys.

    - `topology` (its name), `occupancy`, `collective_bytes`, `time_ns`, `bounds_ns`
    - `ratio_to_bound`: `time_ns` divided by the largest bound in `bounds` that holds for messages
      of any size, i.e. whose name does not end with `ONE_SIZE`. None if there is no such bound, or
      if it is 0.

    Keys in `statistics` with the same names are replaced.
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


def compute_exact_times(network: LinkNetwork, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
    """Return the times of one message on every link in ps, computed exactly and rounded down.

    `busy` and `arrival` of the result are int64[links] in the order of `network`.

    - `arrival`: `chunk_bytes` / bandwidth + latency.
    - `busy`: the same with alpha-beta occupancy, otherwise `chunk_bytes` / bandwidth.

    A sum is rounded once, at the end. Bandwidths and latencies have the value of their shortest
    decimal text, as in certificates: 0.1 means exactly 1/10. Times are rounded down so that lower
    bounds computed from them are valid. Raises `OverflowError` if a time is 2^63 ps or more.
    """
    topology, row = network.topology, network.row
    kinds = np.stack([topology.bandwidth_bytes_per_s[row], topology.latency_s[row]])
    # Networks have few kinds of links, and arithmetic with fractions is slow.
    kinds, kind = np.unique(kinds, axis=1, return_inverse=True)
    busy, arrival = [], []
    for bandwidth, latency in kinds.T.tolist():
        sending_ps = _PICOSECONDS * chunk_bytes / Fraction(repr(bandwidth))
        arriving_ps = sending_ps + _PICOSECONDS * Fraction(repr(latency))
        is_busy_until_arrival = occupancy is Occupancy.ALPHA_BETA
        busy.append(math.floor(arriving_ps if is_busy_until_arrival else sending_ps))
        arrival.append(math.floor(arriving_ps))
    kind_of_link = kind.ravel()
    return LinkTimes(
        np.asarray(busy, np.int64)[kind_of_link], np.asarray(arrival, np.int64)[kind_of_link]
    )


def build_certificate(
    cut: TimeCut,
    collective: Collective,
    members: Int64Array,
    topology: Topology,
    collective_bytes: int,
    occupancy: Occupancy,
) -> dict[str, JsonValue]:
    """Return the JSON document that proves the lower bound of a cut for messages of one unit.

    docs/certificates.md describes its members. `members`: NPU of each rank (member `ranks`).
    `lower_bound_ns` is the time of the cut, rounded down. `since_ps` is that of the cut, with
    negative entries replaced by 0. The links of `network` and `latencies_s` (exact latencies in s
    as fractions, such as `1/2000000`) are omitted for more than `_MAX_CERTIFICATE_LINKS` (8192)
    links. `root` is included only if the collective has one.
    """
    is_short = topology.num_links <= _MAX_CERTIFICATE_LINKS
    latencies: list[JsonValue] = [
        str(Fraction(repr(latency))) for latency in topology.latency_s.tolist()
    ]
    document: dict[str, JsonValue] = {
        "collective": str(collective.kind),
        "ranks": members.tolist(),
        "collective_bytes": collective_bytes,
        "unit_count": collective.unit_count,
        "occupancy": str(occupancy),
        "lower_bound_ns": cut.time_ps // 1000,
        "network": network_object(topology, with_links=is_short),
        "since_ps": np.maximum(cut.since_ps, 0).tolist(),
    }
    if is_short:
        document["latencies_s"] = latencies
    if collective.root is not None:
        document["root"] = collective.root
    return document


@dataclass(frozen=True, slots=True)
class ProvedBounds:
    """Bounds by name, and the certificate under the name of its kind, empty if there is none."""

    bounds_ns: dict[str, int]
    proof: dict[str, JsonValue]


def prove_bounds(setting: Setting, best: SynthesisCandidate, time_ns: int) -> ProvedBounds:
    """Return lower bounds of the time of an answer by name (ns, rounded down), and a certificate.

    `time_ns`: time of the answer. Messages have one unit, rounded down to bytes, at least 1 byte.

    1. bounds of `compute_lower_bounds_ps`; `fluid` is not compared below
    2. `time-cut`, from `find_tightest_cut` (if supported): only if larger in full ns than all of 1
    3. `evacuation`, from `compute_evacuation_bound`: only if larger than 1 and 2. It is not
       computed if `time_ns` is at most the largest of 1 and 2, rounded up, or with `has_relays`.
    4. `ports and distances`, from `lower_bound_ns`: if that gives a bound, and rank r is on NPU r

    `ONE_SIZE` is appended to the names in 1 to 3, except `fluid`. The certificate is
    `{"bound_certificate": document}`. It proves the later cut of 2 and 3, also if 2 was not larger,
    and is {} without a cut, or if the time of the cut is 0.
    """
    # Switches are ordinary nodes here: the ingress of an NPU is limited by its links.
    network = LinkNetwork.of(setting.network.topology)
    collective = best.collective
    # If the bytes do not divide evenly, some messages have one byte less, and bounds must assume
    # the smaller size.
    size = max(1, setting.collective_bytes // collective.unit_count)
    bounds = compute_lower_bounds_ps(collective, network, setting.members, size, setting.occupancy)
    times = compute_exact_times(network, size, setting.occupancy)
    largest = max((bound for name, bound in bounds.items() if name != _ANY_SIZE), default=0)
    cut = None
    if supports_time_cuts(network, times):
        cut = find_tightest_cut(collective, network, times, setting.members)
    if cut is not None and cut.time_ps // 1000 > largest // 1000:
        bounds["time-cut"] = largest = cut.time_ps
    # If the answer attains another bound, flows cannot improve it.
    if time_ns > -(-largest // 1000) and not setting.has_relays:
        evacuation = compute_evacuation_bound(collective, network, times, best.chunks, largest)
        if evacuation is not None and evacuation.time_ps > largest:
            bounds["evacuation"] = evacuation.time_ps
            cut = _choose_later_cut(cut, evacuation.time_cut(times), collective.kind)
    bounds_ns = {
        (name if name == _ANY_SIZE else f"{name}{ONE_SIZE}"): bound // 1000
        for name, bound in bounds.items()
    }
    topology = setting.network.topology
    if np.array_equal(setting.members, np.arange(topology.num_npus)):
        ports_ns = lower_bound_ns(setting.collective, topology, setting.collective_bytes)
        if ports_ns is not None:
            bounds_ns["ports and distances"] = floor(ports_ns)
    if cut is None or not cut.time_ps:
        return ProvedBounds(bounds_ns, {})
    document = build_certificate(
        cut,
        collective,
        setting.members,
        topology,
        setting.collective_bytes,
        setting.occupancy,
    )
    return ProvedBounds(bounds_ns, {"bound_certificate": document})


def _choose_later_cut(
    cut: TimeCut | None, evacuation_cut: TimeCut | None, kind: CollectiveKind
) -> TimeCut | None:
    """Return the cut with the later time: the best cut, or the cut of an evacuation.

    The first one is returned if they are equal, and None if both are None. For a reduce-scatter the
    cut of the evacuation, which was computed on the transposed network, is reversed in time.
    """
    if evacuation_cut is None or (cut is not None and cut.time_ps >= evacuation_cut.time_ps):
        return cut
    # The cut of a reduce-scatter was computed on the transposed network, reversed in time.
    return evacuation_cut.reversed if kind is CollectiveKind.REDUCE_SCATTER else evacuation_cut
