"""Networks as ASTRA-sim states them: its YAML, and which topologies it can express."""
