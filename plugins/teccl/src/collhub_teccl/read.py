"""Read schedules of TE-CCL as algorithms: every hop a message, every path by its data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_columns import BoolArray, Int64Array, distinct, group_pointer, ordinals
from collhub_schedules import Chunks, Transfers, algorithm_of

from collhub_teccl.document import TOLERANCE, Paths, ScheduleDocument
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
)
from hub_core.plugin_api import NoOptions, Source

EXTENSION = "teccl"
"""Key of `Algorithm.extensions` under which the claims of the solver are kept."""

# Parts of a chunk that are told apart; solvers round volumes to six digits.
_MOST_PARTS = 5040
_DENOMINATORS = 100
_MOST_BYTES = 1 << 50


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read a schedule; a unit is a chunk, or the part of one that all fractions are multiples of.

    Ranks are the GPUs in the order of their node numbers, without switches. Messages leave in the
    order of epochs; what the solver claims is kept in the extension `teccl`. Raises `InputError`
    with the JSON path of what is wrong, and with the first demand that is not met.
    """
    del options
    document = ScheduleDocument.parse(source.content(), source.name)
    task = _Task(document.paths, source)
    if document.lost_flows:
        task.note_lost_flows(document.lost_flows)
    collective, chunks, chunk_of_path = task.cut()
    transfers = task.transfers(chunk_of_path)
    claims = {**document.claims, **task.numbers()}
    return algorithm_of(
        collective,
        chunks,
        transfers,
        provenance=Provenance("teccl", "", source.name, source.sha256()),
        collective_bytes=_collective_bytes(document.claims),
        extensions={EXTENSION: claims},
    )


def _collective_bytes(claims: Mapping[str, JsonValue]) -> int | None:
    """Bytes of a rank's buffer, by the algorithm bandwidth and the time that the solver claims."""
    rate, time_s = claims.get("algorithm_bandwidth_gb_per_s"), claims.get("finish_time_s")
    if not isinstance(rate, int | float) or not isinstance(time_s, int | float):
        return None
    size = rate * 1e9 * time_s
    # What strangers write may be no number of bytes.
    return round(size) if 1 <= size <= _MOST_BYTES else None


@dataclass(frozen=True, slots=True)
class _Cut:
    """Units that a path carries of its demand, int64 columns by path; `parts`: units of a chunk."""

    first: Int64Array
    count: Int64Array
    parts: int


class _Task:
    """Paths of a schedule in ranks, with the checks that need all of them."""

    def __init__(self, paths: Paths, source: Source) -> None:
        self._paths = paths
        self._source = source
        # Switches stand behind `via` alone, so that numbers of GPUs have gaps.
        ends = [paths.at, paths.origin, paths.source, paths.destination]
        self._gpus = distinct(np.concatenate(ends))
        self._check_switches()

    @property
    def _num_ranks(self) -> int:
        return len(self._gpus)

    def numbers(self) -> dict[str, JsonValue]:
        """Node numbers of the ranks, and of the switches."""
        return {"gpus": self._gpus.tolist(), "switches": sorted(self._paths.switches)}

    def note_lost_flows(self, number: int) -> None:
        """Say that the list of flows is not what is read."""
        said = f"the list of flows has lost volume on {number} hops, since equal lines are merged"
        self._note("flows-lost", f"{said}: the paths of the demands are read")

    def cut(self) -> tuple[Collective, Chunks, Int64Array]:
        """The collective, its chunks, and the chunk of every path, -1 for one without units."""
        self._check_volumes()
        return self._all_to_all() if self._paths.has_volumes else self._all_gather()

    def transfers(self, chunk_of_path: Int64Array) -> Transfers:
        """Every hop once, in the order of epochs."""
        paths = self._paths
        chunk = chunk_of_path[paths.path]
        table = np.stack(
            [chunk, self._rank(paths.source), self._rank(paths.destination), paths.epoch]
        )
        # A hop that several paths of a tree share is one message.
        chunk, source, destination, epoch = np.unique(table[:, chunk >= 0], axis=1)
        self._check_arrivals(chunk, destination)
        # Within an epoch the order of the file is the order of chunks and ends.
        order = np.argsort(epoch, kind="stable")
        chunk, source, destination, epoch = (
            column[order] for column in (chunk, source, destination, epoch)
        )
        link = source * self._num_ranks + destination
        # No window: what comes next on a link waits for its data alone.
        no_window, no_sum = np.zeros_like(epoch), np.zeros(len(epoch), np.bool_)
        return Transfers(chunk, source, destination, link, epoch, epoch + 1, no_sum, no_window)

    def _all_gather(self) -> tuple[Collective, Chunks, Int64Array]:
        paths, ranks = self._paths, self._num_ranks
        per_source = int(paths.chunk.max()) + 1
        self._check_chunks(per_source, "chunks of a source")
        collective = Collective(CollectiveKind.ALL_GATHER, ranks, ranks * per_source)
        chunks = Chunks.cut(collective, np.ones(per_source, np.int64))
        chunk = self._rank(paths.origin) * per_source + paths.chunk
        self._check_demands(chunk, self._everywhere(chunks))
        return collective, chunks, chunk[paths.demand]

    def _all_to_all(self) -> tuple[Collective, Chunks, Int64Array]:
        """A share for every pair; a demand is one of the chunks of a share, cut among its paths."""
        paths, ranks = self._paths, self._num_ranks
        pair = self._rank(paths.origin) * ranks + self._rank(paths.at)
        # Chunk numbers grow with the destination: within a pair they count from 0.
        # Chunk numbers of an all-to-all count targets first: within a pair only their order counts.
        order = np.lexsort((paths.chunk, pair))
        within = np.empty(len(pair), np.int64)
        within[order] = ordinals(pair[order])
        per_pair = int(within.max()) + 1
        self._check_demands(pair * per_pair + within, self._between_all(per_pair))
        cut = self._shares()
        units = per_pair * cut.parts
        collective = Collective(CollectiveKind.ALL_TO_ALL, ranks, ranks * units)
        first = within[paths.demand] * cut.parts + cut.first
        carries = cut.count > 0
        chunk_of_path = np.where(carries, np.cumsum(carries) - 1, -1)
        origin, target = self._rank(paths.origin)[paths.demand], self._rank(paths.at)[paths.demand]
        # What a rank keeps for itself is a chunk without a path.
        own = np.arange(ranks)
        chunks = Chunks(
            np.concatenate([origin[carries], own]),
            np.concatenate([(target * units + first)[carries], own * units]),
            np.concatenate([(origin * units + first)[carries], own * units]),
            np.concatenate([cut.count[carries], np.full(ranks, units)]),
            np.concatenate([target[carries], own]),
        )
        return collective, chunks, chunk_of_path

    def _shares(self) -> _Cut:
        """Units of every path, consecutive in its demand, that add up to a chunk."""
        paths = self._paths
        parts = self._parts()
        exact = paths.volume * parts
        count = np.floor(exact + TOLERANCE).astype(np.int64)
        demands = len(paths.at)
        lacking = parts - np.bincount(paths.demand, count, demands).astype(np.int64)
        # Largest remainders first, as seats are given to parties.
        order = np.lexsort((count - exact, paths.demand))
        place = np.empty(len(order), np.int64)
        place[order] = ordinals(paths.demand[order])
        count += place < lacking[paths.demand]
        error = float(np.max(np.abs(count / parts - paths.volume)))
        if error > TOLERANCE:
            said = f"volumes are rounded to parts of 1/{parts}: by {error:.2g} of a chunk at most"
            self._note("volumes-rounded", said)
        # Paths stand by demand.
        ends = np.cumsum(count)
        before = np.concatenate([[0], ends])[group_pointer(paths.demand, demands)]
        return _Cut(ends - count - before[paths.demand], count, parts)

    def _parts(self) -> int:
        """Least number of parts of a chunk of which all volumes are multiples, if that is small."""
        parts = 1
        for volume in np.unique(self._paths.volume).tolist():
            share = Fraction(volume).limit_denominator(_DENOMINATORS)
            parts = math.lcm(parts, share.denominator)
            if parts > _MOST_PARTS:
                return _MOST_PARTS
        return parts

    def _rank(self, node: Int64Array) -> Int64Array:
        found: Int64Array = np.searchsorted(self._gpus, node)
        return found

    def _everywhere(self, chunks: Chunks) -> tuple[Int64Array, Int64Array]:
        """Chunk and rank of every demand of an all-gather."""
        chunk = np.repeat(np.arange(len(chunks)), self._num_ranks)
        rank = np.tile(np.arange(self._num_ranks), len(chunks))
        is_other = rank != chunks.origin[chunk]
        return chunk[is_other], rank[is_other]

    def _between_all(self, per_pair: int) -> tuple[Int64Array, Int64Array]:
        """Chunk of a pair and target of every demand of an all-to-all."""
        ranks = self._num_ranks
        chunk = np.arange(ranks * ranks * per_pair)
        origin, target = np.divmod(chunk // per_pair, ranks)
        return chunk[origin != target], target[origin != target]

    def _check_switches(self) -> None:
        """Raise `InputError` for nodes that are both switch and GPU, and for a single GPU."""
        both = [int(node) for node in self._gpus if int(node) in self._paths.switches]
        if both:
            message = f"node {both[0]} is a switch in one hop and an end of another"
            raise self._error(message, "give switches numbers of their own")
        if self._num_ranks < 2:
            raise self._error("expected two GPUs at least")

    def _check_chunks(self, number: int, what: str) -> None:
        """Raise `InputError` for numbers of chunks that no demand could fill."""
        if number > len(self._paths.at):
            raise self._error(f"{number} {what} are more than there are demands")

    def _check_volumes(self) -> None:
        paths = self._paths
        volume = np.bincount(paths.demand, paths.volume, len(paths.at))
        wrong = np.flatnonzero(np.abs(volume - 1) > TOLERANCE)
        if len(wrong):
            first = int(wrong[0])
            message = (
                f"{paths.names[first]!r} is met to {volume[first]:.4g} of its chunk, expected 1"
            )
            raise self._error(message, "volumes of a demand must add up to 1", "demand-not-met")

    def _check_demands(self, chunk: Int64Array, wanted: tuple[Int64Array, Int64Array]) -> None:
        """Raise `InputError` for a demand that nobody meets, or that is stated twice."""
        at = self._rank(self._paths.at)
        ranks = self._num_ranks
        # Chunk and rank in one number, so that sets of both can be compared.
        stated, needed = chunk * ranks + at, wanted[0] * ranks + wanted[1]
        missing = np.setdiff1d(needed, stated)
        if len(missing):
            number, rank = divmod(int(missing[0]), ranks)
            message = f"no path brings chunk {number} to GPU {int(self._gpus[rank])}"
            more = len(missing) - 1
            said = f"{message}, and {more} more demands are not met" if more else message
            raise self._error(said, "write a path for every demand", "demand-not-met")
        if len(stated) > len(np.unique(stated)):
            raise self._error("a demand is stated twice")

    def _check_arrivals(self, chunk: Int64Array, destination: Int64Array) -> None:
        """Raise `InputError` for a chunk that comes to a GPU over two hops."""
        key = chunk * self._num_ranks + destination
        twice = np.flatnonzero(_is_repeated(key))
        if len(twice):
            gpu = int(self._gpus[destination[twice[0]]])
            raise self._error(f"chunk {int(chunk[twice[0]])} comes to GPU {gpu} twice")

    def _note(self, code: str, message: str) -> None:
        place = Location(self._source.name)
        self._source.report(Diagnostic(code, message, Severity.WARNING, place))

    def _error(self, message: str, cure: str = "", code: str = "teccl-schedule") -> InputError:
        return InputError(message, location=Location(self._source.name), cure=cure, code=code)


def _is_repeated(keys: Int64Array) -> BoolArray:
    """Whether a key has stood before, bool per key."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), np.bool_)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again


def samples() -> Sequence[Source]:
    """An all-gather of three GPUs in line, and an all-to-all of three by two paths each."""
    ends = [(0, 1), (1, 0), (1, 2), (2, 1)]
    line = {_key(at, 0, origin): [f"{origin}->{at} in epoch 0"] for origin, at in ends}
    for origin, at in ((0, 2), (2, 0)):
        line[_key(at, 0, origin)] = [
            f"{origin}->1 in epoch 0",
            f"1->{at} in epoch 1 via switches 3",
        ]
    halves: dict[str, object] = {}
    for origin in range(3):
        for at in {0, 1, 2} - {origin}:
            halves[_key(at, at, origin)] = _two_ways(origin, at, 3 - origin - at)
    documents = {"line.json": line, "triangle.json": halves}
    return [
        Source.of_bytes(
            name, json.dumps({"1-Epoch_Duration": 1e-6, "8-Chunk paths": paths}).encode()
        )
        for name, paths in documents.items()
    ]


def _key(at: int, chunk: int, origin: int) -> str:
    return f"Demand at {at} for chunk {chunk} from {origin} met by epoch 2"


def _two_ways(origin: int, at: int, other: int) -> list[object]:
    """Half straight, half over the third GPU."""
    straight = [[0, f"{origin}->{at} with volume 0.5 in epoch 0"]]
    around = [
        [1, f"{origin}->{other} with volume 0.5 in epoch 1"],
        [2, f"{other}->{at} with volume 0.5 in epoch 2"],
    ]
    return [straight, around]
