"""Networks of ASTRA-sim: its YAML, files of its backends, and expressible topologies."""
