"""What is compared, and what was found: plain records that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.model import Collective, CollectiveKind
from hub_core.plugin_api import SearchCut

ANY_MODE = "any"


@dataclass(frozen=True, slots=True)
class ComparedAlgorithm:
    """A synthesizer, or an algorithm in a file.

    `name`: of the synthesizer, or the path of the file, prefix or folder (`is_file`).
    """

    name: str
    is_file: bool


@dataclass(frozen=True, slots=True)
class ComparisonQuestion:
    """A collective on a topology for some sizes in bytes, timed by a simulator.

    `kind`: the value of a `CollectiveKind`. `root`: of a rooted collective, else None. `topology`:
    a text or a file. `num_npus`: its NPUs, all of which take part. `mode`: the calls that an
    algorithm must serve: `in-place`, `out-of-place`, `both`, or those that it claims (ANY_MODE).
    """

    kind: str
    root: int | None
    topology: str
    num_npus: int
    sizes: tuple[int, ...]
    backend: str
    mode: str = ANY_MODE

    @property
    def collective(self) -> Collective:
        """The collective, as synthesizers are asked for it."""
        kind = CollectiveKind(self.kind)
        units = kind.traits.parts(self.num_npus)
        in_place, out_of_place = self.mode != "out-of-place", self.mode != "in-place"
        return Collective(kind, self.num_npus, units, self.root, in_place, out_of_place)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One algorithm at one size.

    `time_ns`: simulated, None where there is no algorithm; `failure` then says why, in one line.
    `made_for`: the size in bytes for which a synthesizer made it; None where it made none.
    `time_ps`: the time by which ratios to bounds are computed, and `slack_ps`: what rounding may
    have taken from it (`hub_core.exact_time`); None where no bound holds for the simulator.
    `cuts`: parts of the search for the algorithm that a limit has ended; those of all sizes are in
    the first measurement of an algorithm.
    """

    algorithm: str
    size: int
    time_ns: int | None
    failure: str = ""
    made_for: int | None = None
    time_ps: int | None = None
    slack_ps: int = 0
    cuts: tuple[SearchCut, ...] = ()
