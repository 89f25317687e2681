"""Name and check the inputs of a composition: each one separately, and two in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from collhub_compose.buffers import build_contract
from hub_core.columns import first_positions
from hub_core.model import (
    Algorithm,
    Collective,
    Findings,
    InputError,
    Location,
    Messages,
    Provenance,
    ReduceOp,
    StepKind,
    UsageError,
    match_messages,
    message_bytes,
)
from hub_core.verification import check_regions

_PRODUCER = "collhub-compose"
_DISTRIBUTION = "collhub-study"
_OPTION = "composition"


def build_provenance(operation: str, parts: Sequence[Algorithm], *arguments: object) -> Provenance:
    """Build the provenance of an operation, with the expression that a user can type again.

    The option `composition` has this expression, `operation(PARTS, ARGUMENTS)`, for example
    `replicate(sequential(a.xml, b.xml), 2)`. A composed part appears by its own expression,
    any other part by its file name, or by the kind of its collective if it has no file.

    - If all parts have the same source file and digest, these are the source. Both may be
      empty.
    - Otherwise the source is the file names (else kinds) of the parts in their order, each
      once, joined by ` + `. The digest is empty.

    Raises `IndexError` without parts.
    """
    # An expression that a user can type again: replicate(sequential(a.xml, b.xml), 2).
    words = [part.provenance.options.get(_OPTION) or get_display_name(part) for part in parts]
    words += [str(argument) for argument in arguments]
    source = parts[0].provenance
    name, sha256 = source.source_name, source.source_sha256
    if not have_one_source(parts):
        names = dict.fromkeys(get_display_name(part) for part in parts)
        name, sha256 = " + ".join(names), ""
    listed = ", ".join(words)
    options = {_OPTION: f"{operation}({listed})"}
    return Provenance(_PRODUCER, version(_DISTRIBUTION), name, sha256, options)


def have_one_source(parts: Sequence[Algorithm]) -> bool:
    """Return whether all parts have equal source names and equal SHA-256 digests.

    Then their line numbers refer to the same text. Parts without a source have an empty
    name and digest, so they count as equal. False without parts.
    """
    # Files in different folders may have equal names, hence the hash.
    sources = set()
    for part in parts:
        provenance = part.provenance
        sources.add((provenance.source_name, provenance.source_sha256))
    return len(sources) == 1


def get_display_name(part: Algorithm) -> str:
    """Name of an algorithm in messages: its file, else its collective."""
    return part.provenance.source_name or str(part.collective.kind)


def check_composable(algorithm: Algorithm) -> Messages:
    """Check that an algorithm can be composed, and return its matched messages.

    Raises `InputError` (`timing-only`) if its steps have no contents; then nothing else is checked.
    Otherwise all these defects are collected, and one `InputError` lists them, at most 8 per code:

    - `empty-step`, `out-of-bounds`: a step without units, or with a region outside its buffer.
    - `peer-range`, `self-message`, `unmatched-send`, `unmatched-receive`, `count-mismatch`: a
      message to no rank or to its own rank, without a partner, or with a partner of other size.
    - `contract-range`: the contract of a custom collective names a missing rank or unit. Only the
      first such defect is reported.

    Whether the steps can finish and produce the right results is not checked here.
    """
    file = algorithm.provenance.source_name or None
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not specify which units they touch, so they cannot be joined",
            location=Location(file),
            cure="compose the algorithm itself, not a timing-only trace of it",
            code="timing-only",
        )
    # The first rules of the verifier; it checks order and contents later.
    findings = Findings(file)
    check_regions(algorithm, findings)
    messages = match_messages(algorithm.steps, findings)
    reason = _find_contract_defect(algorithm.collective)
    if reason is not None:
        message = f"the contract of the custom collective {reason}"
        findings.add("contract-range", message, Location(file))
    if findings.has_errors():
        raise InputError(findings)
    return messages


def _find_contract_defect(collective: Collective) -> str | None:
    """Return the first defect of a collective's contract as text, None without a defect.

    The text continues a sentence. Ranks are checked in all rows of the expected results before
    units. The result is None without a contract, with None as expected results, and without rows.

    1. `names a rank outside 0..N-1` (N: number of ranks): a rank or source rank of a row is no rank
       of the collective. `ALL_RANKS` is valid as a source, not as a rank.
    2. `names a unit outside its buffer`: an OUTPUT unit outside the OUTPUT of the row's rank, or a
       source unit outside the INPUT of the source rank. Source units of `ALL_RANKS` are not
       checked.
    """
    contract = collective.contract
    if contract is None or contract.expected is None:
        return None
    rows = contract.expected
    if not len(rows):
        return None
    last = collective.num_ranks - 1
    # The source `ALL_RANKS` is -1, which is no rank.
    lowest = min(rows.rank.min(), rows.source_rank.min() + 1)
    highest = max(rows.rank.max(), rows.source_rank.max())
    if lowest < 0 or highest > last:
        return f"names a rank outside 0..{last}"
    # Rows with the source `ALL_RANKS` index the last rank here; their source units do not count.
    input_units = contract.input_units[rows.source_rank]
    is_source_missing = (rows.source_unit < 0) | (rows.source_unit >= input_units)
    output_units = contract.output_units[rows.rank]
    is_result_missing = (rows.offset < 0) | (rows.offset >= output_units)
    if np.any(is_result_missing | (is_source_missing & (rows.source_rank >= 0))):
        return "names a unit outside its buffer"
    return None


def check_rank_counts(algorithms: Sequence[Algorithm]) -> None:
    """Raise `UsageError` (`rank-count`) unless all algorithms have the same number of ranks.

    The message names the first algorithm and the first that differs from it, with their positions
    from 1, because names may be equal. The sequence must not be empty.
    """
    first = algorithms[0]
    for number, algorithm in enumerate(algorithms[1:], 2):
        if algorithm.num_ranks == first.num_ranks:
            continue
        first_count = f"algorithm 1 ({get_display_name(first)}) has {first.num_ranks} ranks"
        second_count = (
            f"algorithm {number} ({get_display_name(algorithm)}) has {algorithm.num_ranks}"
        )
        raise UsageError(
            f"{first_count}, {second_count}",
            cure="embed the smaller one in the ranks of the larger",
            code="rank-count",
        )


def check_seam(first: Algorithm, second: Algorithm) -> None:
    """Raise `UsageError` (`seam`) if the first algorithm lacks results that the second one needs.

    Both must have the same number of ranks. A rank needs data if the contract of the second
    algorithm defines its INPUT, with at least one unit; whether steps read them has no effect. Two
    conditions are checked on all such ranks, one after the other:

    1. OUTPUT of the first algorithm has as many units as INPUT of the second.
    2. The first algorithm has an expected result for each of these units. This is not checked if
       its contract has no expected results (None).

    The error is located at the lowest rank that violates the condition; for condition 2 the message
    names its lowest unit. Raises `InputError` (`too-large`) as `build_contract`.
    """
    output_contract, input_contract = (
        build_contract(first.collective),
        build_contract(second.collective),
    )
    needed = np.where(input_contract.defined, input_contract.input_units, 0)
    first_name, second_name = get_display_name(first), get_display_name(second)
    unequal = np.flatnonzero((needed > 0) & (output_contract.output_units != needed))
    if len(unequal):
        rank = int(unequal[0])
        leaves = f"{first_name} leaves {output_contract.output_units[rank]} units in OUTPUT"
        expects = f"{second_name} expects {needed[rank]} in INPUT"
        raise _misfit_error(f"{leaves} and {expects}", rank)
    if output_contract.expected is None:
        return
    # Needed units are numbered rank by rank; `starts` has the number of unit 0 of each rank.
    expected = output_contract.expected
    starts = first_positions(needed)
    is_filled = np.zeros(int(needed.sum()), np.bool_)
    is_needed = expected.offset < needed[expected.rank]
    filled = starts[expected.rank] + expected.offset
    is_filled[filled[is_needed]] = True
    missing = np.flatnonzero(~is_filled)
    if len(missing):
        position = int(missing[0])
        rank = int(np.searchsorted(starts + needed, position, side="right"))
        unit = position - int(starts[rank])
        leaves = f"{first_name} leaves nothing in OUTPUT[{unit}]"
        raise _misfit_error(f"{second_name} needs INPUT[{unit}], but {leaves}", rank)


def find_common_op(first: Algorithm, second: Algorithm) -> ReduceOp:
    """Return the reduction operator of two algorithms that run in sequence.

    An algorithm reduces if it has a REDUCE or RECV_REDUCE step. The first rule that applies is
    used:

    1. Neither reduces: the operator of the first algorithm.
    2. Only one reduces: its operator, also if it averages.
    3. Both reduce with different operators: `UsageError` (`reduce-op`).
    4. Both average: `UsageError` (`reduce-op`), because no operator describes two divisions.
    5. Otherwise the operator of both.
    """
    reducing = [
        part
        for part in (first, second)
        if part.steps.is_kind(StepKind.RECV_REDUCE, StepKind.REDUCE).any()
    ]
    # A part without reductions fits any operator.
    ops = {part.collective.reduce_op for part in reducing or [first]}
    if len(ops) > 1:
        names = [
            f"{get_display_name(part)} ({part.collective.reduce_op})" for part in (first, second)
        ]
        raise UsageError(
            f"{' and '.join(names)} reduce with different operators",
            cure="compose parts of one operator",
            code="reduce-op",
        )
    if len(reducing) > 1 and ReduceOp.AVG in ops:
        # The mean of sums over n ranks, divided twice, is no mean of the contributions.
        names = [get_display_name(first), get_display_name(second)]
        raise UsageError(
            f"{' and '.join(names)} both average, and no operator describes that",
            cure="let one of them sum",
            code="reduce-op",
        )
    return ops.pop()


def find_common_bytes(first: Algorithm, second: Algorithm, unit_count: int) -> int | None:
    """Return the size in bytes of the composition of two algorithms; None if neither has a size.

    The size is `collective_bytes` of an algorithm. The result is the size of `unit_count` units,
    the units of the composition: unit_count x size / units of the first algorithm that has a size
    (`first`, otherwise `second`), rounded up. Units of both must be equal; this is not checked.

    If both have sizes, the longest OUTPUT of `first` must have equally many bytes, rounded up, by
    the sizes of both; otherwise `UsageError` (`seam`) is raised. Raises `InputError` for a first
    collective that is too large (`too-large`), and for 2^63 bytes or more (`size-range`).
    """
    sized_parts = [part for part in (first, second) if part.collective_bytes is not None]
    if not sized_parts:
        return None
    output_units = build_contract(first.collective).output_units
    longest = int(output_units.max(initial=0))
    # Only the data at the seam is common; the remaining buffers may have other sizes.
    at_seam = [_compute_bytes(part, longest) for part in sized_parts]
    if len(set(at_seam)) > 1:
        leaves = f"{get_display_name(first)} leaves {at_seam[0]} bytes"
        takes = f"{get_display_name(second)} takes {at_seam[1]}"
        raise UsageError(
            f"the sizes do not fit: {leaves}, {takes}",
            cure="write both for the same size",
            code="seam",
        )
    return _compute_bytes(sized_parts[0], unit_count)


def _misfit_error(message: str, rank: int) -> UsageError:
    """Return, without raising it, the `UsageError` (`seam`) for parts that misfit at a rank."""
    cure = "choose parts whose results and inputs are equally large, at the same ranks"
    return UsageError(message, location=Location(rank=rank), cure=cure, code="seam")


def _compute_bytes(part: Algorithm, units: int) -> int:
    """Return the size of `units` units in bytes, rounded up as for messages.

    Raises `AssertionError` if the part has no size.
    """
    assert part.collective_bytes is not None
    unit_count = part.collective.unit_count
    sizes = message_bytes(part.collective_bytes, unit_count, np.asarray([units]))
    return int(sizes[0])
