"""Checks and passes: offers that examine or change an algorithm, a workload or a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic
from hub_core.plugin_api.options import NoOptions, OptionType, Reference, option
from hub_core.plugin_api.search_budget import SearchCut
from hub_core.plugin_api.sources import Source

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology


class Subject(StrEnum):
    """What a check looks at, which fields of its request are set, and which command asks for it.

    ALGORITHM: `algorithm`, by `verify --check NAME`. CERTIFICATE: `algorithm` that carries one, and
    `topology` where the user names one, by `verify --certificate`. RUNTIME: `source`, a file as it
    stands, by `verify --runtime NAME[@VERSION]`, NAME being that of the check. WORKLOAD:
    `workload`, every such check by `verify` of one. TOPOLOGY: `topology`, by `topology check`.
    INSTALLATION: `environment`, by `doctor`; a check that declares the BOOL option `warm` does with
    it, for `doctor --warm`, what the first use would wait for.
    """

    ALGORITHM = "algorithm"
    CERTIFICATE = "certificate"
    RUNTIME = "runtime"
    WORKLOAD = "workload"
    TOPOLOGY = "topology"
    INSTALLATION = "installation"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The subject of a check; `name`: what messages call it, `environment`: of the process.

    `is_thorough`: `verify` asks for the check, so that it may simulate the subject; other commands
    ask for it before they begin their own work.
    """

    name: str = ""
    algorithm: Algorithm | None = None
    topology: Topology | None = None
    source: Source | None = None
    workload: Workload | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_thorough: bool = False


@dataclass(frozen=True, slots=True)
class WarmOptions:
    """Options of a check of the installation that can do beforehand what a first use waits for."""

    warm: bool = option(
        OptionType.BOOL, False, "do it now, as `collhub doctor --warm` asks for, and keep it"
    )


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One thing that was looked at, whether it is as it should be, the details, and a cure."""

    subject: str
    is_ok: bool
    details: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class LoadableCall:
    """Calls for which a runtime uses a file, with its name of the collective.

    Sizes are in bytes, both ends included (None: no limit). `conditions`: what else must hold.
    """

    collective: str
    num_ranks: int
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The judgement of a check.

    `ok`: whether the subject passes. `verdict`: the judgement in a few words. `diagnostics`: what
    is wrong, first causes first, and what to beware of. `lines`: what was looked at, for subjects
    of several parts. `calls`: RUNTIME only. `facts`: what was computed on the way, by name, for
    JSON; `details`: the same for people. `is_applicable`: False where the check does not know the
    kind of subject, such as an algorithm without a certificate.
    """

    ok: bool
    verdict: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    lines: tuple[CheckLine, ...] = ()
    calls: tuple[LoadableCall, ...] = ()
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    is_applicable: bool = True


@dataclass(frozen=True, slots=True)
class RuntimeVersions:
    """Consecutive versions of a runtime that treat the files of a RUNTIME check alike.

    `first`, `last`: numbers such as `7.12`, both ends with all their patch releases included;
    `last` None: all later versions. `uses_files`: False where the runtime ignores such files, for
    the `reason`. `source`: URL or document from which this is known, `date`: of the reading, as
    2026-11.
    """

    first: str
    last: str | None
    uses_files: bool
    source: str
    date: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`run(request: CheckRequest, options) -> CheckReport`; what is wrong is not raised.

    RUNTIME only: `versions` of the runtime in ascending order, for `verify --runtime NAME@VERSION`;
    `versioned_by`: the product that these numbers belong to. The check judges by the rules of the
    versions that use such files.
    """

    name: str
    subject: Subject
    description: str
    run: Reference
    options: type = NoOptions
    versions: tuple[RuntimeVersions, ...] = ()
    versioned_by: str = ""


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
