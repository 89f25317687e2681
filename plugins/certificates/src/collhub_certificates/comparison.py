"""Hold the numbers that a certificate states against the recomputed ones."""

from __future__ import annotations

from fractions import Fraction

from collhub_schedules import Certificate

from collhub_certificates.flaws import FlawError, gb_text


def compare(document: Certificate, rate: Fraction | None, bound: Fraction | None) -> None:
    """Raise `FlawError` for the first number that differs; what was not recomputed is None."""
    _check_equal("rate", document["rate"], rate)
    _check_equal("bound", document["bound"]["rate"], bound)
    if rate is None:
        return
    _check_tree_count(document)
    if bound is not None:
        _check_order(rate, bound, document["is_optimal"])


def _check_equal(name: str, claimed_text: str, computed: Fraction | None) -> None:
    """Fractions have one value and many texts: `3/2` and `6/4` agree."""
    claimed = Fraction(claimed_text)
    if computed is None or computed == claimed:
        return
    raise FlawError(
        name,
        f"the {name} is {gb_text(computed)}, not {gb_text(claimed)} as claimed",
    )


def _check_tree_count(document: Certificate) -> None:
    """That no packing has fewer trees is stated, and not proved again."""
    trees = len(document["trees"])
    claimed = document["tree_count"]["trees"]
    if trees == claimed:
        return
    message = f"{trees} trees are stated, not {claimed} as claimed"
    raise FlawError("trees", message)


def _check_order(rate: Fraction, bound: Fraction, is_called_optimal: bool) -> None:
    """A rate above its bound disproves the bound or the rate; one below is not the best."""
    # Both were recomputed, so one of the two computations, or the network, would be wrong.
    if rate > bound:
        excess = f"{gb_text(rate)}, more than the bound of {gb_text(bound)}"
        raise FlawError("bound", f"the trees carry {excess}: one of them is wrong")
    if is_called_optimal and rate != bound:
        gap = f"{gb_text(rate)} is less than the bound of {gb_text(bound)}"
        raise FlawError("optimal", f"claimed to be optimal, but {gap}")
