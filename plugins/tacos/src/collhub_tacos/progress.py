"""How a long search says how far it is; what the receiver raises ends the search."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""`progress(fraction, what)`: the fraction 0..1 that is done, and of what."""

FractionReport = Callable[[float], None]
"""`report(fraction)`: the fraction 0..1 that is done."""


AfterTrial = Callable[[], None]
"""Called when a seed was tried, to count its work; it may raise."""


def uncounted() -> None:
    """Count nothing."""


def silent(fraction: float, what: str) -> None:
    """Report to nobody."""


def unreported(fraction: float) -> None:
    """Report no fraction to anybody."""


def part_of(progress: Progress, place: int, places: int) -> Progress:
    """Report of part `place` of `places` equal parts of a work."""

    def report(fraction: float, what: str) -> None:
        """Report a fraction of the part, 0..1, as a fraction of the whole."""
        progress((place + fraction) / places, what)

    return report


def unnamed(report: FractionReport) -> Progress:
    """Report whatever is done by its fraction alone."""
    return lambda fraction, what: report(fraction)


def named(progress: Progress, what: str) -> FractionReport:
    """Report of fractions alone, all of them of `what`."""

    def report(fraction: float) -> None:
        progress(fraction, what)

    return report
