"""By which first bytes network files are told, apart from their readers, which import numpy."""

from __future__ import annotations

NETWORK_YAML = rb"(?m)^(topology|npus_count)[ \t]*:"
"""Of ASTRA-sim's network YAML: a key at the start of a line."""
