"""Small random changes to plans, as a broken generator makes them."""

from __future__ import annotations

import copy
import random
from typing import Any

_NAMES = [
    "nop", "signal", "wait", "rlxsignal", "rlxwait", "put", "get", "copy", "re", "res", "rre",
    "rres", "ppkt", "upkt", "rppkt", "repkt", "glre", "pws", "barrier", "sem_acquire", "flush",
]  # fmt: skip
_ODD = [None, -1, 0, 1, 2, 3, 17, 10**9, 2**70, 1.5, True, "x", "s", "i", "o", [], {}, [0]]


def mutated(plan: dict[str, Any], seed: int) -> dict[str, Any]:
    """A plan with one to three changes; the same for the same seed."""
    draw = random.Random(seed)
    changed = copy.deepcopy(plan)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        draw.choice([_change_operations, _change_operations, _change_number, _change_value])(
            changed, draw
        )
    return changed


def with_other_operations(plan: dict[str, Any], seed: int) -> dict[str, Any]:
    """A plan with one or two operations left out, repeated, exchanged, renamed or moved."""
    draw = random.Random(seed)
    changed = copy.deepcopy(plan)
    for _ in range(draw.choice([1, 1, 2])):
        _change_operations(changed, draw)
    return changed


def _blocks(plan: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for gpu in plan["gpus"] if isinstance(plan.get("gpus"), list) else []:
        blocks = gpu.get("threadblocks") if isinstance(gpu, dict) else None
        for block in blocks if isinstance(blocks, list) else []:
            if isinstance(block, dict) and isinstance(block.get("ops"), list) and block["ops"]:
                found.append(block)
    return found


def _change_operations(plan: dict[str, Any], draw: random.Random) -> None:
    """Leave an operation out, do it twice, exchange two, rename one, or move one elsewhere."""
    blocks = _blocks(plan)
    if not blocks:
        return
    operations = draw.choice(blocks)["ops"]
    at = draw.randrange(len(operations))
    kind = draw.randrange(5)
    if kind == 0:
        del operations[at]
    elif kind == 1:
        operations.insert(at, copy.deepcopy(operations[at]))
    elif kind == 2:
        other = draw.randrange(len(operations))
        operations[at], operations[other] = operations[other], operations[at]
    elif kind == 3 and isinstance(operations[at], dict):
        operations[at]["name"] = draw.choice(_NAMES)
    else:
        elsewhere = draw.choice(blocks)["ops"]
        elsewhere.insert(draw.randrange(len(elsewhere) + 1), operations.pop(at))


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of every value of a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            _places(value[key], found)
    return found


def _change_number(plan: dict[str, Any], draw: random.Random) -> None:
    """Make a number one more or one less."""
    numbers = [(where, key) for where, key in _places(plan, []) if type(where[key]) is int]
    if numbers:
        where, key = draw.choice(numbers)
        where[key] += draw.choice([-1, 1])


def _change_value(plan: dict[str, Any], draw: random.Random) -> None:
    """Replace a value by something odd, or leave it out."""
    places = _places(plan, [])
    if not places:
        return
    where, key = draw.choice(places)
    if isinstance(where, dict) and draw.random() < 0.3:
        del where[key]
    else:
        where[key] = draw.choice(_ODD)
