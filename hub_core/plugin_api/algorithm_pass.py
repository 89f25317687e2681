"""The offer `AlgorithmPass`: a model becomes another one, run by `collhub transform`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.check import Subject
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass changed, one line each."""

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlgorithmPass:
    """`run(algorithm: Algorithm, options) -> tuple[Algorithm, PassReport]`.

    With the subject WORKLOAD, `run(workload: Workload, options) -> tuple[Workload, PassReport]`.
    What cannot be transformed is refused with an `InputError` or `UsageError` that names the cause.
    The result of the last pass is verified like every input.
    """

    name: str
    description: str
    run: Reference
    options: type = NoOptions
    subject: Subject = Subject.ALGORITHM
