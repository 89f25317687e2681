"""Times of collectives by formula, and the best choice of algorithm, protocol and chunk count.

Alpha-beta model: a step costs a latency and its bytes over the bandwidth. Sources: Thakur et al.,
"Optimization of Collective Communication Operations in MPICH" (2005) for ring and halving/doubling;
pipelined binary trees with k chunks as in Sanders et al., "Two-tree algorithms" (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from collhub_coconet.program.operations import Kind
from collhub_coconet.search.rates import Rates

CHUNK_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol of NCCL: its latency a step, and the share of the bytes that are data."""

    name: str
    step_s: float
    data_share: float


# Shares: LL sends 4 bytes of data of 8, LL128 120 of 128. Latencies: those of rings over NVLink in
# NCCL's src/graph/tuning.cc.
PROTOCOLS = (
    Protocol("Simple", 3.4e-6, 1.0),
    Protocol("LL128", 1.9e-6, 120 / 128),
    Protocol("LL", 0.6e-6, 4 / 8),
)


@dataclass(frozen=True, slots=True, order=True)
class Means:
    """Means by which one communication, stage or chain is carried out."""

    algorithm: str
    protocol: str
    chunks: int = 1

    def __str__(self) -> str:
        chunks = f", {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.algorithm} {self.protocol}{chunks}"


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective: ranks, bytes of the whole tensor, latency of a step, seconds a byte."""

    ranks: int
    size: int
    alpha: float
    beta: float

    @property
    def share(self) -> float:
        """Seconds to send all blocks but one's own."""
        # No algorithm sends less of a whole buffer.
        return (self.ranks - 1) / self.ranks * self.size * self.beta

    @property
    def depth(self) -> int:
        """Rounds of a binary tree, or of halving and doubling."""
        return ceil(log2(self.ranks))

    def pipelined(self, rounds: int, chunks: int) -> float:
        """A pipeline of chunks through so many rounds."""
        return (rounds + chunks - 1) * (self.alpha + self.size * self.beta / chunks)


def _ring(call: _Call, passes: int) -> float:
    return passes * ((call.ranks - 1) * call.alpha + call.share)


def _halving(call: _Call, passes: int) -> float:
    return passes * (call.depth * call.alpha + call.share)


Formula = Callable[[_Call, int], float]
# Of each kind: formulas by algorithm, of a call and a chunk count, 1 where there are no chunks.
_FORMULAS: dict[Kind, dict[str, Formula]] = {
    Kind.ALL_REDUCE: {
        "ring": lambda call, _: _ring(call, 2),
        "halving-doubling": lambda call, _: _halving(call, 2),
        "tree": lambda call, chunks: 2 * call.pipelined(call.depth, chunks),
    },
    Kind.REDUCE_SCATTER: {
        "ring": lambda call, _: _ring(call, 1),
        "halving-doubling": lambda call, _: _halving(call, 1),
    },
    Kind.ALL_GATHER: {
        "ring": lambda call, _: _ring(call, 1),
        "halving-doubling": lambda call, _: _halving(call, 1),
    },
    Kind.ALL_TO_ALL: {"direct": lambda call, _: _ring(call, 1) / call.ranks + call.alpha},
    Kind.BROADCAST: {"tree": lambda call, chunks: call.pipelined(call.depth, chunks)},
    Kind.REDUCE: {"tree": lambda call, chunks: call.pipelined(call.depth, chunks)},
    Kind.SEND: {"direct": lambda call, _: call.alpha + call.size * call.beta},
}


@lru_cache(maxsize=1 << 14)
def best_choice(kind: Kind, size: int, ranks: int, rates: Rates) -> tuple[float, Means]:
    """Seconds of a collective, and how; `size`: bytes of the whole tensor, of a Send those sent."""
    return min(_choices(kind, size, ranks, rates))


def _choices(kind: Kind, size: int, ranks: int, rates: Rates) -> Iterator[tuple[float, Means]]:
    for protocol in PROTOCOLS:
        alpha = rates.latency_s + protocol.step_s
        call = _Call(ranks, size, alpha, 1 / (rates.link_bytes_per_s * protocol.data_share))
        for name, formula in _FORMULAS[kind].items():
            # A ring has no links for the partners of the others.
            if name == "halving-doubling" and not rates.is_any_to_any:
                continue
            for chunks in CHUNK_COUNTS if name == "tree" else (1,):
                yield formula(call, chunks), Means(name, protocol.name, chunks)
