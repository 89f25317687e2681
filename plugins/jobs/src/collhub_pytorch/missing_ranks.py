"""Ranks without a file, assumed to do what another one does, in groups of their own."""

from __future__ import annotations

from collhub_pytorch.calls import Call
from collhub_pytorch.rank_nodes import RankNodes
from hub_core.model import InputError, Location, NodeKind


def group_of_rank(
    call: Call, part: RankNodes, rank: int, world_size: int
) -> tuple[int, ...] | None:
    """The group in which `rank` does what the rank of `part` does by `call`.

    The same group where it is a member. Else the groups are taken to cut all ranks alike, as
    layouts by tensor, data and pipeline do: n ranks at equal distances d, in blocks of n d. Raises
    `InputError` where that does not fit, and for messages.
    """
    ranks = call.group.ranks
    if call.kind is not NodeKind.COLLECTIVE:
        message = "a message between two ranks says nothing of the ranks that are missing"
        raise _unknown(message, part)
    if ranks is None or rank in ranks:
        return ranks
    distance = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if distance < 1 or world_size % (len(ranks) * distance):
        raise _unknown(_message(call, rank), part)
    if _of(part.rank, len(ranks), distance) != ranks:
        raise _unknown(_message(call, rank), part)
    return _of(rank, len(ranks), distance)


def _of(rank: int, count: int, distance: int) -> tuple[int, ...]:
    """The group of a rank where groups have `count` ranks at this distance."""
    block = count * distance
    first = rank // block * block + rank % distance
    return tuple(first + distance * one for one in range(count))


def _message(call: Call, rank: int) -> str:
    """The message for a call whose group does not tell that of `rank`."""
    return f"the group of rank {rank} that is like {call.group.name!r} cannot be told"


def _unknown(message: str, part: RankNodes) -> InputError:
    """The error to raise, of code `missing-ranks`, at the file of `part`."""
    cure = "name the files of all ranks"
    return InputError(message, location=Location(part.file), cure=cure, code="missing-ranks")
