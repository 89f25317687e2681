"""What devices are to get from whom: unit tasks of the same senders and receivers together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from collhub_shardings import UnitTasks

Part = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Boxes that any of `senders` gives to all of `receivers`, one behind the other.

    Senders and receivers are NPUs in the order of their meshes; receivers lack the boxes. `rows`:
    unit tasks; `ends`: bytes of the boxes up to and with each of them.
    """

    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    rows: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all boxes."""
        return self.ends[-1]

    def boxes(self, part: Part) -> Iterator[tuple[int, Part]]:
        """(unit task, part of its box) of a part of the bytes, both from 0 to 1."""
        low, high = part[0] * self.bytes, part[1] * self.bytes
        begin = 0
        for row, end in zip(self.rows, self.ends, strict=True):
            first, last = max(low, Fraction(begin)), min(high, Fraction(end))
            if first < last:
                size = end - begin
                yield row, ((first - begin) / size, (last - begin) / size)
            begin = end


def deliveries_of(units: UnitTasks) -> list[Delivery]:
    """All deliveries; boxes that every receiver has already need none."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for row in range(len(units)):
        senders = tuple(units.senders_of(row).tolist())
        wanted = units.receivers_of(row).tolist()
        receivers = tuple(device for device in wanted if device not in senders)
        if receivers and units.bytes[row]:
            found.setdefault((senders, receivers), []).append(row)
    sizes: Mapping[int, int] = dict(enumerate(units.bytes.tolist()))
    made = []
    for (senders, receivers), rows in found.items():
        ends, total = [], 0
        for row in rows:
            total += sizes[row]
            ends.append(total)
        made.append(Delivery(senders, receivers, tuple(rows), tuple(ends)))
    return made
