"""Reports of `collhub nccl explain`: JSON records (microseconds, GB/s) and rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from collhub_machine_profiles.nccl_costs import Communicator

from collhub_nccl.explain.calls import ExplainedCall
from collhub_nccl.explain.log_check import LogCheck
from collhub_nccl.explain.measured_check import MeasuredFinding
from hub_core.model import format_bytes, format_count
from hub_core.reports import Meta, Record, Report


class NetworkItem(Record, frozen=True, kw_only=True):
    """Network cards of a node."""

    nics: int
    nic_rate: float = msgspec.field(name="nic_rate_GBps")
    cpu: Annotated[str, Meta(extra_json_schema={"enum": ["intel", "amd", "arm"]})]


class CommunicatorItem(Record, frozen=True, kw_only=True):
    """Communicator as NCCL's cost model describes it."""

    gpu: str
    ranks: int
    nodes: int
    nccl_version: str
    search_channels: int
    channel_speed: float = msgspec.field(name="channel_speed_GBps")
    collective_channels: int
    nvls_channels: int
    network: Annotated[NetworkItem | None, Meta(description="Null on one node.")]


class ChoiceItem(Record, frozen=True, kw_only=True):
    """NCCL's choice for a call."""

    algorithm: str
    protocol: str
    channels: int
    threads: int
    chunk_bytes: int
    chunks: int


class AlternativeItem(Record, frozen=True, kw_only=True):
    """Algorithm with protocol that NCCL compares; without times if it is not allowed."""

    algorithm: str
    protocol: str
    allowed: bool
    nccl_time_us: float | None
    latency_us: float | None
    bandwidth: float | None = msgspec.field(name="bandwidth_GBps")
    reason: Annotated[str | None, Meta(description="Reason why it is not allowed.")]


class SymmetricKernelItem(Record, frozen=True, kw_only=True):
    """Kernel for symmetric memory and its time by NCCL's cost model."""

    kernel: str
    blocks: int
    nccl_time_us: float | None


class ExplainedCallItem(Record, frozen=True, kw_only=True):
    """Call with NCCL's choice; `choice` is null if no algorithm is allowed."""

    size_bytes: int
    choice: ChoiceItem | None
    nccl_time_us: Annotated[float | None, Meta(description="Time by NCCL's cost model.")]
    expected_us: Annotated[float | None, Meta(description="Time by the machine's profile.")]
    expected_by: Annotated[str | None, Meta(description="Predictor of `expected_us`.")]
    decided_by: str
    alternatives: Sequence[AlternativeItem]
    symmetric_kernels: Sequence[SymmetricKernelItem]
    notes: Sequence[str]


class NcclExplainReport(Report, tag="collhub/report-nccl-explain-1", frozen=True, kw_only=True):
    """Report of `collhub nccl explain --json` for a call."""

    collective: str
    communicator: CommunicatorItem
    settings: Sequence[str]
    calls: Sequence[ExplainedCallItem]


class LogFindingItem(Record, frozen=True, kw_only=True):
    """Value in a log, compared with the prediction."""

    line: int
    value: str
    logged: str
    predicted: str
    agrees: bool
    explanation: str | None


class LogItem(Record, frozen=True, kw_only=True):
    """Log of NCCL with the comparisons of its values."""

    file: str
    communicator: CommunicatorItem
    settings: Sequence[str]
    findings: Sequence[LogFindingItem]
    notes: Sequence[str]


class MeasuredCallItem(Record, frozen=True, kw_only=True):
    """Measured call, compared with the expected time and NCCL's choice."""

    file: str
    line: int | None
    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    measured_us: float | None
    expected_us: float | None
    expected_by: str | None
    difference: Annotated[
        float | None, Meta(description="Measured divided by expected, minus 1; null if unknown.")
    ]
    choice: Annotated[str | None, Meta(description="Algorithm and protocol of the model.")]
    channels: int | None
    agrees: bool | None
    explanation: str | None


class NcclLogReport(Report, tag="collhub/report-nccl-log-1", frozen=True, kw_only=True):
    """Report of `collhub nccl explain --log --json`."""

    logs: Sequence[LogItem]
    measured: Sequence[MeasuredCallItem]


CHOICE_HEADER = (
    *("size", "algorithm", "protocol", "channels", "threads", "chunk", "chunks", "NCCL's time"),
    *("expected", "decided by"),
)

CHOICE_RIGHT = ("size", "channels", "threads", "chunk", "chunks", "NCCL's time", "expected")

ALTERNATIVE_HEADER = ("size", "algorithm", "protocol", "NCCL's time", "latency", "bandwidth")

ALTERNATIVE_RIGHT = ("size", "NCCL's time", "latency", "bandwidth")

REFUSAL_HEADER = ("algorithm", "protocol", "not used because")

MEASURED_HEADER = (
    *("line", "collective", "ranks", "size", "measured", "expected", "difference", "choice"),
    "verdict",
)

MEASURED_RIGHT = ("line", "ranks", "size", "measured", "expected", "difference")

LOG_HEADER = ("line", "value", "logged", "predicted", "verdict")


def describe_communicator(communicator: Communicator, version_source: str) -> str:
    """Describe a communicator in one line of text.

    The parts, in this order: the name of the GPU; the number of ranks and of nodes; the
    version of NCCL, followed by `version_source` in parentheses; the number of channels
    that NCCL's search found, with the GB/s of each channel; the number of channels for
    collectives. The number of channels for NVLS follows only if it is not 0.
    """
    channels, speed = communicator.search_channels()
    nodes = format_count(communicator.nodes, "node")
    text = (
        f"{communicator.gpu.name}, {communicator.ranks} ranks on {nodes}, NCCL"
        f" {communicator.version} ({version_source}): {channels} channels of {speed:g} GB/s,"
        f" {communicator.collective_channels()} for collectives"
    )
    nvls = communicator.nvls_channels()
    return f"{text}, {nvls} for NVLS" if nvls else text


def create_explain_report(
    communicator: Communicator,
    calls: Sequence[ExplainedCall],
    expected: Sequence[tuple[float, str] | None],
    settings: Sequence[str],
) -> NcclExplainReport:
    """Create the JSON report of the explained calls.

    `expected` is the time by the machine's profile and its method for each call, None without one.
    """
    return NcclExplainReport(
        collective=calls[0].request.collective,
        communicator=_create_communicator_item(communicator),
        settings=settings,
        calls=[_create_call_item(call, time) for call, time in zip(calls, expected, strict=True)],
    )


def _create_communicator_item(communicator: Communicator) -> CommunicatorItem:
    channels, speed = communicator.search_channels()
    network = communicator.network if communicator.nodes > 1 else None
    item = None
    if network is not None:
        item = NetworkItem(nics=network.nics, nic_rate=network.nic_rate, cpu=network.cpu)
    return CommunicatorItem(
        gpu=communicator.gpu.name,
        ranks=communicator.ranks,
        nodes=communicator.nodes,
        nccl_version=communicator.version,
        search_channels=channels,
        channel_speed=speed,
        collective_channels=communicator.collective_channels(),
        nvls_channels=communicator.nvls_channels(),
        network=item,
    )


def _create_call_item(call: ExplainedCall, expected: tuple[float, str] | None) -> ExplainedCallItem:
    choice = call.choice
    choice_item = None
    if choice is not None:
        choice_item = ChoiceItem(
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            threads=choice.threads,
            chunk_bytes=choice.chunk_bytes,
            chunks=call.chunks,
        )
    return ExplainedCallItem(
        size_bytes=call.request.size_bytes,
        choice=choice_item,
        nccl_time_us=_round(call.time_us),
        expected_us=None if expected is None else _round(expected[0]),
        expected_by=None if expected is None else expected[1],
        decided_by=call.decided_by,
        alternatives=[
            AlternativeItem(
                algorithm=entry.alternative.algorithm,
                protocol=entry.alternative.protocol,
                allowed=entry.time_us is not None,
                nccl_time_us=_round(entry.time_us),
                latency_us=_round(entry.alternative.latency_us) if entry.time_us else None,
                bandwidth=_round(entry.alternative.bandwidth) if entry.time_us else None,
                reason=entry.alternative.refusal or None,
            )
            for entry in call.alternatives
        ],
        symmetric_kernels=[
            SymmetricKernelItem(
                kernel=entry.kernel, blocks=entry.blocks, nccl_time_us=_round(entry.time_us)
            )
            for entry in call.symmetric
        ],
        notes=call.notes,
    )


def choice_rows(
    calls: Sequence[ExplainedCall], expected: Sequence[tuple[float, str] | None]
) -> list[list[str]]:
    """Return one row of 10 table cells per call, in the order of `calls`.

    The cells are size (`1 MiB`), algorithm, protocol, channels, threads, size of a chunk,
    number of chunks, time by NCCL's cost model (`12.34 us`), expected time with its method in
    brackets, and the rule that decided. A chunk that is no multiple of 1024 bytes is given in
    bytes.

    `expected` has one (us, method) per call; the cell is "" for None. A call for which NCCL has
    no algorithm has its size, `none`, seven empty cells and the rule, also if it has an
    expected time. Raises `ValueError` if `expected` has another length.
    """
    rows = []
    for call, time in zip(calls, expected, strict=True):
        choice = call.choice
        size = format_bytes(call.request.size_bytes)
        if choice is None:
            rows.append([size, "none", *[""] * 7, call.decided_by])
            continue
        rows.append(
            [
                size,
                choice.algorithm,
                choice.protocol,
                str(choice.channels),
                str(choice.threads),
                format_bytes(choice.chunk_bytes)
                if choice.chunk_bytes % 1024 == 0
                else f"{choice.chunk_bytes} B",
                str(call.chunks),
                _format_us(call.time_us),
                "" if time is None else f"{_format_us(time[0])} ({time[1]})",
                call.decided_by,
            ]
        )
    return rows


def alternative_rows(calls: Sequence[ExplainedCall]) -> list[list[str]]:
    """Return the allowed alternatives of each call, the lowest cost first, then symmetric kernels.

    Times are those of NCCL's models. Only calls with registered buffers have symmetric kernels.
    """
    return [
        [
            format_bytes(call.request.size_bytes),
            entry.alternative.algorithm,
            entry.alternative.protocol,
            _format_us(entry.time_us),
            f"{entry.alternative.latency_us:.1f} us",
            f"{entry.alternative.bandwidth:.1f} GB/s",
        ]
        for call in calls
        for entry in call.alternatives
        if entry.time_us is not None
    ] + [
        [
            format_bytes(call.request.size_bytes),
            entry.kernel,
            f"symmetric, {format_count(entry.blocks, 'block')}",
            _format_us(entry.time_us),
            "",
            "",
        ]
        for call in calls
        for entry in call.symmetric
    ]


def refusal_rows(call: ExplainedCall) -> list[list[str]]:
    """Return rows (algorithm, protocols, reason) of the alternatives that NCCL does not use.

    These are the alternatives without a time. Protocols with the same algorithm and the same reason
    share a row, joined by ", ". Rows are in the order of the alternatives.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in call.alternatives:
        if entry.time_us is None:
            key = (entry.alternative.algorithm, entry.alternative.refusal)
            reasons.setdefault(key, []).append(entry.alternative.protocol)
    return [
        [algorithm, ", ".join(protocols), reason]
        for (algorithm, reason), protocols in reasons.items()
    ]


def create_log_report(
    checks: Sequence[LogCheck], measured: Sequence[MeasuredFinding]
) -> NcclLogReport:
    """Create the JSON report of comparisons with logs and with measured calls."""
    return NcclLogReport(
        logs=[_create_log_item(check) for check in checks],
        measured=[_create_measured_item(finding) for finding in measured],
    )


def _create_measured_item(finding: MeasuredFinding) -> MeasuredCallItem:
    point, call = finding.point, finding.call
    choice = None if call is None else call.choice
    return MeasuredCallItem(
        file=point.file,
        line=point.line or None,
        collective=point.collective,
        ranks=point.ranks,
        nodes=point.nodes,
        size_bytes=point.size_bytes,
        measured_us=_round(point.time_us),
        expected_us=_round(finding.expected_us),
        expected_by=finding.expected_by or None,
        difference=None if finding.difference is None else round(finding.difference, 4),
        choice=None if choice is None else f"{choice.algorithm} {choice.protocol}",
        channels=None if choice is None else choice.channels,
        agrees=finding.agrees,
        explanation=finding.explanation or None,
    )


def measured_rows(findings: Sequence[MeasuredFinding]) -> list[list[str]]:
    """Return one row of 9 table cells per measured call, in the order of the findings.

    The cells are line, collective, ranks, size (`1 MiB`), measured and expected time (`12.34
    us`), difference (measured / expected - 1 in percent, such as `+3.1 %`), algorithm with
    protocol, and verdict. Unknown values are "", also line 0. The verdict is `agrees` or
    `differs`, followed by `: ` and the explanation if there is one. If `agrees` is None, it is
    only the explanation.
    """
    rows = []
    for entry in findings:
        choice = None if entry.call is None else entry.call.choice
        rows.append(
            [
                str(entry.point.line or ""),
                entry.point.collective,
                str(entry.point.ranks),
                format_bytes(entry.point.size_bytes),
                _format_us(entry.point.time_us),
                _format_us(entry.expected_us),
                "" if entry.difference is None else f"{100 * entry.difference:+.1f} %",
                "" if choice is None else f"{choice.algorithm} {choice.protocol}",
                entry.explanation
                if entry.agrees is None
                else _verdict(entry.agrees, entry.explanation),
            ]
        )
    return rows


def _create_log_item(check: LogCheck) -> LogItem:
    return LogItem(
        file=check.log.file,
        communicator=_create_communicator_item(check.communicator),
        settings=check.log.settings,
        findings=[
            LogFindingItem(
                line=entry.line,
                value=entry.subject,
                logged=entry.logged,
                predicted=entry.predicted,
                agrees=entry.agrees,
                explanation=entry.explanation or None,
            )
            for entry in check.findings
        ],
        notes=check.notes,
    )


def log_rows(check: LogCheck) -> list[list[str]]:
    """Return one row per compared value."""
    return [
        [
            str(entry.line),
            entry.subject,
            entry.logged,
            entry.predicted,
            _verdict(entry.agrees, entry.explanation),
        ]
        for entry in check.findings
    ]


def _verdict(agrees: bool, explanation: str) -> str:
    word = "agrees" if agrees else "differs"
    return f"{word}: {explanation}" if explanation else word


def _format_us(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us:.2f} us"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
