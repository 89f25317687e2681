"""Records of the calls of a job: NCCL's Inspector, profiler plugin and logs, DeepSpeed's logger.

The readers return one table of calls, which plugins convert to workloads or measurements. Names are
imported on first use: a plugin can list its options without importing numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_nccl_records.calls import (
        CallRecord,
        Member,
        SkippedLine,
        input_bytes,
        read_lines,
    )
    from collhub_nccl_records.deepspeed import (
        DeepSpeedTime,
        read_deepspeed_lines,
        read_deepspeed_times,
    )
    from collhub_nccl_records.log import (
        ChoiceLine,
        ChoiceRecord,
        CommunicatorFacts,
        Connection,
        NcclLog,
        TreeNode,
        describe_ring_defect,
        describe_tree_defect,
        name_without_id,
        parse_choice,
    )
    from collhub_nccl_records.plugin_records import read_inspector_lines, read_profiler_events

__all__ = [
    "CallRecord",
    "ChoiceLine",
    "ChoiceRecord",
    "CommunicatorFacts",
    "Connection",
    "DeepSpeedTime",
    "Member",
    "NcclLog",
    "SkippedLine",
    "TreeNode",
    "describe_ring_defect",
    "describe_tree_defect",
    "input_bytes",
    "name_without_id",
    "parse_choice",
    "read_deepspeed_lines",
    "read_deepspeed_times",
    "read_inspector_lines",
    "read_lines",
    "read_profiler_events",
]

_HOMES = {
    "collhub_nccl_records.calls": "CallRecord Member SkippedLine input_bytes read_lines",
    "collhub_nccl_records.deepspeed": "DeepSpeedTime read_deepspeed_lines read_deepspeed_times",
    "collhub_nccl_records.log": (
        "ChoiceRecord ChoiceLine CommunicatorFacts Connection NcclLog TreeNode describe_ring_defect"
        " describe_tree_defect name_without_id parse_choice"
    ),
    "collhub_nccl_records.plugin_records": "read_inspector_lines read_profiler_events",
}

__getattr__ = names_from(__name__, _HOMES)
