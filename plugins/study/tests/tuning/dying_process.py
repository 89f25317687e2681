"""Measurements that end their process, hang, or lack memory, in a module that other processes can import."""

from __future__ import annotations

import os
import time

from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion


def dies_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[AlgorithmAtSize]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        os._exit(3)
    return [AlgorithmAtSize(one.name, size, 7) for size in question.sizes]


def hangs_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[AlgorithmAtSize]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        time.sleep(600)
    return [AlgorithmAtSize(one.name, size, 7) for size in question.sizes]


def lacks_memory_for_bruck(
    one: ComparedAlgorithm, question: ComparisonQuestion, *details: object
) -> list[AlgorithmAtSize]:
    """7 ns for all algorithms but one."""
    if one.name == "bruck":
        raise MemoryError
    return [AlgorithmAtSize(one.name, size, 7) for size in question.sizes]
