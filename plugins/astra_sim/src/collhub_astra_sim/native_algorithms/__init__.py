"""ASTRA-sim's own algorithms as algorithms of the hub, with the delays of its endpoints."""
