"""Write selections as files of NCCL's example tuner, of RCCL's tuner and of NCCLX.

The first rule that matches a call wins. Without a match RCCL and NCCLX choose themselves. NCCL's
example tuner leaves a single channel (`plugins/tuner/example/plugin.c` of NCCL 2.27 to 2.30 sets it
before it looks for a line, and `src/enqueue.cc` applies every number but 0), so its file ends with
lines for all collectives, sizes and communicators.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collhub_machine_profiles.nccl_choice import find_choice_windows, launch_of
from collhub_machine_profiles.nccl_costs import Communicator, list_alternatives

from collhub_nccl.options import NcclxTunerOptions, RcclTunerOptions, TunerOptions
from collhub_nccl.tuner.ncclx import CSV_FILE, JSON_FILE
from collhub_nccl.tuner.read import ANY, FILE, OWN_CHANNELS, RCCL_FILE, own_algorithms
from collhub_nccl.tuner.rules import (
    COLLECTIVES,
    EVERY,
    LARGEST,
    Range,
    TunerRule,
    find_uncovered,
    subtract,
)
from hub_core.model import CollectiveKind, Loss, format_bytes, format_count
from hub_core.plugin_api import Artifact, SelectedWindow, Selection, WriteResult
from hub_core.selections import first_of_kinds, own_windows

_DEFAULT_CHANNELS = 16
_NAME_OF = {kind: name for name, kind in COLLECTIVES.items()}
# Sizes in bytes from which NVLS is faster than rings within a node (H100, NCCL 2.19 and later), and
# rings are faster than trees between nodes, by the cost model of NCCL.
_NVLS_FROM, _RINGS_FROM = 2 << 20, 4 << 20
_RCCL_HEADER = "# collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks"
_NCCLX_HEADER = "# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks"
# Times of larger calls are extrapolated.
_LARGEST_COMPARED = 1 << 30


@dataclass(frozen=True, slots=True)
class _TunedRules:
    """Rules of the tuned windows in total bytes, and losses of the restriction to such rules.

    `communicator`: None for networks of no known machine.
    """

    rules: Sequence[TunerRule]
    losses: Sequence[Loss]
    communicator: Communicator | None

    @property
    def untuned(self) -> list[str]:
        """Return the collectives that the tuner knows and that have no rule.

        They are names of the hub, such as `all-reduce`, in the order of `COLLECTIVES`.
        """
        tuned = {rule.kind for rule in self.rules}
        return [str(kind) for kind in COLLECTIVES.values() if kind not in tuned]


def write(selection: Selection, options: TunerOptions) -> WriteResult:
    """Write the file of NCCL's example tuner, with losses and notes.

    The machine is known if the network of the selection identifies it, with the same number of
    nodes. The file has a title, then lines of which the first that matches a call decides:

    1. Lines of the tuned calls (`_tune_rules`, which gives protocols and losses too). Channels: the
       option; without it 0 (NCCL's own number) on a known machine, else `_DEFAULT_CHANNELS`.
    2. Known machine: NCCL's own choice for other sizes on these nodes and ranks.
    3. Lines for all other calls (`_build_default_lines`), which would get a single channel.

    Notes: variables to set; channels unless 0; the cost model of a known machine; the calls without
    tuning. Without tuned calls only part 1 is empty.
    """
    communicator = _find_communicator(selection)
    channels = options.channels
    if channels is None:
        channels = _DEFAULT_CHANNELS if communicator is None else 0
    tuned = _tune_rules(selection, "NCCL", channels, options.ll_below, communicator)
    size = _format_communicator(selection)
    lines = [_format_title(selection), *map(_format_line, tuned.rules)]
    lines.append("# All other calls, which the tuner would leave a single channel.")
    if communicator is not None:
        lines += _build_nccl_lines(communicator, tuned.rules)
    lines += _build_default_lines(options.ll_below)
    notes = [f"set NCCL_TUNER_PLUGIN to NCCL's example tuner, and NCCL_TUNER_CONFIG_FILE to {FILE}"]
    if channels:
        notes.append(
            f"tuned lines state {channels} channels, which no simulation determines "
            "(-O channels=, 0 for NCCL's own number)"
        )
    if communicator is not None:
        notes.append(
            f"protocols of tuned lines, and lines for all sizes of {size}, follow the"
            f" cost model of NCCL {communicator.version} on {communicator.gpu.name}"
        )
    untuned = ", ".join(tuned.untuned)
    notes.append(
        f"{f'{untuned}, and all calls' if untuned else 'calls'} of communicators other than {size}"
        " were not tuned: without a line the tuner leaves them one channel, so lines at the end"
        " keep NCCL's own number of channels (0) and name the algorithm that NCCL's cost model"
        " mostly chooses"
    )
    return _create_result(FILE, "\n".join([*lines, ""]), tuned, notes)


def write_rccl(selection: Selection, options: RcclTunerOptions) -> WriteResult:
    """Write the file of RCCL's tuner (`RCCL_FILE`), with losses and notes.

    The file has a title, a header and one line per rule of `_tune_rules`, which also gives
    the losses. NCCL's cost model is not used, so the protocols follow the option
    `ll_below`. All lines have the number of channels of the option; for 0 they have -1,
    with which RCCL chooses it. Calls without a line keep RCCL's own choice. A file without
    rules is written too. The only note names the variable to set.
    """
    tuned = _tune_rules(selection, "RCCL", options.channels, options.ll_below, None)
    lines = [_format_title(selection), _RCCL_HEADER]
    lines += [_format_line(rule, default_channels=ANY) for rule in tuned.rules]
    notes = [f"set NCCL_TUNER_CONFIG_FILE to {RCCL_FILE}; ROCm 7.13 or later reads it"]
    return _create_result(RCCL_FILE, "\n".join([*lines, ""]), tuned, notes)


def write_ncclx(selection: Selection, options: NcclxTunerOptions) -> WriteResult:
    """Return the file of NCCLX as CSV or JSON (option `form`), with losses and notes.

    The rules and losses are those of `_tune_rules`, in its order.

    - Sizes become bytes per rank: total bytes / number of ranks. The first size is rounded up, the
      last one down. A rule is omitted if its first size is then above the last one. The last size
      `LARGEST` (no limit) is kept.
    - The number of ranks becomes that of one node: ranks / nodes, rounded down.

    A file without rules is written too; NCCLX chooses itself for calls without a rule. Only the CSV
    file has a title with the network; its lines have collective, sizes, algorithm, protocol,
    channels (-1 for NCCLX's own number), nodes and ranks of one node. Characters outside ASCII
    become `?`. The first note names the variable to set. A second one names the cost model if
    `_find_communicator` returns a communicator: the network is a known machine with the selection's
    number of nodes.
    """
    communicator = _find_communicator(selection)
    tuned = _tune_rules(selection, "NCCLX", options.channels, options.ll_below, communicator)
    local_ranks = selection.num_ranks // selection.num_nodes
    rules = []
    for rule in tuned.rules:
        first, last = rule.sizes
        sizes = -(-first // selection.num_ranks), last // selection.num_ranks
        if last == LARGEST:
            sizes = sizes[0], LARGEST
        if sizes[0] <= sizes[1]:
            rules.append(replace(rule, sizes=sizes, ranks=(local_ranks, local_ranks)))
    if options.form == "json":
        file, text = JSON_FILE, _format_json(rules)
    else:
        lines = [_format_title(selection), _NCCLX_HEADER]
        for rule in rules:
            fields = (
                *(_NAME_OF[rule.kind], _format_interval(rule.sizes), rule.algorithm, rule.protocol),
                *(rule.channels or ANY, rule.nodes[0], rule.ranks[0]),
            )
            lines.append(",".join(map(str, fields)))
        file, text = CSV_FILE, "\n".join([*lines, ""])
    notes = [f"set NCCLX_TUNER_CONFIG_FILE to {file}"]
    if communicator is not None:
        notes.append(
            f"protocols follow the cost model of NCCL {communicator.version} on"
            f" {communicator.gpu.name}"
        )
    return _create_result(file, text, tuned, notes)


def _tune_rules(
    selection: Selection,
    library: str,
    channels: int,
    ll_below: int,
    communicator: Communicator | None,
) -> _TunedRules:
    """Return the rules of a tuner for all collectives of a selection, with the losses.

    Rules are in the order of the selection, and ascend by size (total bytes). They hold for the
    numbers of nodes and ranks of the selection. `channels`: 0 leaves the number to the library.
    `library`: its name, "NCCL" or another one, for messages. `_choose_protocols` chooses the
    protocols: by NCCL's cost model if there is a `communicator` (known machine) and the model has
    the algorithm; otherwise ll below `ll_below` bytes, else simple (pat: always simple).

    The losses: first each further selection of a kind, as only the first one counts. Then for each
    collective:

    1. A kind that no tuner decides is one loss, and has no rules.
    2. Sizes at which an algorithm that the library does not have is faster are losses
       (`own_windows`).
    3. Sizes at which NCCL's own choice is faster than a rule are cut out of this rule. The loss
       names the first slower size. This needs a `communicator` of one node with a profile.
    """
    once, losses = first_of_kinds(selection)
    rules: list[TunerRule] = []
    otherwise = "the lines for other calls hold" if library == "NCCL" else "it chooses itself"
    for selected in once:
        kind = selected.collective.kind
        if kind not in _NAME_OF:
            reason = f"{library}'s tuner is not asked for it; {library} chooses itself"
            losses.append(Loss("collective", str(kind), reason))
            continue
        names = own_algorithms(kind, selection.num_ranks, selection.num_nodes)
        windows, lost = own_windows(selected, names, library, otherwise)
        losses += lost
        numbers = (
            (selection.num_nodes, selection.num_nodes),
            (selection.num_ranks, selection.num_ranks),
        )
        for window in windows:
            algorithm = names[window.algorithm]
            for sizes, protocol in _choose_protocols(
                kind, window, algorithm, ll_below, communicator
            ):
                rule = TunerRule(0, kind, sizes, algorithm, protocol, channels, *numbers)
                slower = _find_slower_sizes(selection, communicator, rule, window.sizes)
                rest = [sizes]
                for first, last, size in slower:
                    rest = subtract(rest, (first, last))
                    where = f"{kind}, {format_bytes(size)}"
                    text = f"{library}'s own choice is faster than its {algorithm} there, and stays"
                    losses.append(Loss("algorithm", where, text))
                rules += [replace(rule, sizes=part) for part in rest]
    return _TunedRules(rules, losses, communicator)


def _choose_protocols(
    kind: CollectiveKind,
    window: SelectedWindow,
    algorithm: str,
    ll_below: int,
    communicator: Communicator | None,
) -> Iterator[tuple[Range, str]]:
    """Yield ((first, last), protocol) for the parts of a window of sizes, ascending.

    Sizes are in bytes. Both ends are included; a window without maximum ends at `LARGEST`.

    - If a communicator is given and NCCL's cost model times the algorithm on it, each part has the
      protocol that is fastest in the model, and ends where another one becomes faster. The last
      part extends to the end of the window.
    - Otherwise the protocol is ll below `ll_below` bytes and simple from there on; for the
      algorithm pat, always simple.

    Empty parts are left out.
    """
    max_bytes = LARGEST if window.max_bytes is None else window.max_bytes
    choices = []
    if communicator is not None:
        choices = find_choice_windows(communicator, str(kind), algorithm)
    for first, last, best in choices:
        end = LARGEST if last == choices[-1][1] else last
        first, end = max(first, window.min_bytes), min(end, max_bytes)
        if first <= end:
            yield (first, end), best.protocol
    if choices:
        return
    # NCCL's parallel aggregated trees support only the protocol Simple.
    border = 0 if algorithm == "pat" else ll_below
    parts = (
        (window.min_bytes, min(max_bytes, border - 1), "ll"),
        (max(window.min_bytes, border), max_bytes, "simple"),
    )
    for first, last, protocol in parts:
        if first <= last:
            yield (first, last), protocol


def _find_slower_sizes(
    selection: Selection,
    communicator: Communicator | None,
    rule: TunerRule,
    sizes: Sequence[int],
) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, size) for the ranges of sizes in which NCCL's own choice beats a rule.

    All sizes are in bytes, both ends included. Each of NCCL's own choices has a range; the last one
    ends at `LARGEST`. Ranges ascend. Choices with the rule's algorithm are skipped. For any other
    choice, low and high are the ends of the intersection of its range, `rule.sizes`, and 1 byte to
    `_LARGEST_COMPARED` (1 GiB). The times by the machine's profile are compared at low, at the
    `sizes` between, and at high.

    `size` is the first size at which the rule takes longer; the full range is then yielded. Equal
    times, and sizes without both times, do not count. Nothing is yielded without a communicator,
    network or profile, and for several nodes (no model has these times). Raises `ValueError` if the
    rule's algorithm and protocol are not among `list_alternatives`.
    """
    if communicator is None or selection.network is None or communicator.nodes > 1:
        return
    # Imported here: they need numpy, which files for other networks do without.
    from collhub_machine_profiles import find_profile
    from collhub_machine_profiles.nccl_baseline import expected_time, expected_time_of_choice_us

    profile = find_profile(selection.network)
    if profile is None:
        return
    kind, named = str(rule.kind), (rule.algorithm, rule.protocol)
    (alternative,) = (
        one
        for one in list_alternatives(communicator, kind)
        if (one.algorithm, one.protocol) == named
    )
    windows = find_choice_windows(communicator, kind)
    for first, last, best in windows:
        if best.algorithm == rule.algorithm:
            continue
        end = LARGEST if last == windows[-1][1] else last
        low, high = max(first, rule.sizes[0], 1), min(end, rule.sizes[1], _LARGEST_COMPARED)
        for size in sorted({low, high, *(size for size in sizes if low <= size <= high)}):
            if low > high:
                break
            choice = launch_of(communicator, kind, alternative, size)
            time_us = expected_time_of_choice_us(profile, communicator, kind, size, choice)
            default = expected_time(
                profile, kind, communicator.ranks, 1, size, communicator.version
            )
            if time_us is not None and default is not None and time_us > default.time_us:
                yield first, end, size
                break


def _find_communicator(selection: Selection) -> Communicator | None:
    """Return the communicator with which NCCL would run on the network of a selection, else None.

    It is that of `communicator_of_topology`: all ranks of the network, with the profile and GPU
    that the name of the network gives. Returns None if there is no network, if no communicator
    exists (such as for an unknown GPU), or if its number of nodes is not that of the selection.
    """
    # Imported here: it needs numpy, which files for other networks do without.
    from collhub_machine_profiles.nccl_baseline import communicator_of_topology

    topology = selection.network
    if topology is None:
        return None
    communicator = communicator_of_topology(topology)
    if communicator is None or communicator.nodes != selection.num_nodes:
        return None
    return communicator


def _build_nccl_lines(communicator: Communicator, tuned: Sequence[TunerRule]) -> Iterator[str]:
    """Yield lines that repeat NCCL's own choice at sizes of the communicator that no rule has.

    They are ordered by collective, then by size. They hold only for this number of nodes and ranks,
    and leave the number of channels to NCCL. The last choice extends to `LARGEST`.
    """
    numbers = (communicator.nodes, communicator.nodes), (communicator.ranks, communicator.ranks)
    for kind in COLLECTIVES.values():
        windows = find_choice_windows(communicator, str(kind))
        rules = [rule for rule in tuned if rule.kind is kind]
        for first, last, best in windows:
            end = LARGEST if last == windows[-1][1] else last
            for sizes in find_uncovered(rules, [(first, end)]):
                yield _format_line(
                    TunerRule(0, kind, sizes, best.algorithm, best.protocol, 0, *numbers)
                )


def _build_default_lines(ll_below: int) -> Iterator[str]:
    """Yield lines of a tuner file that cover all sizes of all collectives.

    NCCL takes the first line that matches the call and that it can use. L is `ll_below`, N =
    max(2 MiB, L), R = max(4 MiB, L). Sizes are in bytes. Lines keep NCCL's number of channels
    and match any number of ranks; lines with no sizes are left out. Their order:

    1. All-reduce on one node: nvls simple from N on; ring ll below L; ring simple from L on.
    2. All-reduce on any number of nodes: tree ll below L; tree simple from L to R - 1.
    3. Each collective, in the order of `COLLECTIVES`, on any number of nodes: ring ll below
       L; ring simple from L on. For all-reduce only ring simple from R on.
    """
    reduce, one_node = CollectiveKind.ALL_REDUCE, (1, 1)
    nvls_from, rings_from = max(_NVLS_FROM, ll_below), max(_RINGS_FROM, ll_below)
    rows: list[tuple[CollectiveKind, int, int, str, str, Range]] = [
        (reduce, nvls_from, LARGEST, "nvls", "simple", one_node),
        (reduce, 0, ll_below - 1, "ring", "ll", one_node),
        (reduce, ll_below, LARGEST, "ring", "simple", one_node),
        (reduce, 0, ll_below - 1, "tree", "ll", EVERY),
        (reduce, ll_below, rings_from - 1, "tree", "simple", EVERY),
    ]
    for kind in COLLECTIVES.values():
        first = rings_from if kind is reduce else 0
        rows += [
            (kind, first, ll_below - 1, "ring", "ll", EVERY),
            (kind, max(first, ll_below), LARGEST, "ring", "simple", EVERY),
        ]
    for kind, first, last, algorithm, protocol, nodes in rows:
        if first <= last:
            yield _format_line(TunerRule(0, kind, (first, last), algorithm, protocol, 0, nodes))


def _create_result(file: str, text: str, tuned: _TunedRules, notes: Sequence[str]) -> WriteResult:
    content = text.encode("ascii", "replace")
    return WriteResult([Artifact(file, content)], tuned.losses, (), notes)


def _format_communicator(selection: Selection) -> str:
    return f"{format_count(selection.num_nodes, 'node')}, {selection.num_ranks} ranks"


def _format_title(selection: Selection) -> str:
    return f"# collhub tune: {selection.topology}, {_format_communicator(selection)}"[:200]


def _format_line(rule: TunerRule, default_channels: str = OWN_CHANNELS) -> str:
    """Return a rule as a line for the example tuner of NCCL or RCCL, without line feed.

    Eight fields are separated by commas: collective, first and last size in bytes (both
    included), algorithm, protocol, channels, nodes and ranks.

    - 0 channels become `default_channels`.
    - An interval of nodes or ranks becomes its first number, because the format has no
      intervals. The interval of all numbers (from 0 to the largest) becomes -1.
    """
    fields = (
        *(_NAME_OF[rule.kind], *rule.sizes, rule.algorithm, rule.protocol),
        rule.channels or default_channels,
        *(ANY if numbers == EVERY else numbers[0] for numbers in (rule.nodes, rule.ranks)),
    )
    return ",".join(map(str, fields))


def _format_json(rules: Sequence[TunerRule]) -> str:
    documents: list[Mapping[str, Mapping[str, object]]] = [
        {
            "filter": {
                "collective": _NAME_OF[rule.kind],
                "bytesPerRank": _format_interval(rule.sizes),
                "nNodes": rule.nodes[0],
                "nLocalRanks": rule.ranks[0],
            },
            "config": {
                "algorithm": rule.algorithm,
                "protocol": rule.protocol,
                **({"channels": rule.channels} if rule.channels else {}),
            },
        }
        for rule in rules
    ]
    rows = ",\n".join(f"  {json.dumps(document)}" for document in documents)
    return '{"rules": [\n' + rows + "\n]}\n"


def _format_interval(sizes: Range) -> str:
    return f"[{sizes[0]},)" if sizes[1] == LARGEST else f"[{sizes[0]},{sizes[1]}]"
