"""The compiled search over orders of passes refuses orders that do not fit the memory."""

import numpy as np
import pytest
from collhub_pipeline.order_kernel import improve_orders

_STAGES, _UNITS = 2, 2


@pytest.mark.parametrize(("limits", "is_valid"), [((2, 2), True), ((1, 2), False), ((2, 1), False)])
def test_given_orders_must_fit_the_memory_of_each_device(
    limits: tuple[int, int], is_valid: bool
) -> None:
    """Each device stores both activations at the same time, one unit of memory each."""
    # Pass number: (kind x stages + stage) x units + unit; both forward passes come first.
    orders = np.array(
        [
            [
                (kind * _STAGES + stage) * _UNITS + unit
                for kind in range(3)
                for unit in range(_UNITS)
            ]
            for stage in range(_STAGES)
        ],
        np.int64,
    )
    _, value = improve_orders(
        orders,
        np.arange(_STAGES),
        np.ones((3, _STAGES, 1), np.int64),
        0,
        False,
        _UNITS,
        np.ones(_STAGES, np.int64),
        np.zeros(_STAGES, np.int64),
        np.array(limits, np.int64),
        False,
        0,
        0,
        0,
    )
    assert (value >= 0) == is_valid


def test_each_quarter_of_the_moves_starts_from_the_best_orders() -> None:
    """Also if no move can be made at its end: 3 of 4 moves of 9 passes leave the order.

    The best of these 40 moves is the result of the compiled search, and was 56 while a quarter
    whose last move was not made continued from the current orders.
    """
    units = 3
    orders = np.array(
        [
            [(kind * _STAGES + stage) * units + unit for kind in range(3) for unit in range(units)]
            for stage in range(_STAGES)
        ],
        np.int64,
    )
    best, value = improve_orders(
        orders,
        np.arange(_STAGES),
        np.array([3, 1, 2, 9, 7, 4], np.int64).reshape(3, _STAGES, 1),
        1,
        False,
        units,
        np.ones(_STAGES, np.int64),
        np.zeros(_STAGES, np.int64),
        np.full(_STAGES, units, np.int64),
        False,
        5,
        40,
        0,
    )
    assert value == 51
    assert [sorted(order) for order in best.tolist()] == [
        sorted(order) for order in orders.tolist()
    ]
