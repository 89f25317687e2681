"""Write an algorithm as steps of sends, in the serialization of the synthesizers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

from collhub_sccl.collectives import NAMES, RUNTIME_NAMES, StepSend, find_sends, iterate_chunks
from collhub_sccl.document import TAGS
from collhub_sccl.read import read
from hub_core.model import (
    Algorithm,
    Collective,
    InputError,
    JsonValue,
    Location,
    Loss,
    StepTable,
)
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult
from hub_core.verification import verify

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


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Writer of the format `sccl`: one JSON document, in TACCL's dialect for reducing collectives.

    A message is sent in the step after the arrival of its last data. Raises `InputError` for
    collectives that SCCL does not have, and if the document would not reproduce the data movement:
    in SCCL every rank has one value per address, to which received values are added.
    """
    del options
    if algorithm.collective.kind not in NAMES or not algorithm.has_contents:
        raise _build_refusal(algorithm, "SCCL has no such collective", "write it as MSCCL-IR")
    document = _build_document(algorithm.collective, find_sends(algorithm))
    content = (json.dumps(document, indent=1) + "\n").encode()
    back = _read_back(algorithm, content)
    losses = list(_find_losses(algorithm.differences(back)))
    return WriteResult([Artifact("", content)], losses)


def _find_losses(differences: Sequence[str]) -> Iterator[Loss]:
    """Yield fields that are read back differently; all columns of the steps count as one."""
    where = "the entire algorithm"
    if any(name in _STEP_FIELDS for name in differences):
        yield Loss("steps", where, "only the sends of each unit in each step are written")
    for name in differences:
        if name in _CONSEQUENCES:
            yield Loss(name.replace("_", " "), where, _CONSEQUENCES[name])


def _read_back(algorithm: Algorithm, content: bytes) -> Algorithm:
    """Algorithm that the document describes. Raises `InputError` if it is not correct."""
    try:
        back = read(Source.of_bytes("the document", content), NoOptions())
    except InputError as error:
        reason = error.diagnostics[0].message
        raise _build_refusal(algorithm, reason, "write it as MSCCL-IR") from None
    # Only a document that describes a correct algorithm is written.
    if not verify(back).ok:
        reason = "a rank sends other values than the one that it would have at an address"
        raise _build_refusal(algorithm, reason, "write it as MSCCL-IR")
    return back


def _build_refusal(algorithm: Algorithm, reason: str, cure: str) -> InputError:
    """Error: the algorithm cannot be written."""
    return InputError(
        f"cannot be written as steps of sends: {reason}",
        location=Location(algorithm.provenance.source_name or None),
        cure=cure,
        code="sccl-inexpressible",
    )


def _build_document(collective: Collective, sends: list[StepSend]) -> dict[str, JsonValue]:
    """Content of the file, with members in the order of msccl-tools."""
    ranks, kind = collective.num_ranks, collective.kind
    divisions = collective.units_per_rank
    # Only TACCL's dialect, with divided collectives, marks the receives that reduce.
    is_taccl = kind.traits.reduces
    tag = TAGS[1] if is_taccl else TAGS[0]
    steps = max((send.step for send in sends), default=-1) + 1
    # Steps without sends are kept: later steps wait for earlier data.
    by_step: list[list[JsonValue]] = [[] for _ in range(steps)]
    for send in sends:
        by_step[send.step].append(_list_fields(send, is_taccl=is_taccl))
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


def _list_fields(send: StepSend, *, is_taccl: bool) -> list[JsonValue]:
    """Fields of a send in the file."""
    plain: list[JsonValue] = [send.address, send.source, send.destination]
    if not is_taccl:
        return plain
    # Its time (the step) and its link (there is only one).
    return [*plain, float(send.step), 1.0, _REDUCES if send.reduces else None]


def _map_addresses(collective: Collective, *, is_output: bool) -> dict[str, JsonValue]:
    """Addresses in the INPUT (or OUTPUT) of every rank."""
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
