"""Tensors that nodes of Chakra traces state, as its converter of PyTorch traces writes them."""

from __future__ import annotations

import pytest
from collhub_job_traces import OUTPUTS, StatedInput, tensors_of_extra


def field(number: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([number << 3 | 2, len(body)]) + body


def stated(values: str, shapes: str, types: str, number: int = 8) -> str:
    texts = enumerate((values, shapes, types), 1)
    info = b"".join(field(place, text.encode()) for place, text in texts)
    return f"+ ={field(number, info).hex()}"


def test_shapes_types_and_numbers_are_those_of_the_arguments() -> None:
    extra = stated(
        "[[1, 2], [3, 4], 0.5]", "[[16, 8], [8], []]", "['Tensor(float)', 'Tensor(c10::Half)', 'Scalar']"
    )  # fmt: skip
    assert tensors_of_extra(extra) == (
        StatedInput((16, 8), "float32"),
        StatedInput((8,), "float16"),
        StatedInput(None, number=0.5),
    )
    assert tensors_of_extra(extra, OUTPUTS) == ()


def test_outputs_stand_in_a_field_of_their_own() -> None:
    extra = stated("[[1]]", "[[3]]", "['Tensor(long int)']", 9)
    assert tensors_of_extra(extra, OUTPUTS) == (StatedInput((3,), "int64"),)
    assert tensors_of_extra(extra) == ()


@pytest.mark.parametrize(
    "extra",
    ["", "+", "=zz", "=ff", stated("", "", ""), stated("[", "{1: 2}", "['Tensor(float)']")],
)
def test_other_texts_state_nothing(extra: str) -> None:
    assert tensors_of_extra(extra) == ()


def test_lists_of_tensors_and_unknown_types_are_told_apart() -> None:
    extra = stated("[[], []]", "[[[2], [3]], [4]]", "['Tensor(float)', 'Tensor(c10::BFloat16)']")
    assert tensors_of_extra(extra) == (StatedInput((4,), ""),)
