"""Chakra traces in JSON form as samples for the core's reader of such traces."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api.sources import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.algorithms.write import write
from hub_core.trace_profile.formats import ChakraWriteOptions


def json_trace_samples() -> Sequence[Source]:
    """Traces of a ring all-reduce of three ranks, in the form that chakra_jsonizer writes."""
    # Imported here, so that listing plugins does not import protobuf.
    from google.protobuf.json_format import MessageToJson

    from hub_core.chakra.trace_records import decoded_records

    parts = []
    for rank, artifact in enumerate(write(ring_all_reduce(3), ChakraWriteOptions()).artifacts):
        records = decoded_records(artifact.content(), artifact.name)
        content = "".join(map(MessageToJson, records)).encode()
        parts.append(SourcePart(f"ring.{rank}.json", content.__bytes__, rank, len(content)))
    return [Source("ring", tuple(parts))]
