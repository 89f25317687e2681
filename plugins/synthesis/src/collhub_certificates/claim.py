"""A certificate whose form is right, and the network that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_certificates.flaws import FlawError
from hub_core.model import ROOTED, Algorithm, CollectiveKind
from hub_core.schedules import Certificate, CertifiedPlane, LinkCapacities


@dataclass(frozen=True, slots=True)
class Claim:
    """A certificate with the network that it speaks of.

    `planes`: bytes per second by link, for every plane.
    """

    document: Certificate
    planes: Sequence[LinkCapacities]

    @property
    def kind(self) -> CollectiveKind:
        """The kind of collective that it is for."""
        return CollectiveKind(self.document["collective"])

    @property
    def is_collecting(self) -> bool:
        """Whether data flow towards those who get them, instead of from those who have them.

        To a root, or to the rank whose part is reduced: trees are taken upwards.
        """
        traits = self.kind.traits
        return traits.to_root or (traits.reduces and traits.is_split)

    @property
    def has_parts(self) -> bool:
        """Whether ranks have parts of their own, which must be equal."""
        return self.kind.traits.is_split

    @property
    def may_serve_one(self) -> bool:
        """Whether a tree may serve one rank alone: to a root or from it, part by part."""
        return self.has_parts and self.kind in ROOTED

    @property
    def ranks(self) -> list[int]:
        """The NPU of every rank."""
        return self.document["ranks"]

    @property
    def root(self) -> int | None:
        """The root as an NPU, where the collective has one."""
        if self.kind in ROOTED:
            return self.document["root"]
        return None

    def check_ranks(self, algorithm: Algorithm | None) -> None:
        """Refuse ranks that are no NPUs, and a certificate for another collective.

        Raises `FlawError`. `algorithm`: the one that carries the certificate.
        """
        last = self.document["network"]["npus"] - 1
        distinct = set(self.ranks)
        are_different = len(distinct) == len(self.ranks) >= 2
        if not are_different or max(distinct) > last:
            message = f"the ranks are not two or more different NPUs of 0..{last}"
            raise FlawError("ranks", message)
        root = self.document.get("root")
        if self.kind in ROOTED and root not in distinct:
            message = f"the root {root} is none of the ranks"
            raise FlawError("ranks", message)
        if algorithm is not None:
            self._check_collective(algorithm)

    def carrying_planes(self) -> dict[int, CertifiedPlane]:
        """What is stated of every plane that carries anything; nothing where there is one plane."""
        if len(self.planes) == 1:
            return {}
        entries = self.document.get("planes", [])
        stated = {entry["plane"]: entry for entry in entries}
        shares = sum(Fraction(entry["share"]) for entry in stated.values())
        are_known = set(stated) <= set(range(len(self.planes)))
        if shares == 1 and are_known:
            return stated
        message = "the planes of the network do not share all data"
        raise FlawError("planes", message)

    def _check_collective(self, algorithm: Algorithm) -> None:
        """Refuse a certificate for another kind, other ranks or another root."""
        made = algorithm.collective
        # An algorithm among some NPUs is custom: its traffic is compared, its name cannot be.
        if made.kind is CollectiveKind.CUSTOM:
            return
        is_same_kind = made.kind is self.kind
        has_same_ranks = self.ranks == list(range(made.num_ranks))
        has_same_root = made.root in (None, self.document.get("root"))
        if is_same_kind and has_same_ranks and has_same_root:
            return
        stated = f"{self.kind} of {len(self.ranks)} ranks"
        message = f"the certificate is for {stated}, the algorithm is {made.kind}"
        raise FlawError("collective", message)
