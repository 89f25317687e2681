"""Algorithms written as folders with a program for NCCL, and what is needed to build them."""
