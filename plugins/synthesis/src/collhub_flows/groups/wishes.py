"""Groups as people write them, and what each of them asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import (
    STANDARD_KINDS,
    Collective,
    CollectiveKind,
    ReduceOp,
    UsageError,
    parse_ranks,
    parse_size,
    standard_kind,
)

_CURE = "write --groups '0-7,8-15', or '0,5,9;1,2,4' where groups are no ranges"
_FIELDS = "NPUS[:COLLECTIVE[:SIZE]], as 0-7:all-gather:1MiB"


@dataclass(frozen=True, slots=True)
class GroupWish:
    """A collective of `size` bytes among `npus`; rank r of it runs on `npus[r]`.

    A rooted collective has its root on the first NPU.
    """

    npus: tuple[int, ...]
    kind: CollectiveKind
    size: int
    reduce_op: ReduceOp = ReduceOp.SUM

    def collective(self, units: int) -> Collective:
        """The collective with so many units a share; an all-reduce has a share for every rank."""
        return Collective(
            self.kind,
            len(self.npus),
            units * self.shares,
            root=0 if self.kind.traits.is_rooted else None,
            in_place=True,
            reduce_op=self.reduce_op,
        )

    @property
    def shares(self) -> int:
        """Parts of the full buffer that travel on their own."""
        # One vector whole would load one root alone.
        if self.kind is CollectiveKind.ALL_REDUCE:
            return len(self.npus)
        return self.kind.traits.parts(len(self.npus))

    @property
    def share_bytes(self) -> float:
        """Bytes of a share."""
        return self.size / self.shares


@dataclass(frozen=True, slots=True)
class CommonWish:
    """Collective and size of groups that name none, None where these are not given either."""

    kind: str | None = None
    size: str | None = None
    reduce_op: ReduceOp = ReduceOp.SUM


def parse_groups(
    together: str | None, single: Sequence[str], common: CommonWish
) -> tuple[GroupWish, ...]:
    """Groups of `--groups` and of every `--group`, in this order.

    Raises `UsageError` for texts that are none, groups of one, and what is not said anywhere.
    """
    texts = [] if together is None else _cut(together)
    # A list of NPUs has no colon, so both forms are read alike.
    wishes = tuple(_wish(text, common) for text in (*texts, *single))
    if not wishes:
        raise UsageError("no group is named", cure=_CURE, code="no-groups")
    return wishes


def check_groups(wishes: Sequence[GroupWish], num_npus: int, topology: str) -> None:
    """Raise `UsageError` for an NPU that the topology lacks."""
    for wish in wishes:
        highest = max(wish.npus)
        if highest >= num_npus:
            raise UsageError(
                f"topology {topology} has no NPU {highest}",
                cure=f"name NPUs of 0..{num_npus - 1}",
                code="npu-range",
            )


def _cut(text: str) -> list[str]:
    """Groups by semicolon; without one, every part between commas is a group."""
    mark = ";" if ";" in text else ","
    return [part for part in text.split(mark) if part.strip()]


def _wish(text: str, common: CommonWish) -> GroupWish:
    fields = text.split(":")
    if len(fields) > 3:
        message = f"{text[:80]!r} is not a group"
        raise UsageError(message, cure=f"write {_FIELDS}", code="invalid-group")
    # What is left empty is as for all.
    given = [*fields, "", ""]
    kind, size = given[1] or common.kind, given[2] or common.size
    if not kind or not size:
        missing = "size" if kind else "collective"
        message = f"group {text[:80]!r}: its {missing} is not said"
        raise UsageError(message, cure=f"give --{missing}, or write {_FIELDS}")
    npus = parse_ranks(fields[0], "NPU")
    if len(npus) < 2:
        message = f"group {text[:80]!r} has one NPU, which has nobody to talk to"
        raise UsageError(message, cure=_CURE, code="group-of-one")
    return GroupWish(npus, _kind(kind, text), parse_size(size), common.reduce_op)


def _kind(name: str, text: str) -> CollectiveKind:
    kind = standard_kind(name)
    if kind is None:
        known = [str(kind) for kind in STANDARD_KINDS]
        message = f"group {text[:80]!r}: there is no collective {name[:40]!r}"
        raise UsageError(message, cure=f"use one of {', '.join(known)}", code="unknown-collective")
    return kind
