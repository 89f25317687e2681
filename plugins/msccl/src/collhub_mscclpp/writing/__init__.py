"""Algorithms written as execution plans."""
