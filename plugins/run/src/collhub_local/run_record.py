"""JSON report of `collhub run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from hub_core.reports import Count, Finding, Meta, Report

NotNegative = Annotated[float, Meta(ge=0)]
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class RunReport(Report, tag="collhub/report-run-1", frozen=True, kw_only=True):
    """Report of `collhub run --json`: one execution on real data, verified and timed."""

    source: str
    executor: str
    ok: Annotated[bool, Meta(description="Every rank holds the result of the collective.")]
    collective: str
    num_ranks: Annotated[int, Meta(ge=1)]
    collective_bytes: Annotated[int, Meta(ge=1, description="Size of the full buffer.")]
    dtype: Annotated[str, Meta(extra_json_schema={"enum": [*_DTYPES]})]
    reduce_op: Annotated[
        str, Meta(extra_json_schema={"enum": ["sum", "prod", "min", "max", "avg"]})
    ]
    in_place: bool
    comparison: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["bitwise", "bound", "none"]},
            description="Method of comparison with the definition of the collective; none: a "
            "custom collective without a defined result.",
        ),
    ]
    max_abs_error: Annotated[
        NotNegative | None,
        Meta(
            description="Largest difference from the definition; null if it is not a number or "
            "nothing was compared."
        ),
    ]
    ranks_agree_bitwise: Annotated[
        bool | None,
        Meta(
            description="All ranks have the same bits; null if the collective does not require it."
        ),
    ]
    time_s: Annotated[float, Meta(ge=0, description="Median of the repeats.")]
    algorithm_bandwidth_bytes_per_s: Annotated[float, Meta(ge=0, description="Size by time.")]
    bus_bandwidth_bytes_per_s: Annotated[
        NotNegative | None,
        Meta(description="As nccl-tests defines it; null for custom collectives."),
    ]
    native_time_s: Annotated[
        NotNegative | None,
        Meta(
            description="Median time of the library's collective on the same data; null if it has "
            "none."
        ),
    ]
    levels: Annotated[
        int,
        Meta(
            ge=0,
            description="Levels of the program; the messages of one level are posted together.",
        ),
    ]
    messages: Count
    error_bound: Annotated[
        float,
        Meta(
            ge=0,
            description="Largest rounding error of a correct result; 0 for bitwise comparison.",
        ),
    ]
    order_kept: Annotated[
        bool | None,
        Meta(
            description="The bits are those of the schedule's order of reduction; null if nothing "
            "was rounded or the executor defines that order."
        ),
    ]
    repeat_times_s: Annotated[
        Sequence[NotNegative],
        Meta(min_length=1, description="From the first rank's start to the last rank's end."),
    ]
    native_repeat_times_s: Sequence[NotNegative]
    diagnostics: Sequence[Finding]
