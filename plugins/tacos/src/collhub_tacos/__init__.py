"""Topology-aware synthesis on time-expanded networks for Collective Hub."""
