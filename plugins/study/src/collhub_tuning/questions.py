"""Questions, algorithms and measurements of comparisons: records that processes exchange."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.model import Collective, CollectiveKind, UnitCounts
from hub_core.plugin_api import IDEAL, Merit, SearchCut

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

    `kind`: the value of a `CollectiveKind`. `root`: root of a rooted collective, else None.
    `topology`: a text or a file. `num_npus`: its NPUs, all of which participate. `mode`: the calls
    that an algorithm must serve: `in-place`, `out-of-place`, `both`, or those that it claims
    (ANY_MODE). `simulator_options`: options of the simulator, such as its machine. `counts`: units
    of the parts of an uneven collective, row by row; empty for other kinds. `runtime`: names of the
    runtimes for which algorithms are built, separated by commas.
    """

    kind: str
    root: int | None
    topology: str
    num_npus: int
    sizes: tuple[int, ...]
    backend: str
    mode: str = ANY_MODE
    simulator_options: tuple[tuple[str, str], ...] = ()
    counts: tuple[int, ...] = ()
    runtime: str = IDEAL

    @property
    def collective(self) -> Collective:
        """Return the collective that synthesizers get, with the fewest units that its kind allows.

        This is one unit per part, or the units of `counts` for an uneven collective. It
        supports in-place calls unless the mode is `out-of-place`, and out-of-place calls unless
        the mode is `in-place`. Raises `ValueError` for an unknown kind, and the error of
        `UnitCounts.from_flat` for counts that do not fit the number of NPUs.
        """
        kind = CollectiveKind(self.kind)
        counts = None
        if self.counts:
            counts = UnitCounts.from_flat(self.counts, kind, self.num_npus)
        units = kind.traits.parts(self.num_npus) if counts is None else counts.total
        in_place, out_of_place = self.mode != "out-of-place", self.mode != "in-place"
        return Collective(
            kind, self.num_npus, units, self.root, in_place, out_of_place, counts=counts
        )

    @property
    def runtime_names(self) -> str:
        """Names of the runtimes for texts, such as `executor and mscclpp`; "" without runtimes."""
        return "" if self.runtime == IDEAL else self.runtime.replace(",", " and ")


@dataclass(frozen=True, slots=True)
class AlgorithmAtSize:
    """One algorithm at one size.

    `time_ns`: simulated time, None without an algorithm; `failure` is then a reason of one line.
    `made_for`: the size in bytes for which the algorithm was synthesized; None for files.
    `time_ps`: the time for ratios to bounds, None if no bound holds for the simulator; `slack_ps`:
    its maximum rounding error (`hub_core.exact_time`). `cuts`: parts of the search that a limit
    has stopped; the first measurement of an algorithm has the cuts of all sizes. `instances`,
    `pieces`, `protocol`: copies of the algorithm, parts of the data of each copy that overlap like
    a pipeline, and protocol for which a simulator of machines found the time; 1, 1 and ""
    otherwise. `messages`: number of messages of the algorithm at this size.
    """

    algorithm: str
    size: int
    time_ns: int | None
    failure: str = ""
    made_for: int | None = None
    time_ps: int | None = None
    slack_ps: int = 0
    cuts: tuple[SearchCut, ...] = ()
    instances: int = 1
    protocol: str = ""
    pieces: int = 1
    messages: int = 0

    @property
    def merit(self) -> Merit:
        """Return the time in ns and the number of messages, which are compared to choose a winner.

        The winner has the fewest messages of those within 1 % of the shortest time (`choose_best`).
        Raises `AssertionError` without a time.
        """
        assert self.time_ns is not None
        return Merit(self.time_ns, self.messages)
