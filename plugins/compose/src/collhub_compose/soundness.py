"""Refuse what cannot be composed: no contents, steps outside their buffers, lonely messages."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray

from hub_core.model import (
    Algorithm,
    Collective,
    Contributions,
    CustomContract,
    Findings,
    InputError,
    Location,
    Messages,
    match_messages,
)
from hub_core.verification import check_regions


def require_sound(algorithm: Algorithm) -> Messages:
    """The messages of an algorithm that can be composed.

    Raises `InputError` with all reasons for another one.
    """
    file = algorithm.provenance.source_name or None
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not say which units they touch, so there is nothing to join",
            location=Location(file),
            cure="compose the algorithm itself, not a timing-only trace of it",
            code="timing-only",
        )
    # The same rules as the verifier's first ones; order and contents are left to it.
    findings = Findings(file)
    check_regions(algorithm, findings)
    messages = match_messages(algorithm.steps, findings)
    reason = _contract_defect(algorithm.collective)
    if reason is not None:
        message = f"the contract of the custom collective {reason}"
        findings.add("contract-range", message, Location(file))
    if findings.has_errors():
        raise InputError(findings)
    return messages


def _contract_defect(collective: Collective) -> str | None:
    """What a stated contract names that does not exist."""
    contract = collective.contract
    if contract is None or contract.expected is None:
        return None
    rows = contract.expected
    if not len(rows):
        return None
    last = collective.num_ranks - 1
    # `ALL_RANKS`, the source -1, is no rank.
    lowest = min(rows.rank.min(), rows.source_rank.min() + 1)
    highest = max(rows.rank.max(), rows.source_rank.max())
    if lowest < 0 or highest > last:
        return f"names a rank outside 0..{last}"
    # What it says of rows with the source `ALL_RANKS` is about the last rank, and means nothing.
    is_outside = _names_missing_units(rows, contract)
    if is_outside[rows.source_rank >= 0].any():
        return "names a unit outside its buffer"
    return None


def _names_missing_units(rows: Contributions, contract: CustomContract) -> BoolArray:
    """Per row, whether its unit of OUTPUT or of INPUT does not exist."""
    outputs = contract.output_units[rows.rank]
    inputs = contract.input_units[rows.source_rank]
    is_outside = (rows.offset < 0) | (rows.offset >= outputs)
    is_outside |= (rows.source_unit < 0) | (rows.source_unit >= inputs)
    return np.asarray(is_outside, np.bool_)
