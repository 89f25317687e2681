"""Explain a call: NCCL's choice, the alternatives with their times, the effect of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collhub_machine_profiles.nccl_choice import (
    NcclChoice,
    SymmetricLaunch,
    choose_exchange,
    launch_of,
    list_symmetric_launches,
)
from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS, version_numbers
from collhub_machine_profiles.nccl_costs import (
    ALGORITHMS_OF,
    Alternative,
    Communicator,
    cost_us,
    is_last_resort,
    list_alternatives,
)

from collhub_nccl.tuner.rules import TunerRule
from hub_core.model import UsageError, parse_whole

_ALGORITHM_WORDS = {
    "tree": "tree", "ring": "ring", "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain", "nvls": "nvls", "nvlstree": "nvls_tree", "pat": "pat",
}  # fmt: skip
_NVLS = ("nvls", "nvls_tree")
_PROTOCOL_WORDS = {"ll": "ll", "ll128": "ll128", "simple": "simple"}
_COLLECTIVE_WORDS = {
    "broadcast": "broadcast", "reduce": "reduce", "allgather": "all-gather",
    "reducescatter": "reduce-scatter", "allreduce": "all-reduce",
}  # fmt: skip
_MAX_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
_MIN_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", *_MAX_CHANNELS, *_MIN_CHANNELS)
"""Variables whose effect is known."""


@dataclass(frozen=True, slots=True)
class NcclSettings:
    """Effect of environment variables.

    `excluded` gives the setting that excludes (collective, word), where a word is an algorithm or a
    protocol. `nvls_exclusion`: the setting that excludes nvls and nvls_tree in addition; "" for
    none. Channels are limited to `min_channels` and `max_channels`, 0 for no limit.
    """

    excluded: Mapping[tuple[str, str], str]
    min_channels: int = 0
    max_channels: int = 0
    nvls_exclusion: str = ""

    def apply(self, collective: str, alternatives: Sequence[Alternative]) -> list[Alternative]:
        """Return the alternatives in the same order, those that a setting excludes with a refusal.

        The first that applies gives the refusal `excluded by SETTING`: the setting that excludes
        the algorithm, `nvls_exclusion` for nvls and nvls_tree, the setting that excludes the
        protocol. An alternative that has a refusal keeps it.
        """
        applied = []
        for row in alternatives:
            setting = self.excluded.get((collective, row.algorithm), "")
            if row.algorithm in _NVLS:
                setting = setting or self.nvls_exclusion
            setting = setting or self.excluded.get((collective, row.protocol), "")
            if setting and not row.refusal:
                reason = f"excluded by {setting}"
                row = Alternative(row.algorithm, row.protocol, refusal=reason)
            applied.append(row)
        return applied

    def limit_channels(self, channels: int) -> int:
        """Return a number of channels within the minimum and the maximum of these settings.

        The number is first raised to `min_channels`, then lowered to `max_channels` unless that is
        0. So the maximum wins if it is below the minimum.
        """
        channels = max(channels, self.min_channels)
        return min(channels, self.max_channels) if self.max_channels else channels


NO_SETTINGS = NcclSettings({})


def parse_settings(assignments: Sequence[str]) -> NcclSettings:
    """Return the effect of assignments of NCCL's variables, such as `NCCL_ALGO=allreduce:^tree`.

    They are applied in order to `NO_SETTINGS`. Blanks around name and value are ignored.

    - NCCL_ALGO, NCCL_PROTO: for each collective that the value names (`_parse_lists`), `excluded`
      maps (collective, word) to the assignment for all words that are not allowed. A later value
      of the variable replaces an earlier one for these collectives only.
    - NCCL_NVLS_ENABLE: 0 excludes nvls and nvls_tree for all collectives, also if NCCL_ALGO names
      them. A later 1 or 2 ends this exclusion, but not those by NCCL_ALGO.
    - NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS set `max_channels`, NCCL_MIN_* `min_channels` (1 to 64).
      The last one counts. The minimum may exceed the maximum.

    Raises `UsageError` for other names, words and values, and for a text without `=`.
    """
    settings = NO_SETTINGS
    for text in assignments:
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in VARIABLES:
            message = f"--env {text!r:.60} is not one of the variables with a known effect"
            raise UsageError(message, cure=f"give NAME=VALUE, NAME of {', '.join(VARIABLES)}")
        if name in {"NCCL_ALGO", "NCCL_PROTO"}:
            words = _ALGORITHM_WORDS if name == "NCCL_ALGO" else _PROTOCOL_WORDS
            excluded = dict(settings.excluded)
            every = ALGORITHMS if name == "NCCL_ALGO" else PROTOCOLS
            for collective, allowed in _parse_lists(name, value, words).items():
                for word in every:
                    excluded.pop((collective, word), None)
                    if word not in allowed:
                        excluded[collective, word] = f"{name}={value}"
            settings = replace(settings, excluded=excluded)
        elif name == "NCCL_NVLS_ENABLE":
            if value not in {"0", "1", "2"}:
                raise UsageError(f"{name}: {value!r:.40} is not 0, 1 or 2", cure=f"write {name}=0")
            settings = replace(settings, nvls_exclusion=f"{name}=0" if value == "0" else "")
        else:
            count = parse_whole(value, 10**9 - 1)
            if count is None or not 1 <= count <= 64:
                raise UsageError(f"{name}: {value!r:.40} is not 1 to 64", cure=f"write {name}=16")
            if name in _MAX_CHANNELS:
                settings = replace(settings, max_channels=count)
            else:
                settings = replace(settings, min_channels=count)
    return settings


def _parse_lists(name: str, value: str, words: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the words that a setting such as NCCL_ALGO allows, by collective.

    Example for NCCL_ALGO: `allreduce:tree, NVLSTree` gives {"all-reduce": {"tree",
    "nvls_tree"}}.

    - Entries of `value` are separated by `;`. Each is `collective:word,word`.
    - The first entry may omit the collective and then applies to all five: broadcast, reduce,
      all-gather, reduce-scatter and all-reduce. These are also the keys of the result.
    - A list that starts with `^` allows all words except those listed.
    - A later entry replaces an earlier one for the same collective.
    - Collectives without an entry are not in the result.

    Case and blanks around collectives and words are ignored. `words` maps each known word, in
    lower case, to the word that is returned. `name`: name of the variable, for errors.

    Raises `UsageError` for an unknown or empty word, so also for an empty `value`. Raises it
    also for an unknown collective, and for a later entry without a collective.
    """
    allowed: dict[str, set[str]] = {}
    for position, entry in enumerate(value.split(";")):
        prefix, colon, listed = entry.rpartition(":")
        if not colon and position:
            message = f"{name}: {entry!r:.40} has no collective before it"
            raise UsageError(message, cure="write for example ring;allreduce:tree,nvls")
        if colon and prefix.strip().lower() not in _COLLECTIVE_WORDS:
            message = f"{name}: {prefix!r:.40} is not a collective"
            raise UsageError(message, cure=f"known: {', '.join(_COLLECTIVE_WORDS)}")
        is_inverted = listed.strip().startswith("^")
        chosen = set()
        for word in listed.strip().removeprefix("^").split(","):
            known = words.get(word.strip().lower())
            if known is None:
                message = f"{name}: {word.strip()!r:.40} is not a word of NCCL"
                raise UsageError(message, cure=f"known: {', '.join(words)}, and ^ to exclude")
            chosen.add(known)
        if is_inverted:
            chosen = set(words.values()) - chosen
        names = [_COLLECTIVE_WORDS[prefix.strip().lower()]] if colon else _COLLECTIVE_WORDS.values()
        allowed |= dict.fromkeys(names, chosen)
    return allowed


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
    choice: NcclChoice | None
    time_us: float | None
    decided_by: str
    alternatives: tuple[CostedAlternative, ...]
    symmetric: tuple[SymmetricLaunch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """Number of chunks that a channel sends for one rank's part, or for its part of a tree; 0
        if NCCL reports an error instead of a choice.
        """
        return count_chunks(self.request, self.choice) if self.choice else 0


def explain_call(request: CallRequest) -> ExplainedCall:
    """Return which algorithm NCCL uses for a call, what it costs, and which rule decides.

    - An all-to-all is a group of sends and receives. The choice has the algorithm `p2p`, the
      deciding rule is "sends and receives", and a note explains this. It has no time and no
      alternatives. Settings, tuner rules and registered buffers are ignored.
    - For the collectives of `ALGORITHMS_OF`, choice, time in us, deciding rule and notes are
      those of `_decide`. The choice is None if NCCL reports an error. The alternatives are all
      pairs of algorithm and protocol. Allowed ones are first, by time, with last resorts after
      the others. Refused ones, without a time, follow in NCCL's order.

    If the buffers are registered, the symmetric kernels are listed too, those that NCCL prefers
    first. If there are none, a note is added. They do not affect the choice.

    Raises `UsageError` for any other collective. Raises it also if the settings exclude all
    alternatives and NCCL is older than 2.24, unless a ring remains (see
    `_decide_without_alternatives`).
    """
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


def count_chunks(request: CallRequest, choice: NcclChoice) -> int:
    """Return how many chunks one channel sends for one part of the vector, at least 1.

    It is size / (parts x channels x bytes of a chunk), rounded up. The vector is divided
    into these parts; the first case that applies counts:

    - broadcast, reduce, or the algorithm `tree`: 1
    - `nvls` and `nvls_tree`: one per GPU of a node
    - any other algorithm: one per rank (blocks of a ring, peers of an all-to-all)
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
) -> tuple[NcclChoice | None, float | None, str, list[str]]:
    """Return NCCL's choice, its time in us, the deciding rule as text, and notes.

    `costed` is sorted by time. A row without a time is not allowed. The first case applies:

    1. No row is allowed, NCCL 2.24 or later: None, None, "refused" and a note.
    2. No row is allowed, earlier NCCL: the fastest ring, "fallback to the ring" and a note.
       Raises `UsageError` if no ring is allowed.
    3. No tuner: the first allowed row, "cost model". Settings that exclude rows are appended.
    4. A tuner rule fits an allowed row: this row, "tuner line N". Each rule before it that fits
       only a row that is not allowed adds a note.
    5. No tuner rule fits: the row and text of case 3, with "; channels of the tuner", and a note.

    The choice has the channels of the rule (case 4, if above 0), 1 (case 5), or NCCL's number
    within the limits of the settings. With settings or a tuner, the last note in cases 3 to 5
    gives NCCL's choice without them, and its time in us. It is omitted if NCCL makes no choice, if
    this choice has no time, or if all members of both choices are equal.
    """
    # The assignments in refusals of the form "excluded by NAME=VALUE", each once.
    refusals = {row.alternative.refusal for row in costed}
    prefix = "excluded by "
    assignments = sorted(text.removeprefix(prefix) for text in refusals if prefix in text)
    excluding = ", ".join(assignments)
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
        default = explain_call(replace(request, settings=NO_SETTINGS, rules=None))
        plain = default.choice
        if plain is not None and default.time_us is not None and plain != choice:
            notes.append(
                f"without these settings: {plain.algorithm} {plain.protocol} on {plain.channels}"
                f" channels, {default.time_us:.2f} us by NCCL's cost model"
            )
    return choice, decided.time_us, decided_by, notes


def _find_matching_rule(
    request: CallRequest, allowed: Sequence[CostedAlternative], notes: list[str]
) -> tuple[TunerRule, CostedAlternative] | None:
    """Return the first tuner rule that fits the call, with its alternative; None if no rule fits.

    A rule fits if its collective equals that of the call and the numbers of nodes and ranks and
    the size in bytes are in its ranges, both ends included. Other conditions of a rule
    (pipeline operations, registration) are not checked.

    A fitting rule whose pair of algorithm and protocol is not in `allowed` is skipped, and the
    search continues. For each skipped rule, a text is appended to `notes`. None also without
    rules.
    """
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
) -> tuple[NcclChoice | None, float | None, str, list[str]]:
    """Return choice, time in us, deciding rule and notes if no alternative is allowed.

    `excluding`: settings that exclude alternatives as text, for notes and the error.

    - NCCL 2.24 or later reports an error: the result is None, None, "refused" and one note. An
      unknown version counts as the default version.
    - Earlier releases fall back to the ring. Exclusions of the algorithm ring are ignored;
      excluded protocols stay excluded. The choice is the ring with the lowest time, with its
      time, the rule "fallback to the ring" and one note. The limits of channels in the settings
      apply, because NCCL limits the channels of the communicator.

    Raises `UsageError` if an earlier release has no allowed ring.
    """
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
    if not rings:
        message = (
            f"{excluding} leaves no ring for {request.collective} on this machine; what NCCL before"
            " 2.24 executes then is not known"
        )
        raise UsageError(message, cure="allow another protocol")
    best = rings[0]
    choice = launch_of(
        request.communicator, request.collective, best.alternative, request.size_bytes
    )
    choice = replace(choice, channels=request.settings.limit_channels(choice.channels))
    note = f"{excluding} leaves no algorithm: NCCL before 2.24 falls back to the ring"
    return choice, best.time_us, "fallback to the ring", [note]
