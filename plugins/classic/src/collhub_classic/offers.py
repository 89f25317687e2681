"""The functions behind the offers, one an algorithm."""

from __future__ import annotations

from collhub_classic.synthesize import by_name

ring = by_name("ring")
bidirectional_ring = by_name("bidirectional-ring")
rings = by_name("rings")
recursive_doubling = by_name("recursive-doubling")
halving_doubling = by_name("halving-doubling")
bruck = by_name("bruck")
binomial = by_name("binomial")
k_nomial = by_name("k-nomial")
double_binary_tree = by_name("double-binary-tree")
direct = by_name("direct")
pairwise = by_name("pairwise")
neighbour_exchange = by_name("neighbour-exchange")
pat = by_name("pat")
sparbit = by_name("sparbit")
swing = by_name("swing")
torus_rings = by_name("torus-rings")
hierarchical = by_name("hierarchical")
