"""The offer `AlgorithmPass`: a model becomes another one, run by `collhub transform`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.plugin_api.check import Subject
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass changed, one line each."""

    changes: tuple[str, ...]


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
    Executor | None` and `progress(fraction, what)` behind its options.
    """

    name: str
    description: str
    run: Reference
    options: type = NoOptions
    subject: Subject = Subject.ALGORITHM
    moves: Reference = ""
    searches: bool = False
