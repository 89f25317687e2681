"""Measurements that end their process, hang, or lack memory, in a module that other processes can import."""

from __future__ import annotations

import os
import time

from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement


def dies_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[Measurement]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        os._exit(3)
    return [Measurement(one.name, size, 7) for size in question.sizes]


def hangs_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[Measurement]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        time.sleep(600)
    return [Measurement(one.name, size, 7) for size in question.sizes]


def lacks_memory_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[Measurement]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        raise MemoryError
    return [Measurement(one.name, size, 7) for size in question.sizes]
