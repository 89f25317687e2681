"""Passes over workloads that contain programs."""
