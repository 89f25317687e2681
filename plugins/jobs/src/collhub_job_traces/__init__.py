"""Chakra execution traces of whole jobs, read as workloads and written byte for byte.

Names are imported on first use: a plugin can list the options without importing numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_job_traces.embedded import algorithm_of_texts, algorithm_texts
    from collhub_job_traces.groups import parsed_groups
    from collhub_job_traces.options import JobReadOptions
    from collhub_job_traces.reading import EXTENSION, claims, has_job_nodes, read
    from collhub_job_traces.rebuilding import (
        bridge_markers,
        collectives_in_order,
        columns_of,
        rebuilt,
    )
    from collhub_job_traces.records import (
        INPUTS,
        OUTPUTS,
        StatedFields,
        StatedInput,
        attributes_extra,
        attributes_of_extra,
        says_more,
        stated_fields,
        tensors_of_extra,
    )
    from collhub_job_traces.writing import PROFILE, trace_files, write

__all__ = [
    "EXTENSION", "INPUTS", "OUTPUTS", "PROFILE", "JobReadOptions", "StatedFields",
    "StatedInput",
    "algorithm_of_texts", "algorithm_texts", "attributes_extra", "attributes_of_extra",
    "bridge_markers", "claims", "collectives_in_order", "columns_of", "has_job_nodes",
    "parsed_groups", "read", "rebuilt", "says_more", "stated_fields", "tensors_of_extra",
    "trace_files", "write",
]  # fmt: skip

_HOMES = {
    "collhub_job_traces.embedded": "algorithm_of_texts algorithm_texts",
    "collhub_job_traces.groups": "parsed_groups",
    "collhub_job_traces.rebuilding": "bridge_markers collectives_in_order columns_of rebuilt",
    "collhub_job_traces.options": "JobReadOptions",
    "collhub_job_traces.reading": "EXTENSION claims has_job_nodes read",
    "collhub_job_traces.records": (
        "INPUTS OUTPUTS StatedFields StatedInput attributes_extra attributes_of_extra says_more"
        " stated_fields tensors_of_extra"
    ),
    "collhub_job_traces.writing": "PROFILE trace_files write",
}

__getattr__ = names_from(__name__, _HOMES)
