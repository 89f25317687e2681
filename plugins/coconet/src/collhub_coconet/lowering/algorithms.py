"""Algorithms of the collectives of a program: selected, synthesized once, and verified."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from collhub_coconet.lowering.contents import Contents, contents_of
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
# Rings and halving define no other collectives than reductions and gatherings.
_FALLBACKS = {
    Kind.ALL_TO_ALL: "direct",
    Kind.BROADCAST: "binomial",
    Kind.REDUCE: "binomial",
}
# One scalar has no room for the units of other algorithms.
OF_SCALARS = "binomial"


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and chunks of one communication.

    `algorithm`: a synthesizer by name, a file, or an algorithm itself, which has to perform the
    collective on as many ranks. `options`: of the synthesizer. `chunks`: pieces in which the whole
    algorithm runs, one behind the other as their data come; of a Send, its messages. `tiles`: most
    computations into which a producer in a chain is cut on a rank; None: one for every unit.
    `at_once`: pieces under way at once on a rank, so that the first one is over early.
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
"""Choices by the name of a communication; the one of the empty name is for all others."""


def choice_of(choices: Choices, name: str, *, is_scalar: bool = False) -> Choice:
    """The choice for a communication.

    A reduction of one scalar (`is_scalar`) has an algorithm of one unit unless it is named.
    """
    if is_scalar:
        return choices.get(name, Choice(OF_SCALARS))
    return choices.get(name, choices.get("", Choice()))


def fallbacks(program: Program, chunks: int = 1) -> dict[str, Choice]:
    """Choices for the collectives that not every algorithm performs, by name.

    `chunks`: pieces of each, and tiles of what they are overlapped with; one piece: no limit.
    """
    return {
        one.name: Choice(_FALLBACKS[one.kind], chunks, tiles=chunks if chunks > 1 else None)
        for one in program.operations
        if one.kind in _FALLBACKS
    }


@dataclass(frozen=True, slots=True)
class Call:
    """A collective of the ranks `members`, the full buffer of which has `size_bytes` bytes.

    `root`: one of the members, counted from 0 among them.
    """

    kind: Kind
    members: range
    root: int | None
    size_bytes: int

    @property
    def collective(self) -> Collective:
        """The collective, of one unit for each rank's part, in place."""
        kind, ranks = KINDS[self.kind], len(self.members)
        return Collective(kind, ranks, kind.traits.parts(ranks), root=self.root, in_place=True)


class Algorithms:
    """Makes the algorithms of collectives on the ranks of one group; each one once."""

    def __init__(self, topology: Topology, registry: Registry) -> None:
        self._topology, self._registry = topology, registry
        self._made: dict[Hashable, Contents] = {}

    def contents(self, call: Call, choice: Choice) -> Contents:
        """The algorithm of a piece as nodes.

        Raises `HubError` where it does not fit, or is wrong.
        """
        named = choice.algorithm if isinstance(choice.algorithm, str) else id(choice.algorithm)
        # The order in which options are given changes nothing.
        options = tuple(sorted(choice.options.items()))
        key = call, named, options
        if key not in self._made:
            algorithm = self._algorithm(call, choice)
            self._made[key] = contents_of(algorithm, call.size_bytes)
        return self._made[key]

    def _algorithm(self, call: Call, choice: Choice) -> Algorithm:
        """The algorithm by name, or the one that is given; verified."""
        given = choice.algorithm
        if isinstance(given, str):
            is_file = not given.isidentifier() and bool({"/", "."} & set(given))
            if not is_file:
                return self._verified(self._synthesized(call, choice))
            given = read(given, registry=self._registry)
        stated, wanted = given.collective, call.collective
        fits = (stated.kind, stated.num_ranks, stated.root) == (
            wanted.kind, wanted.num_ranks, wanted.root,
        )  # fmt: skip
        if not fits:
            message = f"{given!r} is no {wanted.kind} of {wanted.num_ranks} ranks"
            raise InputError(message, cure="name another algorithm", code="algorithm-does-not-fit")
        return self._verified(given)

    def _synthesized(self, call: Call, choice: Choice) -> Algorithm:
        """What a synthesizer makes on the network of the group alone."""
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

    def _verified(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm, every output unit of which has its contributions exactly once."""
        report = verify(algorithm)
        if not report.ok:
            raise HubError(report.diagnostics)
        return algorithm


def full_bytes(program: Program, binding: Binding, operation: Operation) -> int:
    """Bytes of the full buffer: of all ranks, or of one where each has a buffer of its own.

    Of a reduction to a scalar that is all-reduced, those of the scalar.
    """
    kind, ranks = program.types[operation.name], binding.num_ranks
    if not operation.is_communication:
        return binding.bytes_of_rank(kind)
    # A block of the longest rank stands for each.
    if operation.kind is Kind.REDUCE_SCATTER:
        return binding.bytes_of_rank(kind) * ranks
    operand = program.types[operation.reads[0]]
    size = binding.bytes_of_rank(operand)
    if operation.kind is Kind.ALL_GATHER:
        return size * ranks
    if operation.kind is Kind.ALL_TO_ALL:
        # Of its block of one dimension a rank sends each a block of the other.
        length = binding.shape(kind.shape)[kind.layout.dimension]
        return size // length * -(-length // ranks) * ranks
    return size
