"""The offer `AlgorithmPass`: a model becomes another one, run by `collhub transform`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.plugin_api.check import Subject
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference
from hub_core.plugin_api.search_budget import SearchCut


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass changed, one line each, and parts of a search that a limit has ended."""

    changes: tuple[str, ...]
    cuts: tuple[SearchCut, ...] = ()


@dataclass(frozen=True, slots=True)
class PassMove:
    """A legal application of a pass: its options as `-O` takes them, and named effects."""

    options: Mapping[str, str]
    effect: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AlgorithmPass:
    """`run(algorithm: Algorithm, options) -> tuple[Algorithm, PassReport]`.

    With the subject WORKLOAD, it takes and returns a `Workload`. What cannot be transformed is
    refused with an `InputError` or `UsageError`; the last result is verified. `moves(model, name)
    -> Sequence[PassMove]`: what the pass of this name can do, for `--list`. `searches`: for the
    best sequence of passes, with options `topology` and `sizes`; `run` may be given `workers:
    Executor | None`, `progress(fraction, what)` and `budget: SearchBudget` behind its options.
    """

    name: str
    description: str
    run: Reference
    options: type = NoOptions
    subject: Subject = Subject.ALGORITHM
    moves: Reference = ""
    searches: bool = False
