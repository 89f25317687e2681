"""Parse the output of ASTRA-sim: finish times, and signs of a failed run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FINISHED = re.compile(r"sys\[(\d{1,9})\] finished, (\d{1,19}) cycles")
_UNRELEASED = re.compile(r"!!!Hardware Resource sys\.id=(\d{1,9}) has unreleased nodes!!!")
_LOST_EVENT = "a callable is removed before call"
_KEPT_LINES = 5
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class AstraPrinted:
    """Contents of the output of a run.

    `finish_ns`: cycles by NPU, for those that finished. `unreleased`: NPUs reported with unreleased
    nodes. `lost_event`: the simulator dropped an event after an exception. `tail`: the last lines
    that are not blank.
    """

    finish_ns: Mapping[int, int]
    unreleased: frozenset[int]
    lost_event: bool
    tail: tuple[str, ...]


def parse_output(lines: Iterable[str]) -> AstraPrinted:
    """Parse the lines of standard output and standard error.

    The tail has the last five lines that are not blank, each cut after 300 characters.
    """
    finish_ns: dict[int, int] = {}
    unreleased = set()
    lost_event = False
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    for line in lines:
        # Searched instead of matched, because a logger prefixes its lines.
        finished = _FINISHED.search(line)
        stuck = _UNRELEASED.search(line)
        if finished:
            finish_ns[int(finished[1])] = int(finished[2])
        elif stuck:
            unreleased.add(int(stuck[1]))
        lost_event = lost_event or _LOST_EVENT in line
        text = line.strip()
        if text:
            tail.append(text[:_LONGEST_LINE])
    return AstraPrinted(finish_ns, frozenset(unreleased), lost_event, tuple(tail))
