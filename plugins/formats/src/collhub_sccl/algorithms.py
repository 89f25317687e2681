"""Read step schedules as algorithms, and write algorithms as steps of sends.

On reading, every send becomes a message. On writing, the document has the serialization of the
synthesizers, and it is read back before it is returned. Small correct algorithms and profiles are
samples for the conformance kit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from collhub_sccl.document import (
    NAMES,
    RUNTIME_NAMES,
    TAGS,
    StepDocument,
    StepSend,
    count_addresses,
    find_sends,
    find_share,
    iterate_chunks,
    parse,
)
from hub_core.columns import Int64Array
from hub_core.model import (
    STANDARD_KINDS,
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    JsonValue,
    Location,
    Loss,
    Provenance,
    StepTable,
)
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult
from hub_core.schedules import Chunks, Transfers, algorithm_of
from hub_core.verification import verify

EXTENSION = "sccl"


_REDUCES = "rrc"


_STEP_FIELDS = frozenset(field.name for field in fields(StepTable))


_CONSEQUENCES = {
    "in_place": "the file does not name the mode of calls",
    "out_of_place": "the file does not name the mode of calls",
    "collective_bytes": "the file contains no size",
    "extensions": "data of other formats is not written",
    "scratch_units": "the buffers of forwarded data are not written",
    "reduce_op": "operators are not written, and sums are read back",
    "unit_count": "units are read back as large as an address",
}


def read(source: Source, options: NoOptions) -> Algorithm:
    """Read an algorithm of SCCL or TACCL.

    Files name data by address: a position in the buffers that is equal on all ranks. One
    unit of the algorithm is the content of one address. The collective is the first one
    with the chunks of the file (`_recognize_collective`). If the file describes it with
    undivided addresses, but its sends divide them, the collective is divided in the same
    way.

    The sends of a step read the data from before the step. In TACCL's dialect the sends of
    a step are also ordered by their times. A receive reduces if the collective reduces; in
    TACCL's dialect, if the send is marked as reducing. Raise `InputError` for the first
    defect, with its JSON path if it has one.
    """
    del options
    document = parse(source.content(), source.name)
    return _StepReader(document, source).build_algorithm()


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Write an algorithm as one JSON document without a file name.

    Collectives that reduce are written in TACCL's dialect, others in that of msccl-tools. A message
    is sent in the step after the arrival of its last data (`find_sends`). The document is read
    back, and the losses are the fields that then differ: first `steps` for all columns of steps,
    then the fields in `_CONSEQUENCES`. Other differences, such as the provenance, are no losses.

    Raises `InputError` (`sccl-inexpressible`) in these cases:

    - The collective is not in `NAMES`, or the algorithm has no contents.
    - The document cannot be read.
    - The algorithm that is read back is not correct. In SCCL each rank has one value per address,
      to which received values are added. An algorithm that sends other values is refused.

    Raises `InputError` with all findings if sends and receives do not match.
    """
    del options
    if algorithm.collective.kind not in NAMES or not algorithm.has_contents:
        raise _build_refusal(algorithm, "SCCL has no such collective", "write it as MSCCL-IR")
    document = _build_document(algorithm.collective, find_sends(algorithm))
    content = (json.dumps(document, indent=1) + "\n").encode()
    # Algorithm that the document describes.
    try:
        back = read(Source.of_bytes("the document", content), NoOptions())
    except InputError as error:
        reason = error.diagnostics[0].message
        raise _build_refusal(algorithm, reason, "write it as MSCCL-IR") from None
    # Only a document that describes a correct algorithm is written.
    if not verify(back).ok:
        reason = "a rank sends other values than the one that it would have at an address"
        raise _build_refusal(algorithm, reason, "write it as MSCCL-IR")
    differences = algorithm.differences(back)
    where = "the entire algorithm"
    losses = []
    if any(name in _STEP_FIELDS for name in differences):
        losses.append(Loss("steps", where, "only the sends of each unit in each step are written"))
    for name in differences:
        if name in _CONSEQUENCES:
            losses.append(Loss(name.replace("_", " "), where, _CONSEQUENCES[name]))
    return WriteResult([Artifact("", content)], losses)


def samples() -> Sequence[Source]:
    """Return two correct files for the conformance kit.

    `ring.json` is an all-gather of three ranks over a ring in the dialect of msccl-tools;
    `swap.json` a reduce-scatter of two ranks in TACCL's dialect, with times and reductions.
    """
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
    """Return two profiles for the conformance kit, as JSON files.

    `alike.json` has four equal GPUs. `line.json` has three GPUs in a line 0-1-2, described by
    matrices. It has two links per direction between GPUs 0 and 1, and one between 1 and 2.
    """
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
    """Build a source, named `file`, with the JSON document of an algorithm; for samples and tests.

    `tag`: member that marks the type of each object, `msccl_type` or `sccl_type`. `name`:
    of the algorithm and of its collective. `chunks`: those of the collective; `steps`: the
    list of sends of each step; both in the form of the file, without a check. `divisions`:
    number of chunks per address. Every step has one round, and the topology is only a name.
    """
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


"""Key of `Algorithm.extensions` for name, dialect, rounds and divisions."""


class _StepReader:
    """Conversion of a document to an algorithm; the collective is recognized from the chunks."""

    def __init__(self, document: StepDocument, source: Source) -> None:
        self._document = document
        self._source = source
        self._kind, self._root, self._parts = self._recognize_collective()

    def build_algorithm(self) -> Algorithm:
        """Build the algorithm of the document; each send becomes one message of one unit.

        The collective is that recognized from the chunks of the document. It has the parts of its
        kind, such as one per rank for an all-gather, times `divisions` (`self._parts`, 1 if
        undivided) units. A send names a unit by its address in the file. The size in bytes is
        unknown. The extension `EXTENSION` has name, dialect ("taccl" or "sccl"), rounds and
        `divisions`.

        Raises `InputError` (`sccl-algorithm`) for the first send of an address that the collective
        does not have, with its step. Then raises it if a rank sends an address and, in the same
        step and at the same time, receives a reduction into this address.
        """
        document, ranks = self._document, self._document.ranks
        units = self._kind.traits.parts(ranks) * self._parts
        collective = Collective(self._kind, ranks, units, root=self._root)
        chunks = Chunks.cut(collective, np.ones(self._parts, np.int64))
        # Refuse a send of an address that the collective does not have.
        number = count_addresses(self._kind, self._document.ranks) * self._parts
        beyond = np.flatnonzero(self._document.sends.address >= number)
        if len(beyond):
            address = int(self._document.sends.address[beyond[0]])
            step = int(self._document.sends.step[beyond[0]])
            message = f"a send moves address {address}, the collective has {number}"
            raise self._build_error(f"$.steps[{step}]: {message}", "send what the collective has")
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
        """Find the collective whose chunks are those of the document: (kind, root, parts).

        The kinds of `STANDARD_KINDS` are tried in their order. Each is tried with undivided
        addresses (1 part) and then with the declared divisions. The first kind matches that has
        equally many chunks in total, all of which the document has. The order of the chunks does
        not matter.

        - root: None for a kind without root. Otherwise the lowest rank that has the first chunk of
          the file at the beginning (kinds from a root) or at the end (kinds to a root); 0 if there
          is no such rank.
        - parts: parts of each address, as matched. If the match is undivided, but some send has an
          address above those of the kind, the declared divisions are returned instead.

        Raises `InputError` (`sccl-algorithm`) if no kind matches, also without chunks.
        """
        document = self._document
        for kind in STANDARD_KINDS if document.chunks else ():
            # msccl-tools describes the undivided collective, TACCL the divided one.
            for parts in sorted({1, document.divisions}):
                first = next(iter(self._document.chunks))
                ranks = first.before if kind.traits.from_root else first.after
                root = min(ranks, default=0) if kind.traits.is_rooted else None
                # Compare the numbers before any chunk is built: the header is not trusted.
                # A reducing collective has a chunk per address and contributing rank.
                contributors = document.ranks if kind.traits.reduces else 1
                count = count_addresses(kind, document.ranks) * parts * contributors
                if count != document.chunks.total():
                    continue
                expected = iterate_chunks(kind, document.ranks, root, parts)
                if all(document.chunks.get(chunk) for chunk in expected):
                    highest = int(self._document.sends.address.max(initial=0))
                    is_undivided = parts == 1 and highest >= count_addresses(
                        kind, self._document.ranks
                    )
                    return kind, root, self._document.divisions if is_undivided else parts
        raise self._build_error(
            "the chunks match none of the hub's collectives",
            "use one of broadcast, scatter, gather, allgather, alltoall, reduce, allreduce and "
            "reduce_scatter, with chunks in their order",
        )

    def _build_transfers(self) -> Transfers:
        """Return one transfer per send of the document, in the order of the file.

        An address a of the file is part a mod p of the undivided address a // p, where p is the
        number of parts per address. Its chunk is `find_share` of a // p, times p, plus a mod p. All
        addresses must exist in the collective (`build_algorithm` checks it).

        Start and finish are numbers, no times: the distinct pairs (step, time) are numbered from 0
        in ascending order. A transfer starts at the number of its pair and finishes at the next
        number. Link s * ranks + d is that from rank s to rank d. The window of each transfer is 0,
        so that it waits only for its data. If the file declares which sends reduce, transfers
        follow it; otherwise all reduce if the collective does.

        Raises `InputError` (`sccl-algorithm`) if, with the same start, a rank sends an address
        and receives a reduction into this address: in SCCL simultaneous sends read old data.
        """
        document = self._document
        sends = document.sends
        # Steps of TACCL contain sends with different times.
        rows = np.stack([sends.step.astype(np.float64), sends.time], axis=1)
        _, inverse = np.unique(rows, axis=0, return_inverse=True)
        moment: Int64Array = inverse.ravel().astype(np.int64)
        # Find the chunk of every address.
        number = count_addresses(self._kind, self._document.ranks)
        ranks = self._document.ranks
        share = np.asarray(
            [find_share(self._kind, base, ranks) for base in range(number)], np.int64
        )
        base, part = np.divmod(sends.address, self._parts)
        chunk: Int64Array = share[base] * self._parts + part
        reduces = sends.reduces
        if reduces is None:
            # All ranks contribute to every address, so a reducing collective has no empty slot.
            reduces = np.full(len(sends.step), self._kind.traits.reduces, np.bool_)
        # Raise `InputError` if a rank sends an address and reduces into it at the same time.
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
        link = sends.source * document.ranks + sends.destination
        # Steps are barriers only in SCCL's cost model: at run time a send waits only for its data,
        # hence no window.
        window = np.zeros(len(link), np.int64)
        end = moment + 1
        return Transfers(chunk, sends.source, sends.destination, link, moment, end, reduces, window)

    def _build_error(self, message: str, cure: str = "") -> InputError:
        """Build the error (not raised here) about this file, without a line.

        `cure`: advice, "" for none. The code is `sccl-algorithm`.
        """
        location = Location(self._source.name)
        return InputError(message, location=location, cure=cure, code="sccl-algorithm")


def _build_refusal(algorithm: Algorithm, reason: str, cure: str) -> InputError:
    """Error: the algorithm cannot be written."""
    return InputError(
        f"cannot be written as steps of sends: {reason}",
        location=Location(algorithm.provenance.source_name or None),
        cure=cure,
        code="sccl-inexpressible",
    )


def _build_document(collective: Collective, sends: list[StepSend]) -> dict[str, JsonValue]:
    """Build the JSON object of the file, with members in the order of msccl-tools.

    A reducing collective is written in TACCL's dialect with divided chunks, any other in the
    dialect of msccl-tools with undivided chunks. The members are the tag of the dialect,
    `name`, `instance`, `input_map`, `output_map`, `steps`, `collective` and `topology`.

    There is one step for each number from 0 to the last step of `sends`, also without sends; no
    steps without sends at all. A send is [address, source, destination]; in TACCL's dialect,
    its step as time, the link 1, and its reduction ("rrc" or null) follow. Sends of a step keep
    the order of `sends`. The topology is empty and has the name `any`.
    """
    ranks, kind = collective.num_ranks, collective.kind
    divisions = collective.units_per_rank
    # Only TACCL's dialect, with divided collectives, marks the receives that reduce.
    is_taccl = kind.traits.reduces
    tag = TAGS[1] if is_taccl else TAGS[0]
    steps = max((send.step for send in sends), default=-1) + 1
    # Steps without sends are kept: later steps wait for earlier data.
    by_step: list[list[JsonValue]] = [[] for _ in range(steps)]
    for send in sends:
        fields_of_send: list[JsonValue] = [send.address, send.source, send.destination]
        if is_taccl:
            # Its time (the step) and its link (there is only one).
            fields_of_send += [float(send.step), 1.0, _REDUCES if send.reduces else None]
        by_step[send.step].append(fields_of_send)
    root = "" if collective.root is None else f",root={collective.root}"
    name = f"{NAMES[kind]}(n={ranks}{root})"
    # msccl-tools describes the undivided collective, even if its steps divide it.
    parts = divisions if is_taccl else 1
    chunks: list[JsonValue] = [
        {"pre": [*sorted(chunk.before)], "post": [*sorted(chunk.after)], "addr": chunk.address}
        for chunk in iterate_chunks(kind, ranks, collective.root, parts)
    ]
    return {
        tag: "algorithm",
        "name": f"{name}-steps={steps}",
        "instance": {
            tag: "instance",
            "steps": steps,
            "extra_rounds": 0,
            "chunks": divisions,
            "pipeline": None,
            "extra_memory": None,
            "allow_exchange": False,
        },
        "input_map": _map_addresses(collective, is_output=False),
        "output_map": _map_addresses(collective, is_output=True),
        "steps": [{tag: "step", "rounds": 1, "sends": step_sends} for step_sends in by_step],
        "collective": {
            tag: "collective",
            "name": name,
            "nodes": ranks,
            "chunks": chunks,
            "runtime_name": RUNTIME_NAMES.get(kind),
        },
        "topology": {tag: "topology", "name": "any", "switches": [], "links": []},
    }


def _map_addresses(collective: Collective, *, is_output: bool) -> dict[str, JsonValue]:
    """Return the addresses that every rank has in its INPUT, or in its OUTPUT if `is_output`.

    An address is the number of a part of the data in SCCL's form (`iterate_chunks`, with
    `collective.units_per_rank` parts per address). INPUT has the data before the collective, OUTPUT
    those after it. A missing root counts as rank 0. Keys are all ranks as text, in ascending order.
    Values are ascending lists of distinct addresses, empty for a rank without data.
    """
    ranks, parts = collective.num_ranks, collective.units_per_rank
    addresses_by_rank: dict[str, JsonValue] = {}
    chunks = list(iterate_chunks(collective.kind, ranks, collective.root, parts))
    for rank in range(ranks):
        addresses = {
            chunk.address
            for chunk in chunks
            if rank in (chunk.after if is_output else chunk.before)
        }
        addresses_by_rank[str(rank)] = [*sorted(addresses)]
    return addresses_by_rank
