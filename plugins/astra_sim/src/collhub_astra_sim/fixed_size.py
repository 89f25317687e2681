"""Refuse sizes that an algorithm cannot have: traces that state messages in bytes have one size only."""

from __future__ import annotations

from hub_core.model import Algorithm, InputError, UsageError


def check_size(algorithm: Algorithm, collective_bytes: int) -> None:
    """Raise `UsageError` for less than a byte, `InputError` for another size than that of a trace of bytes."""
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes", cure="state a size of at least 1 byte"
        )
    fixed = algorithm.collective_bytes
    if fixed is not None and fixed != collective_bytes and not algorithm.has_contents:
        raise InputError(
            f"the trace states its messages in bytes, for a size of {fixed} bytes in all, not {collective_bytes}",
            cure=f"use it at {fixed}B",
            code="fixed-size",
        )
