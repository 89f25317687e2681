"""The model: collectives, steps in columns, messages, algorithms, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns import names_from

if TYPE_CHECKING:
    from hub_core.model.algorithm import (
        PLACEMENT,
        Algorithm,
        JsonValue,
        Provenance,
        message_bytes,
        placed,
        placement_of,
    )
    from hub_core.model.collectives import (
        ALL_RANKS,
        MAX_RANKS,
        MAX_UNITS,
        Collective,
        Contributions,
        CustomContract,
        MemoryLayout,
    )
    from hub_core.model.count_sources import TokenRouting
    from hub_core.model.counts import UnitCounts, has_equal_counts
    from hub_core.model.diagnostics import (
        CAP,
        Diagnostic,
        ExitCode,
        Findings,
        HubError,
        InputError,
        Location,
        Loss,
        LossPolicy,
        LossyError,
        PluginError,
        Severity,
        UsageError,
        apply_policy,
        closest,
    )
    from hub_core.model.kinds import (
        READING,
        REDUCING,
        ROOTED,
        STANDARD_KINDS,
        UNEVEN_KINDS,
        WRITING,
        Buffer,
        CollectiveKind,
        CollectiveTraits,
        JobCollective,
        NodeKind,
        ReduceOp,
        StepKind,
        standard_kind,
        uneven_kind,
    )
    from hub_core.model.messages import (
        Messages,
        action,
        connection_keys,
        describe,
        match_messages,
        matched_messages,
        matched_order,
        pair_in_order,
        region,
    )
    from hub_core.model.quantities import (
        format_bandwidth,
        format_bytes,
        format_count,
        format_ranks,
        format_time,
        parse_bandwidth,
        parse_ranks,
        parse_size,
        parse_time,
        parse_whole,
    )
    from hub_core.model.steps import COLUMN_DEFAULTS, COLUMN_DTYPES, StepTable, StepTableBuilder
    from hub_core.model.workload import (
        NODE_DEFAULTS,
        NODE_DTYPES,
        NodeColumns,
        ProcessGroup,
        Workload,
        collective_of_call,
        full_buffer_bytes,
    )

__all__ = [
    "ALL_RANKS", "CAP", "COLUMN_DEFAULTS", "COLUMN_DTYPES", "MAX_RANKS", "MAX_UNITS",
    "NODE_DEFAULTS", "NODE_DTYPES", "PLACEMENT", "READING", "REDUCING", "ROOTED", "STANDARD_KINDS",
    "UNEVEN_KINDS", "WRITING", "Algorithm", "Buffer", "Collective", "CollectiveKind",
    "CollectiveTraits", "Contributions", "CustomContract", "Diagnostic", "ExitCode", "Findings",
    "HubError", "InputError", "JobCollective", "JsonValue", "Location", "Loss", "LossPolicy",
    "LossyError", "MemoryLayout", "Messages", "NodeColumns", "NodeKind", "PluginError",
    "ProcessGroup", "Provenance", "ReduceOp", "Severity", "StepKind", "StepTable",
    "StepTableBuilder", "TokenRouting", "UnitCounts", "UsageError", "Workload", "action",
    "apply_policy", "closest", "collective_of_call", "connection_keys", "describe",
    "format_bandwidth", "format_bytes", "format_count", "format_ranks", "format_time",
    "full_buffer_bytes", "has_equal_counts", "match_messages", "matched_messages", "matched_order",
    "message_bytes",
    "pair_in_order", "parse_bandwidth", "parse_ranks", "parse_size", "parse_time", "parse_whole",
    "placed", "placement_of", "region", "standard_kind", "uneven_kind",
]  # fmt: skip

_HOMES = {
    "hub_core.model.algorithm": (
        "Algorithm JsonValue PLACEMENT Provenance message_bytes placed placement_of"
    ),
    "hub_core.model.collectives": (
        "ALL_RANKS Collective Contributions CustomContract MAX_RANKS MAX_UNITS MemoryLayout"
    ),
    "hub_core.model.count_sources": "TokenRouting",
    "hub_core.model.counts": "UnitCounts has_equal_counts",
    "hub_core.model.diagnostics": (
        "CAP Diagnostic ExitCode Findings HubError InputError Location Loss LossPolicy LossyError "
        "PluginError Severity UsageError apply_policy closest"
    ),
    "hub_core.model.kinds": (
        "Buffer CollectiveKind CollectiveTraits JobCollective NodeKind READING REDUCING ROOTED "
        "ReduceOp STANDARD_KINDS StepKind UNEVEN_KINDS WRITING standard_kind uneven_kind"
    ),
    "hub_core.model.messages": (
        "Messages action connection_keys describe match_messages matched_messages matched_order "
        "pair_in_order region"
    ),
    "hub_core.model.quantities": (
        "format_bandwidth format_bytes format_count format_ranks format_time parse_bandwidth "
        "parse_ranks parse_size parse_time parse_whole"
    ),
    "hub_core.model.steps": "COLUMN_DEFAULTS COLUMN_DTYPES StepTable StepTableBuilder",
    "hub_core.model.workload": (
        "NODE_DEFAULTS NODE_DTYPES NodeColumns ProcessGroup Workload collective_of_call "
        "full_buffer_bytes"
    ),
}

__getattr__ = names_from(__name__, _HOMES)
