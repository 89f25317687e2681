"""The enumerations of the model and the traits of the collectives, without numpy.

To add a collective: its name and its row of `_TRAITS` here, its minimum traffic in
`network/routes.py`, its name in `schemas/` (algorithm, certificate, report-inspect). The other
code of the core uses the traits; `Collective` derives buffers and contributions from them.
Uneven kinds (all-to-all-v, all-gather-v, reduce-scatter-v) have a table of counts in addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class CollectiveKind(StrEnum):
    """The standard collectives, the uneven ones (parts of different sizes, given by a table of
    counts), and `custom` for a collective defined by a table of contents.
    """

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL_V = "all-to-all-v"
    ALL_GATHER_V = "all-gather-v"
    REDUCE_SCATTER_V = "reduce-scatter-v"
    CUSTOM = "custom"

    @property
    def traits(self) -> CollectiveTraits:
        """The properties of this collective."""
        return _TRAITS[self]


class ReduceOp(StrEnum):
    """Reduction operators; each is commutative and associative."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class Buffer(IntEnum):
    """The buffers of a rank. UNKNOWN: not given by the source, or an unused operand of a step."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    UNKNOWN = 3


class StepKind(IntEnum):
    """Kinds of steps. COMPUTE is opaque work between messages."""

    # The numbers are stored in step tables and Chakra files.
    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4
    COMPUTE = 5


class NodeKind(IntEnum):
    """Kinds of nodes of a workload. A MARKER takes no time."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    LOAD = 4
    STORE = 5
    MARKER = 6


class JobCollective(IntEnum):
    """Collectives of workloads, with the numbers of the Chakra schema (`CollectiveCommType`).

    Their bytes are those of the input buffer of a rank; for a broadcast or scatter, of the root.
    UNKNOWN: a collective whose kind the source does not state, and nodes that are no collectives.
    """

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9
    UNKNOWN = -1

    @property
    def kind(self) -> CollectiveKind | None:
        """The corresponding kind of algorithms; None for UNKNOWN and for a barrier, which moves no
        data.
        """
        return _KIND_OF_JOB.get(self)

    @property
    def label(self) -> str:
        """The name as in reports and documents, such as `all-reduce`."""
        return self.name.lower().replace("_", "-")

    @property
    def noun(self) -> str:
        """The name in a sentence: the label, and `unknown collective` for UNKNOWN."""
        return "unknown collective" if self is JobCollective.UNKNOWN else self.label


# Kinds of steps that read the region `src`, and those that write the region `dst`.
READING = (StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)
WRITING = (StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE)


@dataclass(frozen=True, slots=True)
class CollectiveTraits:
    """Properties of a collective, from which buffer sizes and contributions follow.

    `reduces`: contributions of several ranks are combined. `from_root`: only the root's INPUT holds
    data before. `to_root`: only the root's OUTPUT matters after. `split_by_source`: the full buffer
    has one part for every rank from which data comes. `split_by_target`: one for every rank to
    which data goes. `is_uneven`: the parts have different sizes, given by a table of counts.
    """

    reduces: bool = False
    from_root: bool = False
    to_root: bool = False
    split_by_source: bool = False
    split_by_target: bool = False
    is_uneven: bool = False

    @property
    def is_rooted(self) -> bool:
        """Whether one rank is the root."""
        return self.from_root or self.to_root

    @property
    def is_split(self) -> bool:
        """Whether the full buffer has one part for every rank."""
        return self.split_by_source or self.split_by_target

    def parts(self, num_ranks: int) -> int:
        """Return the number of equal parts of the full buffer.

        `num_ranks` if it is split, 1 if it is not or if its parts have different sizes.
        """
        return num_ranks if self.is_split and not self.is_uneven else 1

    @property
    def has_counts_per_pair(self) -> bool:
        """Whether an uneven collective has a count for every ordered pair, else one per rank."""
        return self.split_by_source and self.split_by_target

    @property
    def input_is_part(self) -> bool:
        """Whether INPUT of a rank is its part of the full buffer, as in all-gather."""
        return self.split_by_source and not self.split_by_target

    @property
    def output_is_part(self) -> bool:
        """Whether OUTPUT of a rank is its part of the full buffer, as in reduce-scatter."""
        return self.split_by_target and not self.split_by_source


# All differences between the collectives. Help texts list them in this order.
_TRAITS = {
    CollectiveKind.ALL_GATHER: CollectiveTraits(split_by_source=True),
    CollectiveKind.REDUCE_SCATTER: CollectiveTraits(reduces=True, split_by_target=True),
    CollectiveKind.ALL_REDUCE: CollectiveTraits(reduces=True),
    CollectiveKind.BROADCAST: CollectiveTraits(from_root=True),
    CollectiveKind.REDUCE: CollectiveTraits(reduces=True, to_root=True),
    CollectiveKind.GATHER: CollectiveTraits(to_root=True, split_by_source=True),
    CollectiveKind.SCATTER: CollectiveTraits(from_root=True, split_by_target=True),
    CollectiveKind.ALL_TO_ALL: CollectiveTraits(split_by_source=True, split_by_target=True),
    CollectiveKind.ALL_GATHER_V: CollectiveTraits(split_by_source=True, is_uneven=True),
    CollectiveKind.REDUCE_SCATTER_V: CollectiveTraits(
        reduces=True, split_by_target=True, is_uneven=True
    ),
    CollectiveKind.ALL_TO_ALL_V: CollectiveTraits(
        split_by_source=True, split_by_target=True, is_uneven=True
    ),
    # Its contract defines everything, including whether it reduces.
    CollectiveKind.CUSTOM: CollectiveTraits(),
}

_KIND_OF_JOB: dict[JobCollective, CollectiveKind] = {
    job: CollectiveKind(job.label.removesuffix("-block"))
    for job in JobCollective
    if job not in (JobCollective.BARRIER, JobCollective.UNKNOWN)
}

COUNTS_HELP = (
    "a CSV or JSON file, uniform, shift:1, zipf:1.2[,seed=1], experts:64[,top=8,tokens=4096]"
)
"""Forms of the option `--counts`, for help texts and errors."""

# All kinds without a table, those with a table of counts, and sets of kinds for membership tests.
UNEVEN_KINDS = tuple(kind for kind in _TRAITS if kind.traits.is_uneven)
STANDARD_KINDS = tuple(
    kind for kind in _TRAITS if kind not in (*UNEVEN_KINDS, CollectiveKind.CUSTOM)
)
ROOTED = frozenset(kind for kind in CollectiveKind if kind.traits.is_rooted)
REDUCING = frozenset(kind for kind in CollectiveKind if kind.traits.reduces)
_ALIASES = {
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "all2all": CollectiveKind.ALL_TO_ALL,
    "bcast": CollectiveKind.BROADCAST,
}


def standard_kind(name: str) -> CollectiveKind | None:
    """Return the standard collective with this name in any usual spelling, or None.

    Upper case, all characters but letters and digits, and a final `perf` are ignored, so that
    `all-reduce`, `allreduce`, `AllReduce` and `all_reduce_perf` are equivalent. `alltoall`,
    `all2all` and `bcast` are accepted too. `custom` and uneven collectives such as
    `all-to-all-v` give None.
    """
    plain = "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("perf")
    known = {str(kind).replace("-", ""): kind for kind in STANDARD_KINDS} | _ALIASES
    return known.get(plain)


def uneven_kind(name: str) -> CollectiveKind | None:
    """Return the uneven collective with this name in any usual spelling, or None.

    Upper case and all characters but letters and digits are ignored, so that `all-to-all-v`,
    `all_to_all_v`, `alltoallv` and `AllToAllV` are equivalent. Every other name, also that of a
    standard collective, gives None.
    """
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    return {str(kind).replace("-", ""): kind for kind in UNEVEN_KINDS}.get(plain)
