"""Parse the lines in which NCCL logs its choice for a call (subsystem TUNING).

Releases 2.20 to 2.22 give numbers and a time, 2.23 also the operation, 2.24 and later names and
channels. Source: NVIDIA/nccl 2.20 to 2.30 (Apache-2.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"(?:(\w{1,40}): )?(\d{1,19}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})"
    r"(?: time (\d{1,12}(?:\.\d{1,12})?)| channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
)
_NUMBER = re.compile(r"\d{1,2}")
# By NCCL's numbers.
_ALGORITHMS = dict(
    enumerate(("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"))
)
_PROTOCOLS = dict(enumerate(("LL", "LL128", "SIMPLE")))


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and protocol that NCCL chose for one call.

    `operation` is "" in releases that do not name it; `bytes`: as logged. Names are in upper case:
    `RING`, `SIMPLE`; unknown numbers are kept.
    """

    operation: str
    bytes: int
    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True)
class ChoiceLine:
    """One logged choice. `time_us`: of lines with numbers; `channels`: of lines with names.

    `time_us` is None and `channels` is 0 if the line lacks them. The channels of a damaged line may
    be 0 or negative.
    """

    choice: Choice
    time_us: float | None
    channels: int


def parse_choice(text: str) -> ChoiceLine | None:
    """Parse a message that starts with a choice; None for other messages."""
    match = _LINE.match(text)
    if match is None:
        return None
    operation, size, algorithm, protocol, time_us, first, last = match.groups()
    is_numbered = all(map(_NUMBER.fullmatch, (algorithm, protocol)))
    if is_numbered:
        algorithm = _ALGORITHMS.get(int(algorithm), algorithm)
        protocol = _PROTOCOLS.get(int(protocol), protocol)
    choice = Choice(operation or "", int(size), algorithm.upper(), protocol.upper())
    return ChoiceLine(
        choice,
        float(time_us) if time_us and is_numbered else None,
        int(last) - int(first) + 1 if first and not is_numbered else 0,
    )
