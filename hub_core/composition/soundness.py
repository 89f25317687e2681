"""Refuse what cannot be composed: traces without contents, steps outside their buffers, messages without partner."""

from __future__ import annotations

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.findings import Findings
from hub_core.model.messages import Messages, match_messages
from hub_core.verification.regions import check_regions


def require_sound(algorithm: Algorithm) -> Messages:
    """Return the messages of an algorithm that can be composed. Raises `InputError` with all reasons for another one."""
    file = algorithm.provenance.source_name or None
    if not algorithm.has_contents:
        raise InputError(
            "the steps do not say which units they touch, so there is nothing to join",
            location=Location(file),
            cure="compose the algorithm itself, not a timing-only trace of it",
            code="timing-only",
        )
    findings = Findings(file)
    check_regions(algorithm, findings)
    messages = match_messages(algorithm.steps, findings)
    if reason := _contract_defect(algorithm.collective):
        findings.add(
            "contract-range", f"the contract of the custom collective {reason}", Location(file)
        )
    if findings.has_errors():
        raise InputError(findings)
    return messages


def _contract_defect(collective: Collective) -> str | None:
    contract = collective.contract
    if contract is None or contract.expected is None or not len(contract.expected):
        return None
    rows, last = contract.expected, collective.num_ranks - 1
    if (
        min(rows.rank.min(), rows.source_rank.min() + 1) < 0
        or max(rows.rank.max(), rows.source_rank.max()) > last
    ):
        return f"names a rank outside 0..{last}"
    outside = (rows.offset < 0) | (rows.offset >= contract.output_units[rows.rank])
    outside |= (rows.source_unit < 0) | (rows.source_unit >= contract.input_units[rows.source_rank])
    return "names a unit outside its buffer" if bool(outside[rows.source_rank >= 0].any()) else None
