"""Measured times of real machines: readers, tables, a model of NCCL, and calibration."""
