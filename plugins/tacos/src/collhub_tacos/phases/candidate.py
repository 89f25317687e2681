"""Possible answer to a request: a form of an algorithm, with its time and its transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_tacos.progress import Progress
from collhub_tacos.prospects import Way
from hub_core.model import Algorithm, Collective, JsonValue
from hub_core.schedules import Chunks, Transfers

Nodes = Sequence[int] | None
"""NPUs whose transfers are wanted, None for all."""


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisCandidate:
    """Possible answer. `pieces`: chunks of a share; `time_ps`: picoseconds; `details`: for users.

    `transfers(nodes)`: all of them, or those that touch some nodes. `replay(progress)`: check the
    whole on the synthesizer's own arrays, where not all steps are made; False where it cannot.
    `whole`: the algorithm itself, where it does not follow from transfers, or is known already;
    `whole_ns`: its nanoseconds, where they are known. `is_timed`: whether the
    times take it into account that messages meet; else a simulator has to tell. `way`: where
    several numbers of pieces are tried.
    """

    form: str
    pieces: int
    collective: Collective
    chunks: Chunks
    num_transfers: int
    time_ps: int
    transfers: Callable[[Nodes], Transfers]
    replay: Callable[[Progress], bool]
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    is_interrupted: bool = False
    whole: Algorithm | None = None
    whole_ns: int | None = None
    is_timed: bool = True
    way: Way | None = None
