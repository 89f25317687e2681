"""Files of the format example, by which the conformance checks try the reader."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

BROADCAST = b"""example 1
broadcast 2 1 0 in sum
0 0
0 send 1 0 output:0 unknown:0 1 - -
1 recv 0 0 unknown:0 output:0 1 - -
"""


def samples() -> Sequence[Source]:
    """Small correct files."""
    return [Source.of_bytes("broadcast.example", BROADCAST)]
