"""Classes of lines: those of one bandwidth and latency have one colour and width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_pictures.networks.drawn_lines import DrawnLines
from hub_core.model import format_bandwidth, format_time

# Okabe and Ito's colours, which people with any colour vision can tell apart; grey for the classes
# beyond (Okabe and Ito, Color Universal Design, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_OTHERS = "#999999"


@dataclass(frozen=True, slots=True)
class LineClass:
    """Lines of one bandwidth and latency; `links`: how many links they stand for."""

    bandwidth_bytes_per_s: float
    latency_s: float
    colour: str
    width: float
    links: int

    @property
    def rate_and_latency(self) -> str:
        """`50 GB/s, 500 ns`."""
        # Rounded as the topology's own latencies are, so that decimal inputs come back exactly.
        latency_ns = round(self.latency_s * 1e9, 6)
        rate = format_bandwidth(self.bandwidth_bytes_per_s)
        return f"{rate}, {format_time(latency_ns)}"

    @property
    def text(self) -> str:
        """`50 GB/s, 500 ns: 16 links`."""
        count = "1 link"
        if self.links > 1:
            count = f"{self.links} links"
        return f"{self.rate_and_latency}: {count}"


def classes_of(lines: DrawnLines) -> tuple[list[LineClass], list[int]]:
    """The classes by falling bandwidth, then latency; and the class of every line."""
    if not len(lines):
        return [], []
    keys = np.stack([-lines.bandwidth_bytes_per_s, lines.latency_s])
    distinct, number = np.unique(keys, axis=1, return_inverse=True)
    # Some versions of numpy return it as a row.
    number = number.ravel()
    ways = np.where(lines.is_arrow, 1, 2)
    links = np.bincount(number, lines.count * ways).astype(int)
    fastest = -distinct[0, 0]
    classes = []
    for index, (negative_rate, latency) in enumerate(distinct.T.tolist()):
        width = 1.0 + 3.0 * -negative_rate / fastest
        colour = COLOURS[index] if index < len(COLOURS) else _OTHERS
        classes.append(LineClass(-negative_rate, latency, colour, width, int(links[index])))
    return classes, number.tolist()
