"""What one unit task costs by each strategy, and the best number of chunks.

Section 3 of the cost model of "On Optimizing the Communication of Model Parallelism" (MLSys 2023):
t the time of the box on one card, a receiving hosts with b devices each, alpha the latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class Strategy(StrEnum):
    """How a box reaches all of its receivers; in order of simplicity."""

    SEND_RECV = "send-recv"
    LOCAL_ALL_GATHER = "local-all-gather"
    SCATTER_ALL_GATHER = "scatter-all-gather"
    BROADCAST = "broadcast"
    TREE = "tree"


MOST_CHUNKS = 64
# A message leaves through one card and enters through another, as a whole at either.
LINKS_A_HOP = 2


@dataclass(frozen=True, slots=True)
class Reach:
    """Receivers of a task: `hosts`, with at most `devices` on each."""

    hosts: int
    devices: int


def card_work(strategy: Strategy, reach: Reach) -> Fraction:
    """Times that the busiest card carries the box, t being one."""
    a, b = reach.hosts, reach.devices
    work = {
        Strategy.SEND_RECV: Fraction(a * b),
        Strategy.LOCAL_ALL_GATHER: Fraction(a),
        Strategy.SCATTER_ALL_GATHER: Fraction(2 * a - 1, a),
    }
    # A chain or tree passes every card once.
    return work.get(strategy, Fraction(1))


def best_chunks(links: int, t_s: float, alpha_s: float, most: int = MOST_CHUNKS) -> int:
    """K* = sqrt((s - 1) t / alpha), s the links in a row, at least 1 and at most `most`.

    There (K + s - 1) (t / K + alpha) is least.
    """
    if alpha_s <= 0:
        return most
    ideal = math.sqrt((links - 1) * t_s / alpha_s)
    return max(1, min(most, round(ideal)))


def strategy_cost_s(strategy: Strategy, reach: Reach, t_s: float, alpha_s: float) -> float:
    """Seconds of a strategy alone on the network, by the table of section 3."""
    a = reach.hosts
    work = float(card_work(strategy, reach)) * t_s
    if strategy is Strategy.SEND_RECV:
        return work + alpha_s
    if strategy is Strategy.LOCAL_ALL_GATHER:
        return work + a * alpha_s
    if strategy is Strategy.SCATTER_ALL_GATHER:
        return work + (a + a - 1) * alpha_s
    chunks = best_chunks(a, t_s, alpha_s)
    return (chunks + a - 1) * (t_s / chunks + alpha_s)


def costs_s(reach: Reach, t_s: float, alpha_s: float) -> Mapping[Strategy, float]:
    """The cost of every strategy that needs no topology."""
    plain = [strategy for strategy in Strategy if strategy is not Strategy.TREE]
    return {one: strategy_cost_s(one, reach, t_s, alpha_s) for one in plain}


def cheapest(reach: Reach, t_s: float, alpha_s: float) -> Strategy:
    """The cheapest strategy, the simplest of equals.

    In the model a chain of one host costs what one message to it costs, and no gathering inside
    the host: it wins where a host has several receivers.
    """
    costs = costs_s(reach, t_s, alpha_s)
    if reach == Reach(1, 1):
        return Strategy.SEND_RECV
    chain = costs[Strategy.BROADCAST]
    rivals = [Strategy.SEND_RECV, Strategy.SCATTER_ALL_GATHER, Strategy.LOCAL_ALL_GATHER]
    best = min(rivals, key=lambda one: costs[one])
    # One host: the chain is a single message with K = 1, whatever K hides its store and forward.
    if reach.hosts == 1 or chain <= costs[best]:
        return Strategy.BROADCAST
    return best
