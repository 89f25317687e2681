"""JSON report of `collhub reshard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from hub_core.reports import Artifacts, Cuts, IsPartial, Meta, Record, Report

_BINDINGS = ("receiver", "senders", "exclusive", "task", "links", "nothing")


class BindingLink(Record, frozen=True, kw_only=True):
    """Link of a topology with its weight in the proof of the bound."""

    source: str = msgspec.field(name="from")
    destination: str = msgspec.field(name="to")
    weight: int


class Binding(Record, frozen=True, kw_only=True):
    """Hosts, task or links whose load proves the bound."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": [*_BINDINGS]})]
    hosts: Sequence[int]
    task: int
    links: Sequence[BindingLink]


class LayoutItem(Record, frozen=True, kw_only=True):
    """Layout of the buffers and its cost in copies or padding."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["packed", "rows"]})]
    unit_bytes: int
    copies: int
    copied_bytes: int
    padding_bytes: int


class ReshardReport(Report, tag="collhub/report-reshard-1", frozen=True, kw_only=True):
    """Report of `collhub reshard --json`."""

    tensors: int
    unit_tasks: Annotated[
        int, Meta(description="Boxes in which a source tile and a destination tile intersect.")
    ]
    tasks_between_hosts: int
    bytes: Annotated[int, Meta(description="Bytes of all tensors, each counted once.")]
    makespan_s: Annotated[float, Meta(description="Makespan of the schedule, without latency.")]
    optimum_s: Annotated[
        float | None, Meta(description="The makespan if it is proved to be minimal; else null.")
    ]
    bound_s: Annotated[
        float, Meta(description="Lower bound of all schedules with these strategies.")
    ]
    binding: Binding
    predicted_s: Annotated[
        float, Meta(description="Time with latency and chunks that are stored and forwarded.")
    ]
    simulated_s: Annotated[
        float | None,
        Meta(
            description="Time of streams on a topology by the default simulator; null if not "
            "simulated."
        ),
    ]
    gap: Annotated[
        float, Meta(description="Distance of the makespan from the bound, as a part of it.")
    ]
    status: Annotated[str, Meta(extra_json_schema={"enum": ["optimal", "feasible"]})]
    proof: Annotated[str, Meta(extra_json_schema={"enum": ["bound", "solver", "none"]})]
    method: str
    strategies: Annotated[Mapping[str, int], Meta(description="Number of unit tasks by strategy.")]
    chunks: int
    late_tasks: Annotated[Sequence[int], Meta(description="Tasks that end after their due times.")]
    layout: LayoutItem
    tokens: Annotated[
        int, Meta(description="Messages of one unit that only pass on the turn to send.")
    ]
    collective_bytes: int | None
    is_partial: IsPartial
    cut: Cuts
    artifacts: Artifacts
