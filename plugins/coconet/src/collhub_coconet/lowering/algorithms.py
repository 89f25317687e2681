"""Algorithms of the collectives of a program: selected, synthesized once, and verified."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from collhub_coconet.lowering.contents import Contents, build_contents
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core import HubError, InputError, Registry, Topology, read, synthesize, verify
from hub_core.model import Algorithm, Collective, CollectiveKind

KINDS = {
    Kind.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    Kind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    Kind.ALL_GATHER: CollectiveKind.ALL_GATHER,
    Kind.BROADCAST: CollectiveKind.BROADCAST,
    Kind.REDUCE: CollectiveKind.REDUCE,
    Kind.ALL_TO_ALL: CollectiveKind.ALL_TO_ALL,
}
# Algorithms for the collectives that rings and halving do not implement.
_FALLBACK_ALGORITHMS = {
    Kind.ALL_TO_ALL: "direct",
    Kind.BROADCAST: "binomial",
    Kind.REDUCE: "binomial",
}
# A single scalar is too small to be cut into the units of other algorithms.
SCALAR_ALGORITHM = "binomial"


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and chunks of one communication.

    `algorithm`: the name of a synthesizer, a file, or an algorithm; the latter two must perform the
    collective on the same number of ranks. `options`: of the synthesizer. `chunks`: number of
    pieces, each of which runs the complete algorithm when its data are available; of a Send, the
    number of its messages. `tiles`: maximum number of computations per rank into which a producer
    in a chain is cut; None: one per unit. `at_once`: maximum number of pieces in flight on a rank;
    a small number lets the first piece finish early.
    """

    algorithm: str | Algorithm = "ring"
    chunks: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    tiles: int | None = None
    at_once: int = 2

    def __post_init__(self) -> None:
        if min(self.chunks, self.at_once, 1 if self.tiles is None else self.tiles) < 1:
            numbers = f"{self.chunks} chunks, {self.at_once} at once, {self.tiles} tiles"
            message = f"{numbers}: at least 1 of each is needed"
            raise InputError(message, cure="state a positive number", code="chunks")


Choices = Mapping[str, Choice]
"""Choices by the name of a communication; the empty name applies to all without an entry."""


def select_choice(choices: Choices, name: str, *, is_scalar: bool = False) -> Choice:
    """Select the choice for a communication.

    A reduction of one scalar (`is_scalar`) uses an algorithm of one unit unless it has its own
    entry.
    """
    if is_scalar:
        return choices.get(name, Choice(SCALAR_ALGORITHM))
    return choices.get(name, choices.get("", Choice()))


def select_fallbacks(program: Program, chunks: int = 1) -> dict[str, Choice]:
    """Select algorithms for the collectives that only some algorithms implement, by name.

    `chunks`: number of pieces of each, and of tiles of the computations that overlap with it; with
    one piece, the number of tiles is not limited.
    """
    return {
        operation.name: Choice(
            _FALLBACK_ALGORITHMS[operation.kind], chunks, tiles=chunks if chunks > 1 else None
        )
        for operation in program.operations
        if operation.kind in _FALLBACK_ALGORITHMS
    }


@dataclass(frozen=True, slots=True)
class Call:
    """Collective of the ranks `members` with a full buffer of `size_bytes` bytes.

    `root`: index of the root in `members`, or None.
    """

    kind: Kind
    members: range
    root: int | None
    size_bytes: int

    @property
    def collective(self) -> Collective:
        """The collective, in place, with one unit per part of a rank."""
        kind, ranks = KINDS[self.kind], len(self.members)
        return Collective(kind, ranks, kind.traits.parts(ranks), root=self.root, in_place=True)


class Algorithms:
    """Algorithms of collectives on the ranks of one group; each is created once."""

    def __init__(self, topology: Topology, registry: Registry) -> None:
        self._topology, self._registry = topology, registry
        self._cache: dict[Hashable, Contents] = {}

    def contents(self, call: Call, choice: Choice) -> Contents:
        """Create the nodes of an algorithm for one piece.

        Raises `HubError` for an algorithm that does not fit the call or that is incorrect.
        """
        algorithm = choice.algorithm
        identity = algorithm if isinstance(algorithm, str) else id(algorithm)
        key = call, identity, tuple(sorted(choice.options.items()))
        if key not in self._cache:
            self._cache[key] = build_contents(self._find_algorithm(call, choice), call.size_bytes)
        return self._cache[key]

    def _find_algorithm(self, call: Call, choice: Choice) -> Algorithm:
        """Synthesize, read or take the chosen algorithm, and verify it."""
        algorithm = choice.algorithm
        if isinstance(algorithm, str):
            is_file = not algorithm.isidentifier() and bool({"/", "."} & set(algorithm))
            if not is_file:
                return _verify_algorithm(self._synthesize(call, choice))
            algorithm = read(algorithm, registry=self._registry)
        actual, required = algorithm.collective, call.collective
        fits = (actual.kind, actual.num_ranks, actual.root) == (
            required.kind, required.num_ranks, required.root,
        )  # fmt: skip
        if not fits:
            message = f"{algorithm!r} is no {required.kind} of {required.num_ranks} ranks"
            raise InputError(message, cure="name another algorithm", code="algorithm-does-not-fit")
        return _verify_algorithm(algorithm)

    def _synthesize(self, call: Call, choice: Choice) -> Algorithm:
        """Synthesize an algorithm on the part of the network that the group uses."""
        network = self._topology
        if len(call.members) < network.num_npus:
            network = network.subset(call.members)
        return synthesize(
            call.collective,
            network,
            call.size_bytes,
            name=str(choice.algorithm),
            options=choice.options,
            registry=self._registry,
        ).algorithm


def _verify_algorithm(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm if every output has each contribution exactly once, else raise."""
    report = verify(algorithm)
    if not report.ok:
        raise HubError(report.diagnostics)
    return algorithm


def count_buffer_bytes(program: Program, binding: Binding, operation: Operation) -> int:
    """Count the bytes of the full buffer of a collective, with all blocks as long as the longest.

    The full buffer contains the blocks of all ranks, or one complete buffer per rank. For a
    reduction to a scalar that is all-reduced, it is the scalar.
    """
    kind, ranks = program.types[operation.name], binding.num_ranks
    if not operation.is_communication:
        return binding.bytes_of_rank(kind)
    # All blocks count as the longest one.
    if operation.kind is Kind.REDUCE_SCATTER:
        return binding.bytes_of_rank(kind) * ranks
    operand = program.types[operation.reads[0]]
    size = binding.bytes_of_rank(operand)
    if operation.kind is Kind.ALL_GATHER:
        return size * ranks
    if operation.kind is Kind.ALL_TO_ALL:
        # A rank sends to each rank a block of its slice, cut along the other dimension.
        length = binding.shape(kind.shape)[kind.layout.dimension]
        return size // length * -(-length // ranks) * ranks
    return size
