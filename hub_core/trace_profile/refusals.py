"""What the codec of traces refuses, as errors of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hub_core.chakra import TraceError
from hub_core.model import InputError, Location


@contextmanager
def input_errors() -> Iterator[None]:
    """Within it, a `TraceError` is an `InputError` at the same place."""
    try:
        yield
    except TraceError as error:
        place = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(error.reason, location=place, code=error.code, cure=error.cure) from None
