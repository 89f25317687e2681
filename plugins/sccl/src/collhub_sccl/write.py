"""Write an algorithm as steps of sends, as the synthesizers serialise what they find."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

from collhub_sccl.collectives import NAMES, RUNTIME_NAMES, stated_chunks
from collhub_sccl.document import TAGS
from collhub_sccl.read import read
from collhub_sccl.step_sends import StepSend, sends_of
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
_OF_STEPS = frozenset(field.name for field in fields(StepTable))
_CONSEQUENCES = {
    "in_place": "which calls it is for is not stated",
    "out_of_place": "which calls it is for is not stated",
    "collective_bytes": "no size is stated",
    "extensions": "what other formats know is not stated",
    "scratch_units": "where a rank holds what it passes on is not stated",
    "reduce_op": "operators are not stated, and sums are read back",
    "unit_count": "units are read back as large as an address",
}


def write(algorithm: Algorithm, options: NoOptions) -> WriteResult:
    """Writer of the format `sccl`: one JSON document; of collectives with sums in TACCL's dialect.

    A message is sent in the step after the one that brought the last of its data. Raises
    `InputError` for collectives that SCCL does not have, and where what an address holds does not
    tell what was sent: there every rank has one value an address, and sums what it gets into it.
    """
    del options
    if algorithm.collective.kind not in NAMES or not algorithm.has_contents:
        raise _refusal(algorithm, "SCCL has no such collective", "write it as MSCCL-IR")
    document = _document(algorithm.collective, sends_of(algorithm))
    content = (json.dumps(document, indent=1) + "\n").encode()
    back = _read_back(algorithm, content)
    losses = list(_losses(algorithm.differences(back)))
    return WriteResult([Artifact("", content)], losses)


def _losses(differences: Sequence[str]) -> Iterator[Loss]:
    """Parts that are read back otherwise; all columns of the steps are one."""
    whole = "the whole algorithm"
    if any(name in _OF_STEPS for name in differences):
        yield Loss("steps", whole, "which unit goes where in which step is all that is stated")
    for name in differences:
        if name in _CONSEQUENCES:
            yield Loss(name.replace("_", " "), whole, _CONSEQUENCES[name])


def _read_back(algorithm: Algorithm, content: bytes) -> Algorithm:
    """What the document means; raises `InputError` where that is not what was to be written."""
    try:
        back = read(Source.of_bytes("the document", content), NoOptions())
    except InputError as error:
        reason = error.diagnostics[0].message
        raise _refusal(algorithm, reason, "write it as MSCCL-IR") from None
    # The document alone decides: what it means is right, or it is not written.
    if not verify(back).ok:
        reason = "a rank sends other values than the one that it would hold at an address"
        raise _refusal(algorithm, reason, "write it as MSCCL-IR")
    return back


def _refusal(algorithm: Algorithm, reason: str, cure: str) -> InputError:
    return InputError(
        f"cannot be written as steps of sends: {reason}",
        location=Location(algorithm.provenance.source_name or None),
        cure=cure,
        code="sccl-inexpressible",
    )


def _document(collective: Collective, sends: list[StepSend]) -> dict[str, JsonValue]:
    """The members in the order of msccl-tools."""
    ranks, kind = collective.num_ranks, collective.kind
    divisions = collective.units_per_rank
    # Sums need to say which receives add: only TACCL's dialect does, of divided collectives.
    is_taccl = kind.traits.reduces
    tag = TAGS[1] if is_taccl else TAGS[0]
    steps = max((send.step for send in sends), default=-1) + 1
    # A step without sends stays: the steps after it wait for what came before.
    by_step: list[list[JsonValue]] = [[] for _ in range(steps)]
    for send in sends:
        by_step[send.step].append(_fields(send, is_taccl=is_taccl))
    root = "" if collective.root is None else f",root={collective.root}"
    name = f"{NAMES[kind]}(n={ranks}{root})"
    # msccl-tools states the collective undivided, whatever its steps divide.
    parts = divisions if is_taccl else 1
    chunks: list[JsonValue] = [
        {"pre": [*sorted(one.before)], "post": [*sorted(one.after)], "addr": one.address}
        for one in stated_chunks(kind, ranks, collective.root, parts)
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
        "input_map": _addresses(collective, is_output=False),
        "output_map": _addresses(collective, is_output=True),
        "steps": [{tag: "step", "rounds": 1, "sends": some} for some in by_step],
        "collective": {
            tag: "collective",
            "name": name,
            "nodes": ranks,
            "chunks": chunks,
            "runtime_name": RUNTIME_NAMES.get(kind),
        },
        "topology": {tag: "topology", "name": "any", "switches": [], "links": []},
    }


def _fields(send: StepSend, *, is_taccl: bool) -> list[JsonValue]:
    plain: list[JsonValue] = [send.address, send.source, send.destination]
    if not is_taccl:
        return plain
    # Its time, in steps, and its link, of which there is one.
    return [*plain, float(send.step), 1.0, _REDUCES if send.reduces else None]


def _addresses(collective: Collective, *, is_output: bool) -> dict[str, JsonValue]:
    """Addresses in the INPUT, or in the OUTPUT, of every rank."""
    ranks, parts = collective.num_ranks, collective.units_per_rank
    found: dict[str, JsonValue] = {}
    chunks = list(stated_chunks(collective.kind, ranks, collective.root, parts))
    for rank in range(ranks):
        mine = {one.address for one in chunks if rank in (one.after if is_output else one.before)}
        found[str(rank)] = [*sorted(mine)]
    return found
