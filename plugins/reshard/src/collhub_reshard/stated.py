"""What a proof states: its moves, as they are written, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from collhub_shardings import Move, parse_side, parse_tensor

from hub_core.columns import Int64Array
from hub_core.model import Diagnostic, JsonValue
from hub_core.plugin_api import CheckReport

Interval = tuple[Fraction, Fraction]


class FlawError(Exception):
    """What is wrong with a proof: a code and a message, as a diagnostic."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # Codes of the packing check are others.
        self.diagnostic = Diagnostic(f"reshard-{code}", message)


def wrong(found: Diagnostic) -> CheckReport:
    facts: dict[str, JsonValue] = {"is_optimal": False, "rate": None, "bound": None}
    return CheckReport(False, "wrong", (found,), facts=facts)


def listed(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


def move_of(entry: Mapping[str, JsonValue]) -> Move:
    """A move as it is stated, on hosts of its own choice."""
    tensor = parse_tensor(str(entry["tensor"]))
    rank = len(tensor.shape)
    sides = [parse_side(str(entry[end]), rank) for end in ("from", "to")]
    due = entry["due_s"]
    return Move(
        tensor,
        sides[0],
        sides[1],
        str(entry["name"]),
        float(str(entry["release_s"])),
        None if due is None else float(str(due)),
    )


def on_hosts(move: Move, host_of: Int64Array) -> Move:
    """The move with its devices on the stated hosts."""
    sides = []
    for side in (move.source, move.destination):
        hosts = tuple(host_of[list(side.mesh.devices)].tolist())
        sides.append(replace(side, mesh=replace(side.mesh, hosts=hosts)))
    return replace(move, source=sides[0], destination=sides[1])


def covers(parts: Sequence[Interval]) -> bool:
    """Whether parts fill 0..1 without gap or overlap."""
    at = Fraction(0)
    for first, last in sorted(parts):
        if first != at:
            return False
        at = last
    return at == 1


def check_labels(document: Mapping[str, JsonValue]) -> None:
    """Refuse a status or kind of proof that is unknown or contradicts the other one."""
    status, proof = document["status"], document["proof"]
    if proof not in ("bound", "solver", "none"):
        raise FlawError("form", f"{proof!r:.40} is no kind of proof")
    if status != ("feasible" if proof == "none" else "optimal"):
        raise FlawError(
            "form", f"the status {status!r:.40} does not follow from the proof {proof!r}"
        )


def holding(
    verdict: str,
    makespan: Fraction,
    bound: Fraction,
    is_optimal: bool,
    binding: str,
    unproved: Mapping[str, str],
) -> CheckReport:
    """The report on a proof that holds; `is_optimal`: by the bound alone, without a solver.

    `unproved`: claims that no check proves, in words by the path of their field.
    """
    facts: dict[str, JsonValue] = {
        "is_optimal": is_optimal,
        # A resharding has times instead.
        "rate": None,
        "bound": None,
        "makespan_s": str(makespan),
        "bound_s": str(bound),
        "gap": float(makespan / bound - 1) if bound else 0.0,
        "not_proved": [*sorted(unproved)],
    }
    details = {
        "makespan": f"{float(makespan):.6g} s ({makespan})",
        "bound": f"{float(bound):.6g} s ({bound}), {binding}",
        "not proved": "; ".join(dict.fromkeys(unproved.values())),
    }
    return CheckReport(True, verdict, facts=facts, details=details)
