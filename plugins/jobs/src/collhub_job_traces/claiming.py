"""Tell workloads from algorithms, which both are execution traces."""

from __future__ import annotations

import numpy as np

from hub_core import HubError
from hub_core.chakra import Batch, NodeType, ShapeBook, TraceError, decode_nodes, open_rank_file
from hub_core.plugin_api import Source, SourcePart

_OF_WORKLOADS = (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMM_COLL)
_PROFILE = "workload/"


def claims(source: Source) -> bool:
    """Whether the first file states the profile of workloads, or has nodes that no algorithm has.

    What cannot be read is left to others, who say why.
    """
    try:
        return has_job_nodes(source.parts[0])
    except (TraceError, HubError):
        return False


def has_job_nodes(part: SourcePart) -> bool:
    """Whether one file is that of a job. Raises `TraceError` for what is no trace."""
    file, metadata = open_rank_file(part.name, 0, part.load())
    if profile := metadata.text("profile"):
        return profile.startswith(_PROFILE)
    nodes = decode_nodes(Batch([file]), ShapeBook((), ()))
    return bool(np.isin(nodes.type, _OF_WORKLOADS).any())
