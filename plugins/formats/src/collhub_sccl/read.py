"""Read step schedules as algorithms: every send becomes a message.

Small correct algorithms and profiles are samples for the conformance kit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from collhub_sccl.collectives import count_addresses, find_share, iterate_chunks
from collhub_sccl.document import Sends, StepDocument, parse
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Location,
    Provenance,
)
from hub_core.plugin_api import NoOptions, Source
from hub_core.schedules import Chunks, Transfers, algorithm_of

EXTENSION = "sccl"
"""Key of `Algorithm.extensions` for name, dialect, rounds and divisions."""


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read an algorithm; one unit is the content of one address.

    Undivided collectives are divided like the steps. The sends of a step read the data from before
    the step; those of a TACCL step are ordered by their times. A receive reduces if the collective
    reduces; in TACCL's dialect, if the send says so. Raises `InputError` with the JSON path of the
    first defect.
    """
    del options
    document = parse(source.content(), source.name)
    return _StepReader(document, source).build_algorithm()


class _StepReader:
    """Conversion of a document to an algorithm."""

    def __init__(self, document: StepDocument, source: Source) -> None:
        self._document = document
        self._source = source
        self._kind, self._root, self._parts = self._recognize_collective()

    def build_algorithm(self) -> Algorithm:
        """Algorithm that performs the sends."""
        document, ranks = self._document, self._document.ranks
        units = self._kind.traits.parts(ranks) * self._parts
        collective = Collective(self._kind, ranks, units, root=self._root)
        chunks = Chunks.cut(collective, np.ones(self._parts, np.int64))
        self._check_addresses()
        stated: dict[str, JsonValue] = {
            "name": document.name,
            "dialect": "taccl" if document.is_taccl else "sccl",
            "rounds": list(document.rounds),
            "divisions": self._parts,
        }
        return algorithm_of(
            collective,
            chunks,
            self._build_transfers(),
            provenance=Provenance("sccl", "", self._source.name, self._source.sha256()),
            extensions={EXTENSION: stated},
        )

    def _recognize_collective(self) -> tuple[CollectiveKind, int | None, int]:
        """Kind, root, and parts of every address. Raises `InputError` for other collectives."""
        document = self._document
        for kind in CollectiveKind if document.chunks else ():
            if kind is CollectiveKind.CUSTOM:
                continue
            # msccl-tools describes the undivided collective, TACCL the divided one.
            for parts in sorted({1, document.divisions}):
                root = self._find_root(kind)
                # Compare the numbers before any chunk is built: the header is not trusted.
                if self._count_chunks(kind, parts) != document.chunks.total():
                    continue
                expected = iterate_chunks(kind, document.ranks, root, parts)
                if all(document.chunks.get(chunk) for chunk in expected):
                    return kind, root, self._count_parts(kind, parts)
        raise self._build_error(
            "the chunks match none of the hub's collectives",
            "use one of broadcast, scatter, gather, allgather, alltoall, reduce, allreduce and "
            "reduce_scatter, with chunks in their order",
        )

    def _find_root(self, kind: CollectiveKind) -> int | None:
        """Root according to the first chunk, for collectives with a root."""
        first = next(iter(self._document.chunks))
        ranks = first.before if kind.traits.from_root else first.after
        return min(ranks, default=0) if kind.traits.is_rooted else None

    def _count_chunks(self, kind: CollectiveKind, parts: int) -> int:
        """Number of chunks of a collective with `parts` per address."""
        ranks = self._document.ranks
        contributors = ranks if kind.traits.reduces else 1
        return count_addresses(kind, ranks) * parts * contributors

    def _count_parts(self, kind: CollectiveKind, parts: int) -> int:
        """Parts of an address: the declared divisions if the steps use addresses beyond the
        chunks."""
        highest = int(self._document.sends.address.max(initial=0))
        is_undivided = parts == 1 and highest >= count_addresses(kind, self._document.ranks)
        return self._document.divisions if is_undivided else parts

    def _check_addresses(self) -> None:
        """Raise `InputError` for a send of an address that the collective does not have."""
        number = count_addresses(self._kind, self._document.ranks) * self._parts
        beyond = np.flatnonzero(self._document.sends.address >= number)
        if len(beyond):
            address = int(self._document.sends.address[beyond[0]])
            step = int(self._document.sends.step[beyond[0]])
            message = f"a send moves address {address}, the collective has {number}"
            raise self._build_error(f"$.steps[{step}]: {message}", "send what the collective has")

    def _build_transfers(self) -> Transfers:
        """One transfer per send, in the order of time."""
        document = self._document
        sends = document.sends
        # Steps of TACCL contain sends with different times.
        rows = np.stack([sends.step.astype(np.float64), sends.time], axis=1)
        _, inverse = np.unique(rows, axis=0, return_inverse=True)
        moment: Int64Array = inverse.ravel().astype(np.int64)
        chunk = self._find_chunks(sends.address)
        reduces = sends.reduces
        if reduces is None:
            reduces = self._find_reducing(sends)
        self._check_slots(sends, moment, reduces)
        link = sends.source * document.ranks + sends.destination
        # Steps are barriers only in SCCL's cost model: at run time a send waits only for its data,
        # hence no window.
        window = np.zeros(len(link), np.int64)
        end = moment + 1
        return Transfers(chunk, sends.source, sends.destination, link, moment, end, reduces, window)

    def _find_chunks(self, address: Int64Array) -> Int64Array:
        """Chunk of every address."""
        number = count_addresses(self._kind, self._document.ranks)
        ranks = self._document.ranks
        share = np.asarray(
            [find_share(self._kind, base, ranks) for base in range(number)], np.int64
        )
        base, part = np.divmod(address, self._parts)
        chunk: Int64Array = share[base] * self._parts + part
        return chunk

    def _find_reducing(self, sends: Sends) -> BoolArray:
        """Whether each receive reduces: all or none, depending on the collective."""
        # All ranks contribute to every address, so every slot of a reducing collective has a value.
        return np.full(len(sends.step), self._kind.traits.reduces, np.bool_)

    def _check_slots(self, sends: Sends, moment: Int64Array, reduces: BoolArray) -> None:
        """Raise `InputError` if a rank sends an address and reduces into it at the same time."""
        ranks = self._document.ranks
        sent = (moment * ranks + sends.source, sends.address)
        reduced = (moment[reduces] * ranks + sends.destination[reduces], sends.address[reduces])
        number = int(sends.address.max(initial=0)) + 1
        # All sends of a step read the state before it; a simultaneous sum would change it.
        both = np.intersect1d(sent[0] * number + sent[1], reduced[0] * number + reduced[1])
        if len(both):
            time_and_rank, address = divmod(int(both[0]), number)
            rank = time_and_rank % ranks
            step = int(sends.step[np.flatnonzero(moment == time_and_rank // ranks)[0]])
            message = f"rank {rank} sends address {address} and reduces into it in one step"
            cure = "compose it of a reduce_scatter and an allgather"
            raise self._build_error(f"$.steps[{step}]: {message}", cure)

    def _build_error(self, message: str, cure: str = "") -> InputError:
        """Error about this file."""
        location = Location(self._source.name)
        return InputError(message, location=location, cure=cure, code="sccl-algorithm")


def samples() -> Sequence[Source]:
    """Ring all-gather of three ranks, and a reduce-scatter of two ranks with times."""
    ring = [[[(rank - step) % 3, rank, (rank + 1) % 3] for rank in range(3)] for step in range(2)]
    gather = [{"pre": [rank], "post": [0, 1, 2], "addr": rank} for rank in range(3)]
    scatter = [
        {"pre": [source], "post": [target], "addr": target}
        for target in range(2)
        for source in range(2)
    ]
    swap = [[[1, 0, 1, 0.0, 1.0, "rrc"], [0, 1, 0, 0.0, 1.0, "rrc"]]]
    return [
        build_document("ring.json", "msccl_type", "Allgather(n=3)", 3, gather, ring),
        build_document("swap.json", "sccl_type", "ReduceScatter(n=2)", 2, scatter, swap),
    ]


def profiles() -> Sequence[Source]:
    """A node of four equal GPUs, and one of three GPUs in a line with two links between the
    first two."""
    alike = {
        "name": "alike",
        "gpus_per_node": 4,
        "alpha": 0.5,
        "node_betas_list": [20],
        "node_invbws_list": [20.5],
    }
    line = {
        "name": "line",
        "gpus_per_node": 3,
        "alpha": 1,
        "links": [[0, 2, 0], [2, 0, 1], [0, 1, 0]],
        "betas": [[0, 10, 0], [10, 0, 20], [0, 20, 0]],
        "invbws": [[0, 11, 0], [11, 0, 21], [0, 21, 0]],
    }
    return [
        Source.of_bytes(f"{profile['name']}.json", json.dumps(profile).encode())
        for profile in (alike, line)
    ]


def build_document(
    file: str,
    tag: str,
    name: str,
    ranks: int,
    chunks: Sequence[object],
    steps: Sequence[Sequence[Sequence[object]]],
    divisions: int = 1,
) -> Source:
    """File with an algorithm of these chunks and sends per step."""
    instance = {tag: "instance", "steps": len(steps), "chunks": divisions, "pipeline": None}
    collective = {tag: "collective", "name": name, "nodes": ranks, "chunks": chunks}
    content = {
        tag: "algorithm",
        "name": name,
        "instance": instance,
        "steps": [{tag: "step", "rounds": 1, "sends": sends} for sends in steps],
        "collective": collective,
        "topology": {tag: "topology", "name": "any"},
    }
    return Source.of_bytes(file, json.dumps(content).encode())
