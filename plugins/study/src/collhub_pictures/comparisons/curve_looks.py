"""How the lines of algorithms are told apart: colour, marker, and for many, the dash."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's colours without the black, which is the bound's (Color Universal Design, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "9 3", "2 3", "9 3 2 3")

# Around their middle, as SVG path data. Six colours and seven markers: 42 pairs of them.
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.6L4.4 -3.4H-4.4z",
    "M-4 -4H4L-4 4H4z",
    "M-4 -4V4L4 -4V4z",
)


@dataclass(frozen=True, slots=True)
class CurveLook:
    """Colour, dash (as `stroke-dasharray`) and marker (as path data) of a line; empty: none."""

    colour: str
    dash: str
    marker: str


BOUND_LOOK = CurveLook("#000000", "6 4", "")


def look(place: int) -> CurveLook:
    """The look of a line by its place among all."""
    colours = len(_COLOURS)
    dash = _DASHES[place // colours % len(_DASHES)]
    return CurveLook(_COLOURS[place % colours], dash, _MARKERS[place % len(_MARKERS)])
