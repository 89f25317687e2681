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
from hub_core.model import JobCollective, Workload, parse_whole

_BACKWARD = 2


class DlrmSizes:
    """Sizes of one rank's part of the model."""

    def __init__(self, options: DlrmOptions) -> None:
        """Compute the sizes of one rank from the options, and store the options.

        - `samples`: batch / ranks
        - `bottom`: widths of the layers of the bottom MLP, from input to output: the option
          `bottom`, then the dimension of the embeddings.
        - `top`: widths of the top MLP: dimension + pairs, then the option `top`. With v = tables +
          1 vectors there are v * (v - 1) / 2 pairs.
        - `interaction_operations`: 2 x samples x v^2 x dimension, forward.
        - `interaction_bytes`: samples x (v x dimension + `top[0]`) x `element_bytes`.

        Raises `UsageError` (`degrees`) if tables, or else batch, is no multiple of the ranks. After
        that, raises `UsageError` (`widths`) unless the options `bottom` and `top` are integers from
        1 to 2^31 - 1, joined by `-`.
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
        """Bytes that one rank contributes to the all-to-all of embeddings.

        They are the embeddings of all samples of the batch from the tables of one rank, including
        those for its own samples.
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
        """Return the bytes of the parameters and the activations of an MLP with these layer widths.

        Parameters are weights and biases. Activations are those of all samples of the rank in every
        layer, the input included.
        """
        elements = self.parameters(widths) + self.samples * sum(widths)
        return elements * self.options.element_bytes


def generate(options: DlrmOptions) -> Workload:
    """Generate one training step as a workload in which all ranks have the same nodes.

    All ranks are one group; the MLPs are replicated, and the tables are divided among the ranks.
    Forward: look-up, all-to-all of the embeddings, interaction, top MLP; the bottom MLP starts
    after the look-up, concurrently with the all-to-all. Backward: top MLP, interaction, then the
    all-to-all of the gradients of embeddings and concurrently the bottom MLP; the update of the
    embeddings needs both. The gradients of an MLP are all-reduced after its backward pass; nothing
    waits for that. Work of MLPs and interaction is doubled backwards. The update has one operation
    per element looked up, and reads and writes these elements.

    Raises `UsageError` (`degrees`) if tables, or else the batch, is no multiple of the
    ranks. Then raises `UsageError` (`widths`) if the option `bottom` or `top` is not a
    list of layer widths: numbers from 1 to 2^31 - 1, joined by `-`.
    """
    sizes = DlrmSizes(options)
    program = RankProgram(("all",))
    kind = JobCollective.ALL_TO_ALL
    looked_up = options.pooling * sizes.exchanged_bytes
    additions = looked_up // options.element_bytes
    embeddings = program.compute("look-up", (), (), **work_of(options, additions, looked_up))
    exchanged = program.collective("embeddings", kind, sizes.exchanged_bytes, "all", [embeddings])
    bottom = _mlp(program, "forward bottom", sizes, sizes.bottom, (), [embeddings])
    work = work_of(options, sizes.interaction_operations, sizes.interaction_bytes)
    interacted = program.compute("forward interaction", [exchanged, bottom], (), **work)
    last = _mlp(program, "forward top", sizes, sizes.top, [interacted], ())

    top = _mlp(program, "backward top", sizes, sizes.top, [last], ())
    _reduce(program, "gradients top", options, sizes.parameters(sizes.top), top)
    touched = _BACKWARD * sizes.interaction_bytes
    work = work_of(options, _BACKWARD * sizes.interaction_operations, touched)
    interacted = program.compute("backward interaction", [top], (), **work)
    exchanged = program.collective(
        "gradients of embeddings", kind, sizes.exchanged_bytes, "all", [interacted]
    )
    bottom = _mlp(program, "backward bottom", sizes, sizes.bottom, [interacted], ())
    _reduce(program, "gradients bottom", options, sizes.parameters(sizes.bottom), bottom)
    # A row that is looked up is read, and written with its gradient taken away.
    work = work_of(options, additions, 2 * looked_up)
    program.compute("update", [exchanged], [bottom], **work)
    ranks = np.arange(options.ranks, dtype=np.int64)
    return job_of([RankPrograms(program, ranks)], {"all": ranks[None]}, "dlrm")


def _mlp(
    program: RankProgram,
    name: str,
    sizes: DlrmSizes,
    widths: list[int],
    after: list[int] | tuple[()],
    before: list[int] | tuple[()],
) -> int:
    """Add one computation of an MLP for the samples of a rank, and return its row.

    `widths`: of all its layers, from input to output; `after`: rows whose data it needs;
    `before`: rows after which it starts, without data. Operations and bytes are doubled if
    `name` begins with `backward`.
    """
    times = _BACKWARD if name.startswith("backward") else 1
    operations = times * sizes.operations(widths)
    touched = times * sizes.bytes(widths)
    return program.compute(name, after, before, **work_of(sizes.options, operations, touched))


def _reduce(program: RankProgram, name: str, options: DlrmOptions, count: int, after: int) -> None:
    size = count * options.element_bytes
    program.collective(name, JobCollective.ALL_REDUCE, size, "all", [after])


def _widths(text: str, name: str) -> list[int]:
    """Parse widths such as `13-512-256`; `name`: option, for the error.

    Raises `UsageError` (`widths`) unless all are integers from 1 to 2^31 - 1.
    """
    # Text that is no number counts as 0.
    widths = [parse_whole(word, (1 << 31) - 1) or 0 for word in text.split("-")]
    if not all(widths):
        message = f"{name} {text!r:.60} is not a list of widths"
        raise UsageError(message, cure=f"-O {name}=512-256", code="widths")
    return widths
