"""A training step of a deep-learning recommendation model.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems" (arXiv 1906.00091), section 3: tables are cut among the ranks, the MLPs are data-parallel;
an all-to-all turns the embeddings of all samples from own tables into those of own samples from all
tables, and another one their gradients back. The interactions are the dot products of any two of
the embeddings and the output of the bottom MLP. Left out: the optimizer of the MLPs.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from collhub_templates import RankProgram, RankPrograms, job_of
from collhub_templates.roofline import work_of

from collhub_models.plugin import DlrmOptions
from hub_core import UsageError
from hub_core.model import JobCollective, Workload

_BACKWARD = 2


class DlrmSizes:
    """Sizes of one rank's part of the model."""

    def __init__(self, options: DlrmOptions) -> None:
        """Compute the sizes for options, per rank.

        `samples`: batch / ranks. `bottom` and `top`: widths of the layers, from input to output;
        the bottom MLP ends with the dimension of the embeddings, and the top one begins with it
        plus the number of pairs of tables + 1 vectors. Raises `UsageError` if tables or batch are
        no multiple of the ranks, or widths are not numbers from 1 to 2^31 - 1.
        """
        for name, value in (("tables", options.tables), ("batch", options.batch)):
            if value % options.ranks:
                message = f"{name} {value} is no multiple of ranks {options.ranks}"
                raise UsageError(message, cure=f"change -O {name}", code="degrees")
        self.options = options
        self.samples = options.batch // options.ranks
        # The dense features are one vector beside the embeddings.
        vectors = options.tables + 1
        pairs = vectors * (vectors - 1) // 2
        self.bottom = [*_widths(options.bottom, "bottom"), options.dimension]
        self.top = [options.dimension + pairs, *_widths(options.top, "top")]
        self.interaction_operations = 2 * self.samples * vectors**2 * options.dimension
        self.interaction_bytes = (
            options.element_bytes * self.samples * (vectors * options.dimension + self.top[0])
        )

    @property
    def exchanged_bytes(self) -> int:
        """Number of bytes of one rank's part of the all-to-all of embeddings.

        These are the embeddings of all samples of the batch, over all ranks, from the tables of one
        rank, including those for the rank's own samples.
        """
        options = self.options
        # Each rank has its tables whole, and looks up for all samples.
        embeddings = options.batch * options.tables // options.ranks
        elements = embeddings * options.dimension
        return elements * options.element_bytes

    def parameters(self, widths: list[int]) -> int:
        """Weights and biases of an MLP."""
        return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))

    def operations(self, widths: list[int]) -> int:
        """Of an MLP forward, for the samples of a rank: two a weight and sample."""
        return 2 * self.samples * sum(inputs * outputs for inputs, outputs in pairwise(widths))

    def bytes(self, widths: list[int]) -> int:
        """Of the weights and the activations of an MLP."""
        elements = self.parameters(widths) + self.samples * sum(widths)
        return elements * self.options.element_bytes


def generate(options: DlrmOptions) -> Workload:
    """Generate one training step as a workload in which all ranks have the same nodes.

    Raises `UsageError` for invalid options.
    """
    sizes = DlrmSizes(options)
    program = RankProgram(("all",))
    rows = _forward(program, options, sizes)
    _backward(program, options, sizes, rows)
    ranks = np.arange(options.ranks, dtype=np.int64)
    return job_of([RankPrograms(program, ranks)], {"all": ranks[None]}, "dlrm")


def _forward(program: RankProgram, options: DlrmOptions, sizes: DlrmSizes) -> int:
    """Add look-ups, whose exchange overlaps with the bottom MLP, interaction and top MLP.

    Returns the last row. The bottom MLP is ordered behind the look-up, the interaction depends on
    it and on the exchange (an all-to-all).
    """
    looked_up = options.pooling * sizes.exchanged_bytes
    additions = looked_up // options.element_bytes
    embeddings = program.compute("look-up", (), (), **work_of(options, additions, looked_up))
    kind = JobCollective.ALL_TO_ALL
    exchanged = program.collective("embeddings", kind, sizes.exchanged_bytes, "all", [embeddings])
    bottom = _mlp(program, "forward bottom", sizes, sizes.bottom, (), [embeddings])
    work = work_of(options, sizes.interaction_operations, sizes.interaction_bytes)
    interacted = program.compute("forward interaction", [exchanged, bottom], (), **work)
    return _mlp(program, "forward top", sizes, sizes.top, [interacted], ())


def _backward(program: RankProgram, options: DlrmOptions, sizes: DlrmSizes, last: int) -> None:
    """Add gradients and the update; each reduction overlaps with the following computation.

    The order is: top MLP behind `last`, interaction, then the bottom MLP; the gradients of the
    embeddings are exchanged by an all-to-all beside the bottom MLP. The update of the looked up
    rows depends on the exchange, and is ordered behind the bottom MLP. Backward work is twice the
    forward work. The reductions of gradients have no successor.
    """
    top = _mlp(program, "backward top", sizes, sizes.top, [last], ())
    _reduce(program, "gradients top", options, sizes.parameters(sizes.top), top)
    touched = _BACKWARD * sizes.interaction_bytes
    work = work_of(options, _BACKWARD * sizes.interaction_operations, touched)
    interacted = program.compute("backward interaction", [top], (), **work)
    kind = JobCollective.ALL_TO_ALL
    exchanged = program.collective(
        "gradients of embeddings", kind, sizes.exchanged_bytes, "all", [interacted]
    )
    bottom = _mlp(program, "backward bottom", sizes, sizes.bottom, [interacted], ())
    _reduce(program, "gradients bottom", options, sizes.parameters(sizes.bottom), bottom)
    # A row that is looked up is read, and written with its gradient taken away.
    updated = options.pooling * sizes.exchanged_bytes
    operations = updated // options.element_bytes
    work = work_of(options, operations, 2 * updated)
    program.compute("update", [exchanged], [bottom], **work)


def _mlp(
    program: RankProgram,
    name: str,
    sizes: DlrmSizes,
    widths: list[int],
    after: list[int] | tuple[()],
    before: list[int] | tuple[()],
) -> int:
    """Work of layers that are as wide as stated; returns its node."""
    times = _BACKWARD if name.startswith("backward") else 1
    operations = times * sizes.operations(widths)
    touched = times * sizes.bytes(widths)
    return program.compute(name, after, before, **work_of(sizes.options, operations, touched))


def _reduce(program: RankProgram, name: str, options: DlrmOptions, count: int, after: int) -> None:
    size = count * options.element_bytes
    program.collective(name, JobCollective.ALL_REDUCE, size, "all", [after])


def _widths(text: str, name: str) -> list[int]:
    """Parse numbers such as `13-512-256`. Raises `UsageError`."""
    words = text.split("-")
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 1 << 31 for word in words):
        message = f"{name} {text!r:.60} is not a list of widths"
        raise UsageError(message, cure=f"-O {name}=512-256", code="widths")
    return [int(word) for word in words]
