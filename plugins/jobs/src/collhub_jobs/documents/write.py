"""Write a whole job as a JSON document, `collhub/workload-1`: one line a column, lossless.

Columns that hold only their default are left out. Equal jobs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

import numpy as np
from collhub_job_traces import algorithm_texts

from hub_core import Workload, json_document
from hub_core.model import NODE_DEFAULTS, NODE_DTYPES, JobCollective, NodeColumns, NodeKind
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

SCHEMA = "collhub/workload-1"
NAMED_COLUMNS: Mapping[str, type[IntEnum]] = {"kind": NodeKind, "collective": JobCollective}
"""Columns of names; an unstated one is null."""


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """The document as one artifact."""
    return WriteResult((Artifact("", lambda: _text(workload).encode("ascii")),))


def name_of(code: IntEnum) -> str:
    """The word of the document for a kind of node or a collective, such as all-reduce."""
    return code.name.lower().replace("_", "-")


def _text(workload: Workload) -> str:
    header = {
        "schema": SCHEMA,
        "num_ranks": workload.num_ranks,
        "provenance": workload.provenance.as_json(),
        "groups": [{"name": one.name, "ranks": list(one.ranks)} for one in workload.groups],
        "names": list(workload.names),
        "extras": list(workload.extras),
        "algorithms": [algorithm_texts(algorithm) for algorithm in workload.algorithms],
        "extensions": dict(workload.extensions),
    }
    return json_document(header, "nodes", _columns(workload.nodes))


def _columns(nodes: NodeColumns) -> Iterator[tuple[str, object]]:
    """Name and values of every column that says something."""
    # Where identities are positions, that is what is assumed of a document without them.
    position = np.arange(len(nodes)) - nodes.rank_indptr[nodes.rank]
    for name in NODE_DTYPES:
        column = getattr(nodes, name)
        default = position if name == "identity" else NODE_DEFAULTS[name]
        if name not in ("rank", "kind") and not np.any(column != default):
            continue
        if name in NAMED_COLUMNS:
            words = {-1: None, **{int(one): name_of(one) for one in NAMED_COLUMNS[name]}}
            yield name, [words[value] for value in column.tolist()]
        else:
            yield name, column.tolist()
    yield from nodes.parent_lists()
