"""Explain a call: NCCL's choice, the alternatives with their times, the effect of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collhub_machine_profiles.nccl_choice import (
    Choice,
    SymmetricLaunch,
    choose_exchange,
    launch_of,
    list_symmetric_launches,
)
from collhub_machine_profiles.nccl_constants import version_numbers
from collhub_machine_profiles.nccl_costs import (
    ALGORITHMS_OF,
    Alternative,
    Communicator,
    cost_us,
    is_last_resort,
    list_alternatives,
)

from collhub_nccl.explain.settings import NO_SETTINGS, NcclSettings
from collhub_nccl.tuner.rules import TunerRule
from hub_core.model import UsageError

COLLECTIVES = (*ALGORITHMS_OF, "all-to-all")
_REFUSING_VERSION = (24, 0)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call to explain; `size_bytes` is the full vector, `rules` are those of a tuner file.

    `rules` is None without a tuner. `is_registered`: the buffers are symmetric windows.
    """

    communicator: Communicator
    collective: str
    size_bytes: int
    dtype: str = ""
    settings: NcclSettings = NO_SETTINGS
    rules: Sequence[TunerRule] | None = None
    is_registered: bool = False


@dataclass(frozen=True, slots=True)
class CostedAlternative:
    """An alternative with NCCL's time for the call, None if NCCL does not use it."""

    alternative: Alternative
    time_us: float | None


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """NCCL's execution of a call.

    `choice` is None if NCCL reports an error instead. `time_us` is the time by NCCL's cost model,
    None where it has none: all-to-all. `decided_by` names the deciding rule. `alternatives` are
    sorted: allowed ones by time, then the others in the order of NCCL's numbers.
    """

    request: CallRequest
    choice: Choice | None
    time_us: float | None
    decided_by: str
    alternatives: tuple[CostedAlternative, ...]
    symmetric: tuple[SymmetricLaunch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """Number of chunks that a channel sends for one rank's part, or for its part of a tree."""
        return count_chunks(self.request, self.choice) if self.choice else 0


def explain_call(request: CallRequest) -> ExplainedCall:
    """Explain a call. Raises `UsageError` for a collective that NCCL's cost model lacks."""
    communicator, collective = request.communicator, request.collective
    if collective == "all-to-all":
        exchange = choose_exchange(communicator, request.size_bytes)
        note = "all-to-all is a group of sends and receives: NCCL has no alternatives and no model"
        return ExplainedCall(request, exchange, None, "sends and receives", (), notes=(note,))
    if collective not in ALGORITHMS_OF:
        message = f"NCCL's cost model has no {collective}"
        raise UsageError(message, cure=f"give one of {', '.join(COLLECTIVES)}")
    costed = _cost_alternatives(request)
    choice, time_us, decided_by, notes = _decide(request, costed)
    symmetric: tuple[SymmetricLaunch, ...] = ()
    if request.is_registered:
        symmetric = tuple(list_symmetric_launches(communicator, collective, request.size_bytes))
        if not symmetric:
            notes.append("no symmetric kernels: they need one node, Hopper or later, NCCL 2.27")
    return ExplainedCall(
        request, choice, time_us, decided_by, tuple(costed), symmetric, tuple(notes)
    )


def count_chunks(request: CallRequest, choice: Choice) -> int:
    """Count the chunks that a channel sends for one part of the vector.

    A part is a rank's block of a ring, a head's block of NVLS, the vector of a tree, or the data
    for one peer of an all-to-all.
    """
    communicator = request.communicator
    parts = {
        "tree": 1, "nvls": communicator.ranks_per_node, "nvls_tree": communicator.ranks_per_node
    }.get(choice.algorithm, communicator.ranks)  # fmt: skip
    if request.collective in {"broadcast", "reduce"}:
        parts = 1
    return max(1, -(-request.size_bytes // (parts * choice.channels * choice.chunk_bytes)))


def _cost_alternatives(request: CallRequest) -> list[CostedAlternative]:
    communicator, collective = request.communicator, request.collective
    listed = list_alternatives(communicator, collective, request.dtype)
    applied = request.settings.apply(collective, listed)
    costed = [
        CostedAlternative(
            row,
            None if row.refusal else cost_us(communicator, collective, row, request.size_bytes),
        )
        for row in applied
    ]

    def order(row: CostedAlternative) -> tuple[bool, bool, float]:
        is_last = is_last_resort(communicator, row.alternative.algorithm, request.dtype)
        return row.time_us is None, is_last, row.time_us or 0.0

    return sorted(costed, key=order)


def _decide(
    request: CallRequest, costed: Sequence[CostedAlternative]
) -> tuple[Choice | None, float | None, str, list[str]]:
    """Return choice, time, deciding rule and notes."""
    excluding = _excluding_settings(costed)
    allowed = [row for row in costed if row.time_us is not None]
    if not allowed:
        return _decide_without_alternatives(request, excluding)
    notes: list[str] = []
    decided, channels = allowed[0], 0
    decided_by = f"cost model, {excluding}" if excluding else "cost model"
    if request.rules is not None:
        matching = _find_matching_rule(request, allowed, notes)
        if matching is None:
            notes.append("no tuner line matches: the example tuner leaves one channel")
            decided_by, channels = f"{decided_by}; channels of the tuner", 1
        else:
            rule, decided = matching
            decided_by, channels = f"tuner line {rule.line}", rule.channels
    choice = launch_of(
        request.communicator, request.collective, decided.alternative, request.size_bytes
    )
    choice = replace(choice, channels=channels or request.settings.limit_channels(choice.channels))
    if request.rules is not None or request.settings != NO_SETTINGS:
        notes += _describe_default(request, choice)
    return choice, decided.time_us, decided_by, notes


def _excluding_settings(costed: Sequence[CostedAlternative]) -> str:
    """Return the settings that exclude alternatives, separated by commas."""
    refusals = {row.alternative.refusal for row in costed}
    prefix = "excluded by "
    return ", ".join(sorted(row.removeprefix(prefix) for row in refusals if prefix in row))


def _describe_default(request: CallRequest, choice: Choice) -> list[str]:
    """Return a note on NCCL's choice without settings and tuner, if it differs from `choice`."""
    default = explain_call(replace(request, settings=NO_SETTINGS, rules=None))
    plain = default.choice
    if plain is None or default.time_us is None or plain == choice:
        return []
    return [
        f"without these settings: {plain.algorithm} {plain.protocol} on {plain.channels} channels,"
        f" {default.time_us:.2f} us by NCCL's cost model"
    ]


def _find_matching_rule(
    request: CallRequest, allowed: Sequence[CostedAlternative], notes: list[str]
) -> tuple[TunerRule, CostedAlternative] | None:
    """Return the first matching rule that NCCL allows, with its alternative; note skipped ones."""
    communicator = request.communicator
    for rule in request.rules or ():
        is_of_call = str(rule.kind) == request.collective and rule.fits(
            communicator.nodes, communicator.ranks
        )
        if not is_of_call or not rule.sizes[0] <= request.size_bytes <= rule.sizes[1]:
            continue
        for row in allowed:
            named = row.alternative
            if (named.algorithm, named.protocol) == (rule.algorithm, rule.protocol):
                return rule, row
        name = f"{rule.algorithm} {rule.protocol}"
        notes.append(f"tuner line {rule.line} is skipped: NCCL does not allow {name} here")
    return None


def _decide_without_alternatives(
    request: CallRequest, excluding: str
) -> tuple[Choice | None, float | None, str, list[str]]:
    """Releases before 2.24 fall back to the ring; later ones report an error."""
    if version_numbers(request.communicator.version) >= _REFUSING_VERSION:
        note = f"NCCL reports an error: {excluding} leaves no algorithm for {request.collective}"
        return None, None, "refused", [note]
    excluded = {key: by for key, by in request.settings.excluded.items() if key[1] != "ring"}
    settings = replace(request.settings, excluded=excluded)
    rings = [
        row
        for row in _cost_alternatives(replace(request, settings=settings))
        if row.time_us is not None and row.alternative.algorithm == "ring"
    ]
    best = rings[0]
    choice = launch_of(
        request.communicator, request.collective, best.alternative, request.size_bytes
    )
    note = f"{excluding} leaves no algorithm: NCCL before 2.24 falls back to the ring"
    return choice, best.time_us, "fallback to the ring", [note]
