"""JSON lists of tensors, and one clear line for every wrong entry."""

from __future__ import annotations

import pytest
from collhub_reshard.command_options import TensorSides, parse_state_dict

from hub_core.model import InputError


def test_a_state_dict_names_its_tensors_and_their_times() -> None:
    text = b'[{"name": "w", "tensor": "8x8:bfloat16", "from": "mesh(2): S0 R", "count": 2},'
    text += b' {"tensor": "8:int8", "from": "mesh(2): S0", "release_s": 1, "due_s": 2.5}]'
    moves = parse_state_dict(text, "state.json", SIDES)
    assert [move.name for move in moves] == ["w", "w", "tensor 1"]
    assert (moves[2].release_s, moves[2].due_s) == (1.0, 2.5)


SIDES = TensorSides("mesh(2): S0", "mesh(2): ()")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is no JSON"),
        (b"{}", "is no list of tensors"),
        (b"[1]", "entry 0 is no object"),
        (b'[{"tensr": 1}]', "entry 0: there is no member 'tensr'"),
        (b'[{"tensor": 8}]', "entry 0 has no tensor"),
        (b'[{"tensor": "8:int8", "due_s": -1}]', "entry 0: due_s is -1, expected seconds from 0"),
        (b'[{"tensor": "8:int8", "due_s": true}]', "entry 0: due_s is True, expected seconds"),
        (b'[{"tensor": "8:int8", "release_s": null}]', "entry 0: release_s is None, expected"),
        (b'[{"tensor": "8:int8", "release_s": Infinity}]', "release_s is inf, expected seconds"),
        (b'[{"tensor": "8:int8", "due_s": 1' + b"0" * 400 + b"}]", "expected seconds from 0 on"),
        (b'[{"tensor": "8:int8", "count": true}]', "entry 0: count is not in"),
        (b"[" * 100_000, "is no JSON: values are nested too deeply"),
        (b'[{"tensor": "8:int8", "count": 0}]', "count is not in"),
        (b'[{"tensor": "8:int"}]', "entry 0: there is no dtype"),
    ],
)
def test_wrong_state_dicts_name_the_entry(text: bytes, message: str) -> None:
    with pytest.raises(InputError, match=r"state\.json") as caught:
        parse_state_dict(text, "state.json", SIDES)
    assert message in str(caught.value)
