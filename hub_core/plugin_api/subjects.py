"""Checks and passes: offers that examine or change an algorithm, a workload or a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic
from hub_core.plugin_api.formats import Source
from hub_core.plugin_api.options import NoOptions, OptionType, Reference, option
from hub_core.plugin_api.synthesis import SearchCut

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology


class Subject(StrEnum):
    """Subject of a check: it determines the fields of the request and the command that runs it.

    ALGORITHM: `algorithm`, by `verify --check NAME`. CERTIFICATE: `algorithm` with a certificate,
    and `topology` if the user names one, by `verify --certificate`. RUNTIME: `source`, an unparsed
    file, by `verify --runtime NAME[@VERSION]`; NAME is the name of the check. WORKLOAD: `workload`;
    `verify` runs all such checks. TOPOLOGY: `topology`, by `topology check`. INSTALLATION:
    `environment`, by `doctor`; a check that declares the BOOL option `warm` prepares the first use
    if it is set, for `doctor --warm`.
    """

    ALGORITHM = "algorithm"
    CERTIFICATE = "certificate"
    RUNTIME = "runtime"
    WORKLOAD = "workload"
    TOPOLOGY = "topology"
    INSTALLATION = "installation"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The subject of a check.

    `name`: name of the subject in messages. `environment`: variables of the process. `is_thorough`:
    the check may simulate the subject; set by `verify`, but not by commands that check an input
    before their own work.
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
    """Options of an installation check that can prepare the first use, such as compile kernels."""

    warm: bool = option(
        OptionType.BOOL, False, "prepare the first use now, as `collhub doctor --warm` does"
    )


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One examined item: whether it is in order, details, and a cure."""

    subject: str
    is_ok: bool
    details: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class LoadableCall:
    """Calls for which a runtime uses a file; `collective`: its name in the runtime.

    Sizes are in bytes, both limits inclusive (None: no limit). `conditions`: further conditions on
    the call, as text.
    """

    collective: str
    num_ranks: int
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of a check.

    `ok`: whether the subject passes. `verdict`: the result in a few words. `diagnostics`: defects,
    first causes first, and warnings. `lines`: examined items, for subjects of several parts.
    `calls`: only for RUNTIME. `facts`: computed values by name, for JSON. `details`: the same as
    text. `is_applicable`: False if the check does not know this kind of subject, for example an
    algorithm without a certificate, or a file of a format that a runtime does not read.
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
    """Consecutive versions of a runtime that treat the files of a RUNTIME check equally.

    `first`, `last`: numbers such as `7.12`, both inclusive with all their patch releases; `last`
    None: all later versions. `uses_files`: False if the runtime ignores such files; `reason`
    explains why. `source`: URL or document with this information. `date`: when it was read, as
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
    """`run(request: CheckRequest, options) -> CheckReport`; defects are reported, not raised.

    Only for RUNTIME: `versions` of the runtime in ascending order, for `verify --runtime
    NAME@VERSION`; `versioned_by`: the product to which these numbers belong. The check applies the
    rules of the versions that use such files. `reads`: names of the formats of files that the
    runtime reads; a file that is recognized as another format gets the verdict `not applicable`
    without the check. Empty: the check gets every file.
    """

    name: str
    subject: Subject
    description: str
    run: Reference
    options: type = NoOptions
    versions: tuple[RuntimeVersions, ...] = ()
    versioned_by: str = ""
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassReport:
    """Changes of a pass, one line each, and parts of a search that a limit ended."""

    changes: tuple[str, ...]
    cuts: tuple[SearchCut, ...] = ()


@dataclass(frozen=True, slots=True)
class PassMove:
    """A legal application of a pass: its options as for `-O`, and named effects."""

    options: Mapping[str, str]
    effect: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AlgorithmPass:
    """`run(algorithm: Algorithm, options) -> tuple[Algorithm, PassReport]`.

    With the subject WORKLOAD, it takes and returns a `Workload`. A model that cannot be transformed
    raises `InputError` or `UsageError`; the result after the last pass is verified. `moves(model,
    name) -> Sequence[PassMove]`: legal applications of the pass `name`, for `--list`. `searches`:
    the pass searches for the best sequence of passes, with options `topology` and `sizes`; `run`
    then gets `workers: Executor | None`, `progress(fraction, label)` and `budget: SearchBudget`
    after its options.
    """

    name: str
    description: str
    run: Reference
    options: type = NoOptions
    subject: Subject = Subject.ALGORITHM
    moves: Reference = ""
    searches: bool = False
