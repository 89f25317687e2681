"""Read schedules of TE-CCL as algorithms, and compare claimed epochs with a simulation.

On reading, every hop becomes a message. The check `teccl-claims` compares the epochs that the
solver claims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

import hub_core
from collhub_teccl.document import TOLERANCE, Paths, ScheduleDocument, find_number
from hub_core.columns import Int64Array, distinct, group_pointer, ordinals
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    Provenance,
    Severity,
    StepKind,
)
from hub_core.network import Links
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, Source
from hub_core.schedules import Chunks, Transfers, algorithm_of

EXTENSION = "teccl"
"""Key of `Algorithm.extensions` for the claims of the solver."""

# Member of the extension: units of a chunk.
_UNITS = "units_per_chunk"

# Maximum parts of a chunk; solvers round volumes to six digits.
_MAX_PARTS = 5040
_MAX_DENOMINATOR = 100
_MAX_BYTES = 1 << 50


# Bytes of a unit, and bytes per second of a link: an epoch of one unit takes one second.
_UNIT_BYTES = 10**9


# Times are integer nanoseconds.
_TOLERANCE = 1e-6


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read a schedule of TE-CCL as an all-gather or all-to-all (`ScheduleDocument.kind`).

    A volume is the part of a chunk that takes a path. Ranks are the GPUs in the order of their
    node numbers. A unit is one chunk, or with volumes 1 / `_count_parts` of it. Each distinct
    hop of a chunk is one message; messages are sorted by epoch, chunk, source and destination.

    `collective_bytes` is claimed bandwidth times claimed finish time, rounded. It is None
    without these claims or outside 1 to 2^50. The extension `teccl` has the solver's claims,
    `gpus` and `switches` (node numbers), and `units_per_chunk`. Warnings: `flows-lost`,
    `volumes-rounded`. Raises `InputError` for

    - a defect of the file, a node that is a switch and a GPU, and fewer than two GPUs
    - a missing demand (chunk and its GPU), or volumes with another sum than 1 (`demand-not-met`)
    - a demand that occurs twice, and a chunk that arrives at a GPU by two hops
    - in an all-gather, a chunk number that is not below the number of demands
    """
    del options
    document = ScheduleDocument.parse(source.content(), source.name)
    task = _ScheduleConversion(document.kind, document.paths, source)
    if document.lost_flows:
        task.note_lost_flows(document.lost_flows)
    collective, chunks, chunk_of_path = task.build_chunks()
    transfers = task.build_transfers(chunk_of_path)
    claims = {**document.claims, **task.list_node_numbers(), _UNITS: task.units_per_chunk}
    rate = find_number(document.claims.get("algorithm_bandwidth_gb_per_s"))
    time_s = find_number(document.claims.get("finish_time_s"))
    size = 0.0 if rate is None or time_s is None else rate * 1e9 * time_s
    return algorithm_of(
        collective,
        chunks,
        transfers,
        provenance=Provenance("teccl", "", source.name, source.sha256()),
        # Files of other tools may contain impossible values.
        collective_bytes=round(size) if 1 <= size <= _MAX_BYTES else None,
        extensions={EXTENSION: claims},
    )


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Compare the epochs that the solver claims with those that a simulation needs.

    The claim is the number `epochs` in the algorithm's extension `teccl`. Without an algorithm or
    this number, the report is ok, but not applicable. The simulation (`_simulate_epochs`) assumes
    that each used link carries one chunk per epoch, without latency.

    If the simulation never finishes, the report is not ok and has no facts. Otherwise it is ok, and
    the verdict states both numbers. If more epochs are needed than claimed, by more than 1e-6, the
    report has the warning `teccl-claims`. It is no error, because fast links may carry several
    chunks per epoch.

    The facts are `claimed_epochs`, `needed_epochs` (may be a fraction), the claims `finish_time_s`
    and `demand_met_s` if they exist, and `needed_s` if the claim `epoch_duration_s` is a number.
    Raises `HubError` if no simulator is installed.
    """
    del options
    algorithm = request.algorithm
    claims = algorithm.extensions.get(EXTENSION) if algorithm is not None else None
    claimed = claims.get("epochs") if isinstance(claims, dict) else None
    epochs = find_number(claimed)
    if algorithm is None or not isinstance(claims, dict) or epochs is None:
        verdict = "has no claims of TE-CCL"
        return CheckReport(ok=True, verdict=verdict, is_applicable=False)
    units = claims.get(_UNITS)
    if not isinstance(units, int) or units < 1:
        # Documents of earlier versions lack this number: one chunk per source, or per pair of an
        # all-to-all.
        units = algorithm.collective.unit_count // algorithm.num_ranks
    needed = _simulate_epochs(algorithm, units)
    if needed is None:
        return CheckReport(ok=False, verdict="it never finishes")
    facts: dict[str, JsonValue] = {"claimed_epochs": claimed, "needed_epochs": needed}
    facts |= {name: claims[name] for name in ("finish_time_s", "demand_met_s") if name in claims}
    duration_s = find_number(claims.get("epoch_duration_s"))
    if duration_s is not None:
        facts["needed_s"] = needed * duration_s
    verdict = f"TE-CCL claims {claimed} epochs; on its links the schedule needs {needed:.2f}"
    warnings = []
    if needed > epochs + _TOLERANCE:
        message = (
            f"it needs {needed:.2f} epochs where each link takes a chunk in one, and claims "
            f"{claimed}: simulate it on its network"
        )
        warnings.append(Diagnostic("teccl-claims", message, Severity.WARNING))
    return CheckReport(
        ok=True,
        verdict=verdict,
        diagnostics=tuple(warnings),
        facts=facts,
    )


def _simulate_epochs(algorithm: Algorithm, units_per_chunk: int) -> float | None:
    """Simulate the schedule on the links that it uses, and return its time in epochs.

    There is a link without latency for each ordered pair of ranks with a message, which carries one
    chunk (`units_per_chunk` units) in an epoch. The result may be a fraction. Returns None if the
    schedule never finishes. Raises `HubError` if no simulator is installed.
    """
    size = algorithm.collective.unit_count * _UNIT_BYTES
    # Network of the links in use, each of which carries one unit per second.
    steps = algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pairs = np.unique(np.stack([steps.rank[sends], steps.peer[sends]]), axis=1).astype(np.int64)
    rate = np.full(pairs.shape[1], float(_UNIT_BYTES))
    result = hub_core.simulate(
        algorithm,
        Links(pairs[0], pairs[1], rate, np.zeros(pairs.shape[1])).topology(
            "links of the schedule", algorithm.num_ranks, algorithm.num_ranks
        ),
        size,
    )
    if result.time_ns is None:
        return None
    return result.time_ns / 1e9 / units_per_chunk


def samples() -> Sequence[Source]:
    """Return two correct files of three GPUs each, for the conformance kit.

    `line.json` is an all-gather in a line 0-1-2, whose chunks between the ends pass GPU 1 via the
    switch 3. `triangle.json` is an all-to-all in which half of each demand takes the direct path,
    and half the path over the third GPU in the next two epochs.
    """
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1)]
    line = {_format_key(at, 0, origin): [f"{origin}->{at} in epoch 0"] for origin, at in pairs}
    for origin, at in ((0, 2), (2, 0)):
        line[_format_key(at, 0, origin)] = [
            f"{origin}->1 in epoch 0",
            f"1->{at} in epoch 1 via switches 3",
        ]
    halves: dict[str, object] = {}
    for origin in range(3):
        for at in {0, 1, 2} - {origin}:
            # Paths of a demand: one half direct, one half via the third GPU.
            relay = 3 - origin - at
            straight = [[0, f"{origin}->{at} with volume 0.5 in epoch 0"]]
            around = [
                [1, f"{origin}->{relay} with volume 0.5 in epoch 1"],
                [2, f"{relay}->{at} with volume 0.5 in epoch 2"],
            ]
            halves[_format_key(at, at, origin)] = [straight, around]
    documents = {"line.json": line, "triangle.json": halves}
    return [
        Source.of_bytes(
            name, json.dumps({"1-Epoch_Duration": 1e-6, "8-Chunk paths": paths}).encode()
        )
        for name, paths in documents.items()
    ]


@dataclass(frozen=True, slots=True)
class _PathShares:
    """Units of its demand that each path carries, int64 columns by path.

    `parts`: units per chunk.
    """

    first: Int64Array
    count: Int64Array
    parts: int


class _ScheduleConversion:
    """Paths of a schedule in terms of ranks, with the checks that need all paths."""

    def __init__(self, kind: CollectiveKind, paths: Paths, source: Source) -> None:
        self._kind = kind
        self._paths = paths
        self._source = source
        # Switches occur only after `via`, so the GPU numbers may have gaps.
        nodes = [paths.at, paths.origin, paths.source, paths.destination]
        self._gpus = distinct(np.concatenate(nodes))
        # Refuse nodes that are both switch and GPU, and a single GPU.
        both = [int(node) for node in self._gpus if int(node) in self._paths.switches]
        if both:
            message = f"node {both[0]} is a switch in one hop and an end of another"
            raise self._build_error(message, "give switches separate numbers")
        if self._num_ranks < 2:
            raise self._build_error("expected at least two GPUs")

    @property
    def _num_ranks(self) -> int:
        """Number of GPUs."""
        return len(self._gpus)

    def list_node_numbers(self) -> dict[str, JsonValue]:
        """Node numbers of the ranks, and of the switches."""
        return {"gpus": self._gpus.tolist(), "switches": sorted(self._paths.switches)}

    @property
    def units_per_chunk(self) -> int:
        """Units of a chunk: 1 without volumes, else the parts that `_count_parts` finds."""
        return self._count_parts() if self._paths.has_volumes else 1

    def note_lost_flows(self, number: int) -> None:
        """Warn that the list of flows lacks volume on `number` hops.

        The paths of the demands are read instead of the list, so no result depends on the list. The
        warning (`flows-lost`) is reported to the source.
        """
        message = (
            f"the list of flows has lost volume on {number} hops, since equal lines are merged"
        )
        self._report_warning("flows-lost", f"{message}: the paths of the demands are read")

    def build_chunks(self) -> tuple[Collective, Chunks, Int64Array]:
        """Return the collective of the schedule, its chunks, and the chunk of every path (int64).

        In an all-to-all, and if at least one demand of the file is a list of paths (with volumes),
        every path has a separate chunk (`_build_separate_paths`); a path that gets no unit has -1.
        Otherwise all paths of one chunk of a source have its number (`_build_all_gather`).

        Raises `InputError` in the first of these cases:

        - `demand-not-met`: the volumes of a demand do not add up to 1 within `TOLERANCE` (1e-3)
        - `teccl-schedule`: more chunks of a source than there are demands (only in an all-gather
          without volumes)
        - `demand-not-met`: the file lacks a demand of the collective
        - `teccl-schedule`: a demand occurs twice
        """
        # Refuse a demand whose volumes do not add up to 1.
        paths = self._paths
        volume = np.bincount(paths.demand, paths.volume, len(paths.at))
        wrong = np.flatnonzero(np.abs(volume - 1) > TOLERANCE)
        if len(wrong):
            first = int(wrong[0])
            message = (
                f"{paths.names[first]!r} is met to {volume[first]:.4g} of its chunk, expected 1"
            )
            raise self._build_error(
                message, "volumes of a demand must add up to 1", "demand-not-met"
            )
        if self._paths.has_volumes or self._kind is CollectiveKind.ALL_TO_ALL:
            return self._build_separate_paths()
        return self._build_all_gather()

    def build_transfers(self, chunk_of_path: Int64Array) -> Transfers:
        """Return the transfers: every distinct hop of a chunk once, sorted by epoch.

        An epoch is the solver's unit of time. Within one epoch, transfers are sorted by chunk,
        source and destination. Source and destination are ranks. A transfer starts at its epoch and
        ends at the next one, without addition of data. The link from rank s to rank d has the
        number s * ranks + d. Transfers need not wait for earlier ones on their link (no window).

        `chunk_of_path` comes from `build_chunks`; hops of paths with -1 are omitted. A hop is
        distinct by chunk, source, destination and epoch, so one that several paths share occurs
        once. Raises `InputError` (`teccl-schedule`) if two distinct hops bring a chunk to one GPU,
        also over the same link in two epochs.
        """
        paths = self._paths
        chunk = chunk_of_path[paths.path]
        table = np.stack(
            [chunk, self._to_ranks(paths.source), self._to_ranks(paths.destination), paths.epoch]
        )
        # A hop that several paths of a tree share is one message.
        chunk, source, destination, epoch = np.unique(table[:, chunk >= 0], axis=1)
        # Sorted by arrival, a chunk and GPU that occur before are next to their first occurrence.
        arrival = chunk * self._num_ranks + destination
        by_arrival = np.argsort(arrival, kind="stable")
        is_repeated = np.zeros(len(arrival), np.bool_)
        is_repeated[by_arrival[1:]] = np.diff(arrival[by_arrival]) == 0
        repeated = np.flatnonzero(is_repeated)
        if len(repeated):
            hop = repeated[0]
            gpu = int(self._gpus[destination[hop]])
            raise self._build_error(f"chunk {int(chunk[hop])} arrives at GPU {gpu} twice")
        # Within an epoch, hops are ordered by chunk, source and destination.
        order = np.argsort(epoch, kind="stable")
        chunk, source, destination, epoch = (
            column[order] for column in (chunk, source, destination, epoch)
        )
        link = source * self._num_ranks + destination
        # No window: the next message on a link waits only for its data.
        no_window, no_sum = np.zeros_like(epoch), np.zeros(len(epoch), np.bool_)
        return Transfers(chunk, source, destination, link, epoch, epoch + 1, no_sum, no_window)

    def _build_all_gather(self) -> tuple[Collective, Chunks, Int64Array]:
        """Return (collective, chunks, chunk of every path) for all-gathers without volumes.

        Every rank has the same number of chunks: the largest chunk number of any demand plus 1.
        Each chunk is one unit. Chunk c of rank r has the number r * (chunks per rank) + c. The
        third result has the chunk number of each path, int64[paths].

        Raises `InputError` in the first of these cases:

        - `teccl-schedule`: the chunks per rank exceed the number of demands in the file
        - `demand-not-met`: a rank has no demand for a chunk of another rank
        - `teccl-schedule`: a demand occurs twice

        Demands of a rank for its own chunks are accepted.
        """
        paths, ranks = self._paths, self._num_ranks
        per_source = int(paths.chunk.max()) + 1
        if per_source > len(self._paths.at):
            raise self._build_error(
                f"{per_source} chunks of a source are more than there are demands"
            )
        collective = Collective(CollectiveKind.ALL_GATHER, ranks, ranks * per_source)
        chunks = Chunks.cut(collective, np.ones(per_source, np.int64))
        chunk = self._to_ranks(paths.origin) * per_source + paths.chunk
        # Every chunk is required at all ranks but its origin.
        required = np.repeat(np.arange(len(chunks)), ranks)
        receiver = np.tile(np.arange(ranks), len(chunks))
        is_receiver = receiver != chunks.origin[required]
        self._check_demands(chunk, (required[is_receiver], receiver[is_receiver]))
        return collective, chunks, chunk[paths.demand]

    def _build_separate_paths(self) -> tuple[Collective, Chunks, Int64Array]:
        """Return (collective, chunks, chunk of every path) with a separate chunk for every path.

        The demands of each pair (origin, destination) are numbered k = 0, 1, ... by ascending
        chunk number. m is the largest number of demands of a pair. Each demand consists of P units
        (`_count_parts`), which `_divide_demands` distributes among its paths. So each rank sends
        m * P units to each rank: in an all-gather the same ones, maybe several times over a link.

        Each path with at least one unit becomes a chunk, in the order of the paths. Demand k has
        the units from k * P of its pair on, in the order of its paths. Then one chunk of m * P
        units per rank follows, for the data that the rank keeps. The third result is int64, -1 for
        a path without units.

        Raises `InputError` if a pair of different ranks has fewer than m demands
        (`demand-not-met`). Reports the warning `volumes-rounded` if volumes had to be rounded.
        """
        paths, ranks = self._paths, self._num_ranks
        pair = self._to_ranks(paths.origin) * ranks + self._to_ranks(paths.at)
        # Chunk numbers grow with the destination, so within a pair only their order counts.
        order = np.lexsort((paths.chunk, pair))
        within = np.empty(len(pair), np.int64)
        within[order] = ordinals(pair[order])
        per_pair = int(within.max()) + 1
        # Chunks are numbered by origin, target, and number within the pair; own data are required
        # nowhere.
        required = np.arange(ranks * ranks * per_pair)
        sender, receiver = np.divmod(required // per_pair, ranks)
        is_sent = sender != receiver
        self._check_demands(pair * per_pair + within, (required[is_sent], receiver[is_sent]))
        cut = self._divide_demands()
        units = per_pair * cut.parts
        collective = Collective(self._kind, ranks, ranks * units)
        # The input of an all-gather has only the units of its rank.
        stride = units if self._kind is CollectiveKind.ALL_TO_ALL else 0
        first = within[paths.demand] * cut.parts + cut.first
        carries = cut.count > 0
        chunk_of_path = np.where(carries, np.cumsum(carries) - 1, -1)
        origin, target = (
            self._to_ranks(paths.origin)[paths.demand],
            self._to_ranks(paths.at)[paths.demand],
        )
        # The data that a rank keeps is a chunk without a path.
        ranks_range = np.arange(ranks)
        chunks = Chunks(
            np.concatenate([origin[carries], ranks_range]),
            np.concatenate([(target * stride + first)[carries], ranks_range * stride]),
            np.concatenate([(origin * units + first)[carries], ranks_range * units]),
            np.concatenate([cut.count[carries], np.full(ranks, units)]),
            np.concatenate([target[carries], ranks_range]),
        )
        return collective, chunks, chunk_of_path

    def _divide_demands(self) -> _PathShares:
        """Divide the units of every demand among its paths; each demand is one chunk of P units.

        P is the result of `_count_parts`. The volumes are first divided by their sum in the demand,
        which is 1 within the tolerance. Each path first gets floor(volume * P + `TOLERANCE`)
        units. If these are fewer than P for a demand, some of its paths get one more unit each.
        They are the paths with the largest values of (volume * P - units), the earlier path if
        equal. A path may have no units. Example: volumes (0.5, 0.5) with P = 2 give (1, 1).

        The units of a demand are consecutive in the order of its paths. The result has by path the
        first unit (counted from the start of its demand) and the number of units, and P as `parts`.
        The warning `volumes-rounded` is reported to the source if units / P differs from any volume
        by more than `TOLERANCE` (1e-3).
        """
        paths = self._paths
        parts = self._count_parts()
        demands = len(paths.at)
        # The volumes of a demand may add up to 1 plus or minus the tolerance, many units of 1/P.
        total = np.bincount(paths.demand, paths.volume, demands)
        exact = paths.volume / total[paths.demand] * parts
        count = np.floor(exact + TOLERANCE).astype(np.int64)
        lacking = parts - np.bincount(paths.demand, count, demands).astype(np.int64)
        # Method of largest remainders.
        order = np.lexsort((count - exact, paths.demand))
        position = np.empty(len(order), np.int64)
        position[order] = ordinals(paths.demand[order])
        count += position < lacking[paths.demand]
        error = float(np.max(np.abs(count / parts - paths.volume)))
        if error > TOLERANCE:
            message = (
                f"volumes are rounded to parts of 1/{parts}: by {error:.2g} of a chunk at most"
            )
            self._report_warning("volumes-rounded", message)
        # Paths are sorted by demand.
        stops = np.cumsum(count)
        before = np.concatenate([[0], stops])[group_pointer(paths.demand, demands)]
        return _PathShares(stops - count - before[paths.demand], count, parts)

    def _count_parts(self) -> int:
        """Return the units per chunk: the smallest number of which all volumes are multiples.

        A volume is the part of a chunk that takes a path. Each one is replaced by the nearest
        fraction with a denominator up to `_MAX_DENOMINATOR`; the result is the least common
        multiple of the denominators. If it exceeds `_MAX_PARTS` (5040), the result is 5040.
        """
        parts = 1
        for volume in np.unique(self._paths.volume).tolist():
            share = Fraction(volume).limit_denominator(_MAX_DENOMINATOR)
            parts = math.lcm(parts, share.denominator)
            if parts > _MAX_PARTS:
                return _MAX_PARTS
        return parts

    def _to_ranks(self, node: Int64Array) -> Int64Array:
        """Convert node numbers to ranks: positions in the ascending list of all GPU numbers.

        All nodes must be GPUs, which is not checked.
        """
        ranks: Int64Array = np.searchsorted(self._gpus, node)
        return ranks

    def _check_demands(self, chunk: Int64Array, required: tuple[Int64Array, Int64Array]) -> None:
        """Raise `InputError` if the file lacks a demand of the collective, or has a demand twice.

        A demand is a pair of a chunk and the rank that must get it. `chunk`: chunk of every demand
        of the file. `required`: two columns, chunk and rank of every demand of the collective.
        Missing demands are checked first (`demand-not-met`). The message names the one with the
        smallest chunk, then the smallest rank, and the number of the other missing ones. Then
        repeated demands are refused (`teccl-schedule`), also those that are not required. Demands
        of the file that are not required are accepted otherwise.
        """
        at = self._to_ranks(self._paths.at)
        ranks = self._num_ranks
        # Chunk and rank in one number, so that sets of both can be compared.
        given_demands, needed = chunk * ranks + at, required[0] * ranks + required[1]
        missing = np.setdiff1d(needed, given_demands)
        if len(missing):
            number, rank = divmod(int(missing[0]), ranks)
            message = f"no path brings chunk {number} to GPU {int(self._gpus[rank])}"
            more = len(missing) - 1
            text = f"{message}, and {more} more demands are not met" if more else message
            raise self._build_error(text, "write a path for every demand", "demand-not-met")
        if len(given_demands) > len(np.unique(given_demands)):
            raise self._build_error("a demand occurs twice")

    def _report_warning(self, code: str, message: str) -> None:
        """Report a warning about the file to its source, without a line.

        `code`: rule of the finding. No exception is raised.
        """
        location = Location(self._source.name)
        self._source.report(Diagnostic(code, message, Severity.WARNING, location))

    def _build_error(
        self, message: str, cure: str = "", code: str = "teccl-schedule"
    ) -> InputError:
        """Error about the file."""
        return InputError(message, location=Location(self._source.name), cure=cure, code=code)


def _format_key(at: int, chunk: int, origin: int) -> str:
    """Key of a demand in the file."""
    return f"Demand at {at} for chunk {chunk} from {origin} met by epoch 2"
