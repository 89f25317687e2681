"""Operands of a typing rule, and the error of a violated rule."""

from __future__ import annotations

from collhub_coconet.program.operations import Operation
from collhub_coconet.program.tensors import REPLICATED, TensorType


class TypingMistakeError(Exception):
    """A condition of a rule that does not hold; `code` names it, `cure` says what to do."""

    def __init__(self, code: str, message: str, cure: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.cure = cure


class Operands:
    """Types of the operands of one operation; numbers have the type None."""

    def __init__(self, operation: Operation, types: list[TensorType | None]) -> None:
        self.operation = operation
        self.all = types
        self.tensors = [found for found in types if found is not None]

    def tensor(self, position: int) -> TensorType:
        """The operand at a position, which must be a tensor."""
        found = self.all[position]
        if found is None:
            message = f"operand {position + 1} is a number, a tensor is expected"
            raise TypingMistakeError("operand", message, "name a value")
        return found

    def name(self, position: int) -> str:
        """The operand at a position as messages call it."""
        return str(self.operation.operands[position])

    def check_float(self, position: int) -> None:
        """Refuse integers and truth values."""
        element = self.tensor(position).element
        if not element.is_float:
            message = f"{self.name(position)} is {element}, a float is expected"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_same_group(self) -> None:
        """Refuse operands that lie on different groups."""
        # Numbers lie on all groups.
        groups = {found.group for found in self.tensors}
        if len(groups) > 1:
            message = f"operands lie on groups {', '.join(map(str, sorted(groups)))}"
            raise TypingMistakeError("group", message, "Send one of them to the other group")

    def check_same_element(self, positions: list[int]) -> None:
        """Refuse tensors of different element types; numbers take the type of the tensors."""
        found = [self.all[position] for position in positions]
        elements = {one.element for one in found if one is not None}
        if len(elements) > 1:
            message = f"element types differ: {' and '.join(sorted(elements))}"
            raise TypingMistakeError("element-type", message, "insert a Cast")


def check_sliceable(found: TensorType, dimension: int, name: str) -> None:
    """Refuse a dimension that a tensor has not, or along which it is broadcast."""
    rank = len(found.shape)
    sizes = ", ".join(map(str, found.shape))
    if not 0 <= dimension < rank:
        message = f"{name}[{sizes}] has no dimension {dimension}"
        cure = f"slice along 0..{rank - 1}" if rank else "a scalar stays replicated"
        raise TypingMistakeError("dimension", message, cure)
    if found.shape[dimension] == 1:
        message = f"{name}[{sizes}] is broadcast along dimension {dimension}, its size is 1"
        raise TypingMistakeError("dimension", message, "leave it replicated")


def scalar_of(found: TensorType) -> TensorType:
    """The type of a reduction to a scalar.

    Of a slice: after the all-reduce of one scalar, replicated.
    """
    layout = REPLICATED if found.layout.is_sliced else found.layout
    return TensorType(found.element, (), layout, found.group)
