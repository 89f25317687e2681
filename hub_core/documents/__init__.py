"""JSON documents of algorithms and topologies."""
