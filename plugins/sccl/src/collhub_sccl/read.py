"""Read step schedules as algorithms: every send a message, by the data that it moves."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array
from collhub_schedules import Chunks, Transfers, algorithm_of

from collhub_sccl.collectives import num_addresses, share_of, stated_chunks
from collhub_sccl.document import Sends, StepDocument, parse
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

EXTENSION = "sccl"
"""Key of `Algorithm.extensions` under which name, rounds and times of steps are kept."""


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read an algorithm: a unit is what one address holds.

    Undivided collectives are divided as the steps are. Sends of one step read what was there before
    it, and of one step of TACCL go in the order of their times; a receive reduces where the
    collective combines and the rank holds something of the address, in TACCL's dialect where the
    send says so. Raises `InputError` with the JSON path of what is wrong.
    """
    del options
    document = parse(source.content(), source.name)
    return _StepReader(document, source).algorithm()


class _StepReader:
    """A document on its way to an algorithm."""

    def __init__(self, document: StepDocument, source: Source) -> None:
        self._document = document
        self._source = source
        self._kind, self._root, self._parts = self._recognised()

    def algorithm(self) -> Algorithm:
        """The algorithm that performs the sends."""
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
            self._transfers(),
            provenance=Provenance("sccl", "", self._source.name, self._source.sha256()),
            extensions={EXTENSION: stated},
        )

    def _recognised(self) -> tuple[CollectiveKind, int | None, int]:
        """Kind, root, and parts of every address; raises `InputError` for other collectives."""
        document = self._document
        for kind in CollectiveKind if document.chunks else ():
            if kind is CollectiveKind.CUSTOM:
                continue
            # msccl-tools leaves the collective undivided, TACCL has divided it already.
            for parts in sorted({1, document.divisions}):
                root = self._root_for(kind)
                # What a header claims is compared in number before anything is built.
                if self._number(kind, parts) != document.chunks.total():
                    continue
                wanted = stated_chunks(kind, document.ranks, root, parts)
                if all(document.chunks.get(chunk) for chunk in wanted):
                    return kind, root, self._divided(kind, parts)
        raise self._error(
            "the chunks make none of the hub's collectives",
            "state one of broadcast, scatter, gather, allgather, alltoall, reduce, allreduce and "
            "reduce_scatter, with chunks in their order",
        )

    def _root_for(self, kind: CollectiveKind) -> int | None:
        """The root that the first chunk tells, for collectives that have one."""
        first = next(iter(self._document.chunks))
        ranks = first.before if kind.traits.from_root else first.after
        return min(ranks, default=0) if kind.traits.is_rooted else None

    def _number(self, kind: CollectiveKind, parts: int) -> int:
        ranks = self._document.ranks
        givers = ranks if kind.traits.reduces else 1
        return num_addresses(kind, ranks) * parts * givers

    def _divided(self, kind: CollectiveKind, parts: int) -> int:
        """Parts of an address: those of the steps, where these use addresses beyond the chunks."""
        highest = int(self._document.sends.address.max(initial=0))
        is_undivided = parts == 1 and highest >= num_addresses(kind, self._document.ranks)
        return self._document.divisions if is_undivided else parts

    def _check_addresses(self) -> None:
        number = num_addresses(self._kind, self._document.ranks) * self._parts
        beyond = np.flatnonzero(self._document.sends.address >= number)
        if len(beyond):
            address = int(self._document.sends.address[beyond[0]])
            step = int(self._document.sends.step[beyond[0]])
            message = f"a send moves address {address}, the collective has {number}"
            raise self._error(f"$.steps[{step}]: {message}", "send what the collective has")

    def _transfers(self) -> Transfers:
        document = self._document
        sends = document.sends
        moment = _moments(sends)
        chunk = self._chunk_of(sends.address)
        reduces = sends.reduces
        if reduces is None:
            reduces = self._reduced(sends)
        self._check_slots(sends, moment, reduces)
        link = sends.source * document.ranks + sends.destination
        # Steps are barriers in the model alone: a send waits for its data.
        window = np.zeros(len(link), np.int64)
        end = moment + 1
        return Transfers(chunk, sends.source, sends.destination, link, moment, end, reduces, window)

    def _chunk_of(self, address: Int64Array) -> Int64Array:
        number = num_addresses(self._kind, self._document.ranks)
        ranks = self._document.ranks
        share = np.asarray([share_of(self._kind, base, ranks) for base in range(number)], np.int64)
        base, part = np.divmod(address, self._parts)
        chunk: Int64Array = share[base] * self._parts + part
        return chunk

    def _reduced(self, sends: Sends) -> BoolArray:
        """Which receives reduce: those at a slot that holds something, where sums are made."""
        # All ranks contribute to every address, so that every slot holds something.
        return np.full(len(sends.step), self._kind.traits.reduces, np.bool_)

    def _check_slots(self, sends: Sends, moment: Int64Array, reduces: BoolArray) -> None:
        """Raise `InputError` where a slot is sent and reduced into at one time."""
        ranks = self._document.ranks
        sent = (moment * ranks + sends.source, sends.address)
        came = (moment[reduces] * ranks + sends.destination[reduces], sends.address[reduces])
        number = int(sends.address.max(initial=0)) + 1
        # All sends of a step read the state before it; a sum would change it meanwhile.
        both = np.intersect1d(sent[0] * number + sent[1], came[0] * number + came[1])
        if len(both):
            place, address = divmod(int(both[0]), number)
            rank = place % ranks
            step = int(sends.step[np.flatnonzero(moment == place // ranks)[0]])
            message = f"rank {rank} sends address {address} and reduces into it in one step"
            cure = "make it of a reduce_scatter and an allgather"
            raise self._error(f"$.steps[{step}]: {message}", cure)

    def _error(self, message: str, cure: str = "") -> InputError:
        place = Location(self._source.name)
        return InputError(message, location=place, cure=cure, code="sccl-algorithm")


def _moments(sends: Sends) -> Int64Array:
    """Place of every send in time, int64: steps one after the other, in each by start times."""
    # Steps of TACCL merge sends of several times.
    rows = np.stack([sends.step.astype(np.float64), sends.time], axis=1)
    _, moment = np.unique(rows, axis=0, return_inverse=True)
    found: Int64Array = moment.ravel().astype(np.int64)
    return found
