"""From a schedule to an algorithm: what every synthesizer needs last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Collective, CollectiveKind, JsonValue, Provenance
from hub_core.schedules.chunks import Chunks
from hub_core.schedules.lowering.holders import ChunkHolders
from hub_core.schedules.lowering.message_ends import MessageEnds
from hub_core.schedules.lowering.steps import steps_of
from hub_core.schedules.membership import collective_among
from hub_core.schedules.transfers import Transfers


def algorithm_of(
    collective: Collective,
    chunks: Chunks,
    transfers: Transfers,
    *,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    wanted: Sequence[int] | None = None,
    provenance: Provenance | None = None,
    collective_bytes: int | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    startup_ns: Sequence[int] = (),
) -> Algorithm:
    """The algorithm that performs `transfers`: rank v is NPU v, ranks outside `npus` only relay.

    Every transfer becomes a SEND and a RECV or RECV_REDUCE, on its stated channel, or channel k
    where its link is the k-th between its ends. `startup_ns[p]`: time until plane p of the topology
    can be used, that is, channels c with c % len(startup_ns) == p: a COMPUTE step of that time
    precedes the sends there that wait for no data.

    What a rank forwards it reads where it arrived: in OUTPUT where the rank needs it, else in
    SCRATCH. A SEND has a data dependency on the arrival of what it sends, and a control dependency
    on the message `window` turns before it on its link. A rank that needs what it has itself copies
    it last. With `wanted`, only the steps of these ranks are made. An all-to-all is claimed out of
    place alone: in place, what arrives would stand where something still waits to be sent.

    Cost: three sorts of the transfers. Raises `InputError` for a chunk that is sent before its
    source has it.
    """
    members = _members(collective, npus)
    total = int(members.max()) + 1 if num_npus is None else num_npus
    ends = MessageEnds.of(transfers, len(chunks), wanted)
    holders = ChunkHolders.of(chunks, members, total)
    startups = np.asarray(startup_ns, np.int64)
    steps, scratch_units = steps_of(ends, transfers, holders, startups)
    return Algorithm(
        collective_among(_callable(collective), members.tolist(), total),
        steps,
        scratch_units,
        provenance or Provenance(),
        collective_bytes,
        extensions or {},
    )


def _members(collective: Collective, npus: Sequence[int] | None) -> Int64Array:
    """The NPU of every rank."""
    # By default rank r is NPU r.
    if npus is None:
        return np.arange(collective.num_ranks)
    return np.asarray(npus, np.int64)


def _callable(collective: Collective) -> Collective:
    """The collective with those claims that the steps made here can keep."""
    if collective.kind is CollectiveKind.ALL_TO_ALL:
        return replace(collective, in_place=False, out_of_place=True)
    return collective
