"""Resharding in rounds, first fit: the kind of greedy that Megatron-core has, to compare with.

Written anew from its description: every receiving device takes its boxes by point-to-point messages
from the least loaded device that holds them; a message goes to the first round in which neither of
its devices is busy, and rounds follow one another with a barrier between.
"""

from __future__ import annotations

from fractions import Fraction

from collhub_shardings import UnitTasks, device_pairs

from collhub_reshard.scheduling.host_network import HostNetwork


def first_fit_s(units: UnitTasks, network: HostNetwork) -> Fraction:
    """Seconds of all rounds, a round as long as the busiest card of any host in it."""
    rounds = _rounds(units)
    # The barrier makes the times add up.
    return sum((_round_s(units, network, found) for found in rounds), Fraction(0))


def _rounds(units: UnitTasks) -> list[list[tuple[int, int, int]]]:
    """(unit task, sender, receiver) of every round."""
    task, receiver, is_held = device_pairs(units)
    load: dict[int, int] = {}
    busy: dict[int, set[int]] = {}
    rounds: list[list[tuple[int, int, int]]] = []
    for row, end, has in zip(task.tolist(), receiver.tolist(), is_held.tolist(), strict=True):
        if has or not units.bytes[row]:
            continue
        senders = units.senders_of(row).tolist()
        start = min(senders, key=lambda device: load.get(device, 0))
        load[start] = load.get(start, 0) + int(units.bytes[row])
        taken = busy.setdefault(start, set()) | busy.setdefault(end, set())
        number = next(one for one in range(len(taken) + 1) if one not in taken)
        busy[start].add(number)
        busy[end].add(number)
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append((row, start, end))
    return rounds


def _round_s(
    units: UnitTasks, network: HostNetwork, messages: list[tuple[int, int, int]]
) -> Fraction:
    cards: dict[tuple[bool, int], int] = {}
    for row, start, end in messages:
        hosts = int(units.host_of[start]), int(units.host_of[end])
        if hosts[0] == hosts[1]:
            continue
        # What leaves one card enters another.
        for is_in, host in enumerate(hosts):
            key = bool(is_in), host
            cards[key] = cards.get(key, 0) + int(units.bytes[row])
    times = [
        size / ((network.in_rate if is_in else network.out_rate)[host] * network.cards)
        for (is_in, host), size in cards.items()
    ]
    return max(times, default=Fraction(0))
