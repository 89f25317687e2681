"""Refuse algorithms that cannot be composed: without contents, with steps outside their buffers, or
with unmatched messages.
"""

from __future__ import annotations

import numpy as np

from hub_core.columns import BoolArray
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


def check_composable(algorithm: Algorithm) -> Messages:
    """Check that an algorithm can be composed, and return its matched messages.

    Raises `InputError` with all defects.
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
    """Find the first rank or unit in a contract that does not exist; None without a defect."""
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
    # Rows with the source `ALL_RANKS` index the last rank here; they are ignored.
    is_outside = _names_missing_units(rows, contract)
    if is_outside[rows.source_rank >= 0].any():
        return "names a unit outside its buffer"
    return None


def _names_missing_units(rows: Contributions, contract: CustomContract) -> BoolArray:
    """Whether the OUTPUT or INPUT unit of each row does not exist: bool[rows]."""
    outputs = contract.output_units[rows.rank]
    inputs = contract.input_units[rows.source_rank]
    is_outside = (rows.offset < 0) | (rows.offset >= outputs)
    is_outside |= (rows.source_unit < 0) | (rows.source_unit >= inputs)
    return np.asarray(is_outside, np.bool_)
