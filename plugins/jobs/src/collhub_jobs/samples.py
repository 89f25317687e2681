"""Sample inputs for the conformance checks of the readers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hub_core import Provenance
from hub_core.chakra import encoded_record
from hub_core.plugin_api import Source


def samples() -> Sequence[Source]:
    """Return a trace with a computation and an all-reduce of one rank."""
    size = {"name": "comm_size", "int64_val": 1 << 20}
    kind = {"name": "comm_type", "int64_val": 0}
    content = encoded_record("GlobalMetadata", version="0.0.4")
    content += encoded_record("Node", id=0, name="forward", type=4, duration_micros=7)
    content += encoded_record("Node", id=1, type=7, data_deps=[0], attr=[kind, size])
    return [Source.of_bytes("job.0.et", content)]


def json_samples() -> Sequence[Source]:
    """Return the trace of `samples` as one file in the JSON form of chakra_jsonizer."""
    size = {"name": "comm_size", "int64Val": str(1 << 20)}
    kind = {"name": "comm_type", "int64Val": "0"}
    messages = [
        {"version": "0.0.4"},
        {"name": "forward", "type": "COMP_NODE", "durationMicros": "7"},
        {"id": "1", "type": "COMM_COLL_NODE", "dataDeps": ["0"], "attr": [kind, size]},
    ]
    content = "".join(json.dumps(message, indent=2) for message in messages).encode()
    return [Source.of_bytes("job.0.json", content)]


def documents() -> Sequence[Source]:
    """Return one document, `job.json`: a job of one rank with one computation of 7000 ns."""
    nodes = {"rank": [0], "kind": ["compute"], "duration_ns": [7000]}
    document = {
        "schema": "collhub/workload-1",
        "num_ranks": 1,
        "provenance": Provenance().as_json(),
        **{key: [] for key in ("groups", "names", "extras", "algorithms")},
        "extensions": {},
        "nodes": nodes,
    }
    return [Source.of_bytes("job.json", json.dumps(document).encode())]
