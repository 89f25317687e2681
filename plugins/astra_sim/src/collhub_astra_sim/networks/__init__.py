"""Networks of ASTRA-sim: its YAML, files of its backends, and expressible topologies.

The byte patterns that identify network files are here and not in the readers, which import numpy.
"""

from __future__ import annotations

NETWORK_YAML = (
    rb"""(?:\A|[\s{,])["']?(?:npus_count["']?[ \t]*:|topology["']?[ \t]*:(?![ \t]*["'\w]))"""
)
"""Of ASTRA-sim's network YAML: a key, in YAML of any style, which includes JSON. The topologies are
a list; a text at that key is of another format."""

NETWORK_JSON = (
    rb"\A\s*\{(?s:.){0,2000}?"
    rb'"(?:topologies-per-dim|units-count|nodes-per-dim|logical-dims)"\s*:'
)
"""Of the network JSON of ASTRA-sim 1, and of the logical dimensions for ns-3: a key of its own."""

NS3 = (
    rb"\A(?:\xef\xbb\xbf)?\s*(?:(?:\d+\s+){3}(?:\d+\s+)*(?:\d+(?:\.\d+)?(?:[KMG]i?|k)?[bB](?:ps|/s)\s|\d*\Z)"
    rb"|(?:\d+\s+){5}[A-Za-z]\w*\s)"
)
"""Of a topology for ns-3: numbers up to the rate of the first link or, for SimAI, a kind of GPU."""

HTSIM = rb"(?im)^[ \t]*(?:nodes|tiers|podsize)[ \t]+\d+"
"""Of a topology for htsim: one of the keys that come first."""
