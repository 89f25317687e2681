"""Compare a log of NCCL with its cost model, and find the constant that explains a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from collhub_machine_profiles.gpus import GPUS
from collhub_machine_profiles.nccl_choice import list_symmetric_launches
from collhub_machine_profiles.nccl_constants import version_numbers
from collhub_machine_profiles.nccl_costs import (
    ALGORITHMS_OF,
    Alternative,
    Communicator,
    cost_us,
    list_alternatives,
    ring_steps,
)

from collhub_nccl.explain.calls import (
    NO_SETTINGS,
    CallRequest,
    ExplainedCall,
    NcclSettings,
    explain_call,
    parse_settings,
)
from collhub_nccl.explain.tuning_log import LoggedChoice, LoggedCost, LoggedKernel, TuningLog
from hub_core.model import InputError, Location, format_bytes, format_count

# One version of every set of constants, and the first version with symmetric kernels.
_VERSIONS = (
    "2.18.5", "2.22.3", "2.23.4", "2.26.2", "2.27.7", "2.28.3", "2.28.9", "2.29.2", "2.29.7",
    "2.30.7",
)  # fmt: skip
_SYMMETRIC_VERSION = "2.27.7"
# The log rounds latencies and bandwidths to one decimal.
_ROUNDING = 0.0501
MAX_TIME_DIFFERENCE = 0.005
"""Largest relative difference of a logged and a computed time that counts as equal."""
_LIKELY_GPUS = ("A100", "H100", "B200", "GB200", "GH200")


@dataclass(frozen=True, slots=True)
class LogFinding:
    """Comparison of one logged value: `subject` names it, `explanation` the deciding constant."""

    line: int
    subject: str
    logged: str
    predicted: str
    agrees: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class LogCheck:
    """All comparisons of a log with the model of a communicator, in the order of the lines."""

    log: TuningLog
    communicator: Communicator
    findings: tuple[LogFinding, ...]
    notes: tuple[str, ...]


def check_log(
    log: TuningLog,
    build: Callable[[int | None, int | None, str], Communicator] | None,
    version: str | None = None,
) -> LogCheck:
    """Compare all choices, costs, kernels and thread counts in a log with the model's predictions.

    The version is `version`, or that of the log if `version` is None or "". The ranks are those of
    the log. If it has none they follow from the latency of ring LL (`_infer_ranks`), with a note,
    or are None. The modelled communicator is:

    - With `build`: `build(ranks, nodes, version)`. Unknown nodes are None.
    - Without `build`: that of the first known GPU with these costs, and a note names the GPU.
      Raises `InputError` (`unknown-machine`) if none fits, if ranks are None, or for several nodes.

    If the log has another number of collective channels, it replaces the model's, with a note.
    Settings in the log apply to costs and choices; an unknown setting raises `UsageError`.

    Findings are sorted by line; on one line: costs, choices, kernels, threads, unreadable lines.
    An unreadable line never agrees.
    """
    used_version = version or log.version
    nodes = log.nodes or None
    ranks = log.ranks or _infer_ranks(log, used_version)
    notes = []
    if build is not None:
        communicator = build(ranks, nodes, used_version)
    else:
        communicator = _infer_communicator(log, ranks, nodes or 1, used_version)
        notes.append(f"the costs in the log are those of {communicator.gpu.name}")
    if not log.ranks and ranks:
        notes.append(f"{ranks} ranks on one node, by the latency of ring LL in the log")
    if log.channels and log.channels != communicator.collective_channels():
        notes.append(
            f"the log has {log.channels} collective channels,"
            f" the model {communicator.collective_channels()}: those of the log are used"
        )
        communicator = replace(communicator, gpu=replace(communicator.gpu, channels=log.channels))
    settings = parse_settings(log.settings) if log.settings else NO_SETTINGS
    findings = [_check_cost(cost, log, communicator, settings) for cost in log.costs]
    findings += [_check_choice(entry, communicator, settings) for entry in log.choices]
    findings += [_check_kernel(entry, communicator) for entry in log.kernels]
    findings += list(_check_threads(log))
    findings += [
        LogFinding(
            entry.location.line or 0, "line", "", "", False, f"not understood: {entry.message}"
        )
        for entry in log.unread
    ]
    findings.sort(key=lambda entry: entry.line)
    return LogCheck(log, communicator, tuple(findings), tuple(notes))


def _infer_ranks(log: TuningLog, version: str) -> int | None:
    """Return the number of ranks on one node that explains a logged latency of ring LL, or None.

    The latency is base + steps * hop, with the constants of an H100 for this version, and steps = 2
    (ranks - 1) for an all-reduce, ranks - 1 for an all-gather and a reduce-scatter. The costs of
    these collectives are tried in the order of the log; the first wins that gives an integer number
    of ranks (within 0.1) from 2 to 16.
    """
    for cost in log.costs:
        if (cost.algorithm, cost.protocol) == ("ring", "ll") and cost.collective in {
            "all-reduce", "all-gather", "reduce-scatter"
        }:  # fmt: skip
            steps_per_rank = 2 if cost.collective == "all-reduce" else 1
            constants = Communicator(GPUS["H100"], 8, 1, version).constants
            base, hop = constants.base_us["ring"][0], constants.nvlink_hop_us["ring"][0]
            ranks = (cost.latency_us - base) / hop / steps_per_rank + 1
            if abs(ranks - round(ranks)) < 0.1 and 2 <= round(ranks) <= 16:
                return round(ranks)
    return None


def _infer_communicator(
    log: TuningLog, ranks: int | None, nodes: int, version: str
) -> Communicator:
    """Return the communicator of the first known GPU that has the logged costs of ring and tree.

    The GPUs in `_LIKELY_GPUS` are tried in order, except those with fewer GPUs per node than
    `ranks`. A GPU fits if the model allows every logged algorithm and protocol of ring and tree,
    and latency (us) and bandwidth (GB/s) differ by at most 0.0501. Costs with bandwidth 0 are
    ignored. The result is on one node and has `version`.

    Raises `InputError` (`unknown-machine`) if no GPU fits, if the log has no such costs, if `ranks`
    is None, and if `nodes` is not 1.
    """
    used = [entry for entry in log.costs if entry.bandwidth and entry.algorithm in {"ring", "tree"}]
    if used and ranks is not None and nodes == 1:
        for name in _LIKELY_GPUS:
            if ranks > GPUS[name].gpus_per_node:
                continue
            communicator = Communicator(GPUS[name], ranks, 1, version)
            if all(_cost_agrees(entry, communicator) for entry in used):
                return communicator
    reason = "its cost table is that of no known machine" if used else "it has no cost table"
    raise InputError(
        f"the log does not identify the machine: {reason}",
        location=Location(log.file),
        cure="give --machine, such as h100, or --topology",
        code="unknown-machine",
    )


def _find_alternative(
    communicator: Communicator, collective: str, algorithm: str, protocol: str, dtype: str = ""
) -> Alternative:
    rows = list_alternatives(communicator, collective, dtype)
    return next(
        entry for entry in rows if (entry.algorithm, entry.protocol) == (algorithm, protocol)
    )


def _cost_agrees(cost: LoggedCost, communicator: Communicator) -> bool:
    if cost.collective not in ALGORITHMS_OF:
        return False
    row = _find_alternative(communicator, cost.collective, cost.algorithm, cost.protocol)
    return (
        not row.refusal
        and abs(row.latency_us - cost.latency_us) <= _ROUNDING
        and abs(row.bandwidth - cost.bandwidth) <= _ROUNDING
    )


def _check_cost(
    cost: LoggedCost, log: TuningLog, communicator: Communicator, settings: NcclSettings
) -> LogFinding:
    subject = f"cost of {cost.collective} {cost.algorithm} {cost.protocol}"
    logged = (
        f"{cost.latency_us:.1f} us, {cost.bandwidth:.1f} GB/s" if cost.bandwidth else "not used"
    )
    row = _find_alternative(communicator, cost.collective, cost.algorithm, cost.protocol)
    (row,) = settings.apply(cost.collective, [row])
    predicted = "not used" if row.refusal else f"{row.latency_us:.1f} us, {row.bandwidth:.1f} GB/s"
    if row.refusal:
        agrees = not cost.bandwidth
        explanation = row.refusal if agrees else f"the machine allows it; the model: {row.refusal}"
    elif not cost.bandwidth:
        agrees = False
        explanation = "disabled on this machine: by NCCL_ALGO, NCCL_PROTO, a missing NVLS or LL128"
    else:
        agrees = _cost_agrees(cost, communicator)
        explanation = "" if agrees else _explain_cost(cost, row, log, communicator)
    return LogFinding(cost.line, subject, logged, predicted, agrees, explanation)


def _explain_cost(
    cost: LoggedCost, row: Alternative, log: TuningLog, communicator: Communicator
) -> str:
    """Return a text that explains why a logged cost differs from that of the model.

    `cost`: the log's latency and bandwidth. `row`: those of the model for the same algorithm and
    protocol. Values are equal if they differ by at most 0.0501 us or GB/s.

    If the model has both logged values for a communicator with one changed property, the text is
    the description of the first such change, even if `row` has the logged values too. The changes
    are those of `_list_hypotheses`: the bandwidth of the search, then the version of NCCL, then the
    number of ranks. Otherwise the differing values are listed, separated by a comma:

    1. Latency. For ring and tree on one node it is the time of a hop in us: (logged latency - base
       latency) / steps. Steps are `ring_steps`, for tree 2 * (ranks per node - 1). In all other
       cases it is the total in us.
    2. Bandwidth, as the factor logged / model.

    The text is "" if no value differs and no change applies.
    """
    for label, changed in _list_hypotheses(cost, log, communicator):
        if _cost_agrees(cost, changed):
            return label
    parts = []
    if abs(row.latency_us - cost.latency_us) > _ROUNDING:
        steps = ring_steps(cost.collective, communicator.ranks)
        if cost.algorithm == "tree":
            steps = 2 * (communicator.ranks_per_node - 1)
        column = ("ll", "ll128", "simple").index(cost.protocol)
        constants = communicator.constants
        base = constants.base_us.get(cost.algorithm, (0.0, 0.0, 0.0))[column]
        if communicator.nodes == 1 and cost.algorithm in {"ring", "tree"}:
            hops = constants.nvlink_hop_us if communicator.gpu.has_nvlink else constants.pci_hop_us
            hop = (cost.latency_us - base) / steps
            parts.append(f"hop {hop:.2f} us instead of {hops[cost.algorithm][column]:g} us")
        else:
            parts.append(f"latency {cost.latency_us:.1f} us instead of {row.latency_us:.1f} us")
    if abs(row.bandwidth - cost.bandwidth) > _ROUNDING:
        factor = cost.bandwidth / row.bandwidth
        parts.append(f"channels x speed or its cap {factor:.2f} times that of the model")
    return ", ".join(parts)


def _list_hypotheses(
    cost: LoggedCost, log: TuningLog, communicator: Communicator
) -> Iterator[tuple[str, Communicator]]:
    """Yield (description, communicator) for communicators that differ in one property.

    1. On one node: another bandwidth of NCCL's search (channels * speed). It is the bandwidth in
       the log of ring Simple for the same line and collective, times `ring_steps` / ranks. There is
       one result per such cost. Costs with bandwidth 0 are skipped, and those whose bandwidth
       differs by at most 0.1 % from that of the communicator.
    2. Each known version of NCCL, oldest first, with other constants than those of the
       communicator.
    3. On one node: each other number of ranks, from 2 to the GPUs of a node, ascending.
    """
    channels, speed = communicator.search_channels()
    for ring in log.costs:
        is_row = (ring.line, ring.collective) == (cost.line, cost.collective)
        if is_row and (ring.algorithm, ring.protocol) == ("ring", "simple") and ring.bandwidth:
            steps = ring_steps(cost.collective, communicator.ranks)
            bus = ring.bandwidth * steps / communicator.ranks
            if communicator.nodes == 1 and abs(bus / (channels * speed) - 1) > 1e-3:
                label = f"the search gives {bus:.0f} GB/s (channels x speed), not"
                gpu = replace(communicator.gpu, channel_speed=bus / channels)
                yield f"{label} {channels * speed:.0f}", replace(communicator, gpu=gpu)
    for version in _VERSIONS:
        if replace(communicator, version=version).constants != communicator.constants:
            yield f"constants of NCCL {version}", replace(communicator, version=version)
    if communicator.nodes == 1:
        for ranks in range(2, communicator.gpu.gpus_per_node + 1):
            if ranks != communicator.ranks:
                yield (
                    f"{ranks} ranks instead of {communicator.ranks}",
                    replace(communicator, ranks=ranks),
                )


def _check_threads(log: TuningLog) -> Iterator[LogFinding]:
    """Yield a finding for every logged maximum number of threads of ring and tree, in order.

    Expected are exactly 512 threads for ll and simple, and 640 for ll128; a finding agrees if the
    log has this number. Other algorithms and protocols are ignored. The explanation is "" if it
    agrees. Otherwise the text names the variables NCCL_NTHREADS and NCCL_LL128_NTHREADS; for 256
    threads of ring simple it names slow links instead (channels * speed of at most 12 GB/s).
    """
    usual = {"ll": 512, "ll128": 640, "simple": 512}
    for row in log.threads:
        for (algorithm, protocol), threads in row.threads.items():
            if algorithm not in {"ring", "tree"} or protocol not in usual:
                continue
            agrees = threads == usual[protocol]
            explanation = "" if agrees else "NCCL_NTHREADS or NCCL_LL128_NTHREADS"
            if (algorithm, protocol, threads) == ("ring", "simple", 256):
                explanation = "channels x speed of the search is at most 12 GB/s"
            yield LogFinding(
                row.line,
                f"threads of {algorithm} {protocol}",
                str(threads),
                str(usual[protocol]),
                agrees,
                explanation,
            )


def _check_choice(
    logged: LoggedChoice, communicator: Communicator, settings: NcclSettings
) -> LogFinding:
    collective, assumption = _find_collective(logged, communicator)
    size = logged.total_bytes(communicator.ranks)
    request = CallRequest(communicator, collective, size, settings=settings)
    if collective not in ALGORITHMS_OF:
        reason = f"NCCL's cost model has no {collective}"
        return LogFinding(logged.line, collective, "", "", False, reason)
    call = explain_call(request)
    name = f"{logged.algorithm} {logged.protocol}"
    row = _find_alternative(communicator, collective, logged.algorithm, logged.protocol)
    time_us = None if row.refusal else cost_us(communicator, collective, row, size)
    parts = [assumption] if assumption else []
    is_same = call.choice is not None and name == f"{call.choice.algorithm} {call.choice.protocol}"
    has_time = logged.time_us is None or (
        time_us is not None and abs(logged.time_us / time_us - 1) <= MAX_TIME_DIFFERENCE
    )
    has_channels = not logged.channels or (
        is_same and call.choice is not None and logged.channels == call.choice.channels
    )
    if not is_same:
        parts.append(_explain_choice(logged, row, call))
    if not has_time:
        parts.append(_explain_time(logged, row, time_us, size))
    if is_same and not has_channels and call.choice is not None:
        parts.append(_explain_channels(logged.channels, call.choice.channels))
    logged_text = name
    if logged.time_us is not None:
        logged_text += f", {logged.time_us:.2f} us"
    if logged.channels:
        logged_text += f", {logged.channels} channels"
    predicted = "refused"
    if call.choice is not None:
        predicted = f"{call.choice.algorithm} {call.choice.protocol}"
        if logged.time_us is not None:
            predicted += f", {call.time_us or 0:.2f} us"
        if logged.channels:
            predicted += f", {call.choice.channels} channels"
    agrees = is_same and has_time and has_channels
    subject = f"{collective} of {format_bytes(size)}"
    return LogFinding(logged.line, subject, logged_text, predicted, agrees, "; ".join(parts))


def _find_collective(logged: LoggedChoice, communicator: Communicator) -> tuple[str, str]:
    """Return the collective of a logged choice, and a text about how it was found.

    - If the log names it, the text is "".
    - Otherwise it is the first collective of the cost model whose time for the logged
      algorithm, protocol and size differs by at most `MAX_TIME_DIFFERENCE` (relative) from
      the logged time.
    - Otherwise, also without a logged time, it is assumed to be all-reduce.
    """
    if logged.collective is not None:
        return logged.collective, ""
    for collective in ALGORITHMS_OF:
        row = _find_alternative(communicator, collective, logged.algorithm, logged.protocol)
        if row.refusal or logged.time_us is None:
            continue
        time_us = cost_us(communicator, collective, row, logged.size_bytes)
        if abs(logged.time_us / time_us - 1) <= MAX_TIME_DIFFERENCE:
            return collective, f"the line names no collective; its time is that of {collective}"
    return "all-reduce", "the line names no collective; all-reduce is assumed"


def _explain_choice(logged: LoggedChoice, row: Alternative, call: ExplainedCall) -> str:
    """Return a text that explains why NCCL logged another choice than the model's.

    `row`: the model's cost of the logged algorithm and protocol. The text begins with the reason if
    the model refuses the logged choice. Otherwise it begins with the costs of both choices in us;
    this is left out if the model has no choice for the call.

    Then the call is explained again with one change at a time, in this order:

    1. The data type is int8, then float8.
    2. The settings are only NCCL_NVLS_ENABLE=0, then only the logged protocol, then only the logged
       algorithm, then both. The settings of the log are dropped.
    3. The version is each of `_VERSIONS`, oldest first.

    The first one or two changes with which the model makes the logged choice are named, followed by
    "or by a tuner". If there are none, the text names a tuner or another search of channels.
    """
    request = call.request
    name = f"{logged.algorithm} {logged.protocol}"
    cost = ""
    if not row.refusal and call.choice is not None:
        time_us = cost_us(request.communicator, request.collective, row, request.size_bytes)
        cost = (
            f"{name} costs {time_us:.2f} us, {call.choice.algorithm} {call.choice.protocol}"
            f" {call.time_us or 0:.2f} us; "
        )
    elif row.refusal:
        cost = f"the model does not allow {name}: {row.refusal}; "
    algorithm = f"NCCL_ALGO={logged.algorithm.replace('_', '').upper()}"
    protocol = f"NCCL_PROTO={logged.protocol.upper()}"
    settings = (["NCCL_NVLS_ENABLE=0"], [protocol], [algorithm], [algorithm, protocol])
    communicator = request.communicator
    variations: list[tuple[str, CallRequest]] = [
        ("sums of 8-bit integers", replace(request, dtype="int8")),
        ("sums of 8-bit floats", replace(request, dtype="float8")),
    ]
    variations += [
        (" with ".join(texts), replace(request, settings=parse_settings(texts)))
        for texts in settings
    ]
    variations += [
        (
            f"constants of NCCL {version}",
            replace(request, communicator=replace(communicator, version=version)),
        )
        for version in _VERSIONS
    ]
    matching = []
    for label, variation in variations:
        choice = explain_call(variation).choice
        if choice is not None and f"{choice.algorithm} {choice.protocol}" == name:
            matching.append(label)
    if not matching:
        return f"{cost}a tuner, or another search of channels, decides for {name}"
    return f"{cost}explained by {' or '.join(matching[:2])}, or by a tuner"


def _explain_time(logged: LoggedChoice, row: Alternative, time_us: float | None, size: int) -> str:
    if time_us is None or logged.time_us is None:
        return "the model has no time for it"
    transfer_us = logged.time_us - row.latency_us
    if transfer_us > 0 and size / (1e3 * row.bandwidth) > 0.05 * time_us:
        bandwidth = size / (1e3 * transfer_us)
        return (
            f"its time {logged.time_us:.2f} us instead of {time_us:.2f} us needs"
            f" {bandwidth:.1f} GB/s instead of {row.bandwidth:.1f} GB/s (channels x speed or a cap)"
        )
    latency_us = logged.time_us - size / (1e3 * row.bandwidth)
    return (
        f"its time {logged.time_us:.2f} us instead of {time_us:.2f} us needs a latency of"
        f" {latency_us:.2f} us instead of {row.latency_us:.2f} us (ranks, hop or base)"
    )


def _explain_channels(logged: int, predicted: int) -> str:
    if logged < predicted:
        return (
            f"{logged} channels instead of {predicted}: a limit of channels (NCCL_MAX_NCHANNELS,"
            f" NCCL_MAX_CTAS), a tuner, or a search that finds {-(-logged // 2)} channels"
        )
    return (
        f"{logged} channels instead of {predicted}: NCCL_MIN_NCHANNELS, NCCL_MIN_CTAS, fewer"
        " threads (NCCL_NTHREADS), or a tuner"
    )


def _check_kernel(logged: LoggedKernel, communicator: Communicator) -> LogFinding:
    is_share = logged.collective in {"all-gather", "reduce-scatter"}
    size = logged.size_bytes * (communicator.ranks if is_share else 1)
    subject = f"{logged.collective} of {format_bytes(size)}, symmetric"
    logged_text = f"{logged.kernel}, {format_count(logged.channels, 'block')}"
    parts = []
    if version_numbers(communicator.version) < version_numbers(_SYMMETRIC_VERSION):
        parts.append(f"NCCL {communicator.version} has no symmetric kernels, 2.27 and later have")
        communicator = replace(communicator, version=_SYMMETRIC_VERSION)
    launches = list_symmetric_launches(communicator, logged.collective, size)
    if not launches:
        parts.append("the model has no symmetric kernels here: Hopper or later, one node")
        return LogFinding(logged.line, subject, logged_text, "none", False, "; ".join(parts))
    best = launches[0]
    predicted = f"{best.kernel}, {format_count(best.blocks, 'block')}"
    row = next((entry for entry in launches if entry.kernel == logged.kernel), None)
    if row is None:
        parts.append(f"{logged.kernel} is not a known kernel")
    elif row is not best:
        reason = "NCCL_SYM_KERNEL, or other kernels are not available"
        if "LL" in logged.kernel and "LL" not in best.kernel:
            reason = "NCCL uses LL kernels only, if not both buffers are symmetric windows"
            if "MC" not in logged.kernel:
                reason += "; without NVLS it has no MC kernels"
        parts.append(
            f"{logged.kernel} costs {row.time_us:.2f} us, {best.kernel} {best.time_us:.2f} us:"
            f" {reason}"
        )
    if row is not None and row.blocks != logged.channels:
        parts.append(
            f"{format_count(logged.channels, 'block')} instead of {row.blocks}:"
            " NCCL_SYM_CTAS or NCCL_MAX_CTAS"
        )
    agrees = row is best and row.blocks == logged.channels
    return LogFinding(logged.line, subject, logged_text, predicted, agrees, "; ".join(parts))
