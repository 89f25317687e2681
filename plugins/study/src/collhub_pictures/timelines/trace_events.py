"""Events of a Chrome trace, and the JSON document that holds them.

Source: "Trace Event Format" of the Chromium project. Phases used here: M (metadata), X (complete
events), s and f (ends of a flow, drawn as an arrow), C (counters). Times are microseconds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

TraceEvent = dict[str, "str | int | float | dict[str, str | int | float]"]

_EVENTS_PER_PIECE = 4096


def document_of(events: Iterator[TraceEvent]) -> Iterator[bytes]:
    """The JSON document in pieces of some thousand events, one event a line."""
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    separator = ""
    while True:
        piece = list(itertools.islice(events, _EVENTS_PER_PIECE))
        if not piece:
            break
        lines = ",\n".join(map(json.dumps, piece))
        yield (separator + lines).encode("ascii")
        separator = ",\n"
    yield b"\n]}\n"


def named_process(process: int, name: str) -> Iterator[TraceEvent]:
    """The name of a process, and its place among the others: that of its number."""
    # Metadata of a process stands at its thread 0, whether it has one or not.
    yield _metadata("process_name", process, 0, {"name": name})
    order = process
    yield _metadata("process_sort_index", process, 0, {"sort_index": order})


def named_thread(process: int, thread: int, name: str, order: int) -> Iterator[TraceEvent]:
    """The name of a thread, and its place among those of its process."""
    yield _metadata("thread_name", process, thread, {"name": name})
    yield _metadata("thread_sort_index", process, thread, {"sort_index": order})


def microseconds(nanoseconds: int) -> float:
    """Times as the format has them."""
    return nanoseconds / 1000


def time_of(event: TraceEvent) -> float:
    """When an event that has a time takes place, for sorting."""
    time = event["ts"]
    assert isinstance(time, int | float)
    return time


def _metadata(
    name: str, process: int, thread: int, arguments: dict[str, str | int | float]
) -> TraceEvent:
    return {
        "ph": "M",
        "name": name,
        "pid": process,
        "tid": thread,
        "args": arguments,
    }
