"""JSON reports of `collhub nccl explain`; times are in microseconds, rates in GB/s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

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


class ExplainReport(Report, tag="collhub/report-nccl-explain-1", frozen=True, kw_only=True):
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
