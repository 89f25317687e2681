"""Make algorithms from algorithms: one after another, several times side by side, on other ranks, in finer units."""

from hub_core.composition.ranks import embed, relabel
from hub_core.composition.replication import replicate
from hub_core.composition.sequence import sequential
from hub_core.composition.units import rescale

__all__ = ["embed", "relabel", "replicate", "rescale", "sequential"]
