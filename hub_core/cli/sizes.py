"""Read one size, or a range of sizes such as `1MiB..1GiB`, from the command line."""

from __future__ import annotations

from hub_core.model import UsageError, parse_size


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1MiB`: that size.

    `1MiB..1GiB`: from the first to the last, each twice the one before. Raises `UsageError`.
    """
    first, dots, last = text.partition("..")
    sizes = [parse_size(first)]
    if not dots:
        return tuple(sizes)
    end = parse_size(last)
    if end < sizes[0]:
        raise UsageError(
            f"the range of sizes {text!r} ends below its start", cure="write for example 1MiB..1GiB"
        )
    while sizes[-1] * 2 <= end:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)
