"""Refuse sizes that an algorithm cannot have: a trace with messages in bytes has one fixed size."""

from __future__ import annotations

from hub_core.model import Algorithm, InputError, UsageError


def check_size(algorithm: Algorithm, collective_bytes: int) -> None:
    """Raise `UsageError` for less than a byte, `InputError` if a trace is fixed to another size.

    A trace with messages in bytes has no units that could be scaled.
    """
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes",
            cure="choose a size of at least 1 byte",
        )
    fixed = algorithm.collective_bytes
    if fixed is None or fixed == collective_bytes or algorithm.has_contents:
        return
    raise InputError(
        f"the trace states its messages in bytes, for a size of {fixed} bytes in all, "
        f"not {collective_bytes}",
        cure=f"use it at {fixed}B",
        code="fixed-size",
    )
