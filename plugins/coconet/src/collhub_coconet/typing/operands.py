"""Operands of a typing rule, and the error of a violated rule."""

from __future__ import annotations

from collhub_coconet.program.operations import Operation
from collhub_coconet.program.tensors import REPLICATED, TensorType


class TypingMistakeError(Exception):
    """Violation of a typing rule: `code` names the rule, `cure` the remedy.

    The rule knows the operands of an operation but not its position in the program.
    """

    def __init__(self, code: str, message: str, cure: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.cure = cure


class Operands:
    """Operands of one operation with their types; the type of a number is None."""

    def __init__(self, operation: Operation, types: list[TensorType | None]) -> None:
        self.operation = operation
        self.all = types
        self.tensors = [tensor for tensor in types if tensor is not None]

    def tensor(self, position: int) -> TensorType:
        """Return the type of the operand at a position, which must be a tensor."""
        tensor = self.all[position]
        if tensor is None:
            message = f"operand {position + 1} is a number, a tensor is expected"
            raise TypingMistakeError("operand", message, "name a value")
        return tensor

    def name(self, position: int) -> str:
        """Format the operand at a position for messages."""
        return str(self.operation.operands[position])

    def check_float(self, position: int) -> None:
        """Refuse integers and bool."""
        element = self.tensor(position).element
        if not element.is_float:
            message = f"{self.name(position)} is {element}, a float is expected"
            raise TypingMistakeError("element-type", message, "insert a Cast")

    def check_same_group(self) -> None:
        """Refuse tensors on different groups."""
        groups = {tensor.group for tensor in self.tensors}
        if len(groups) > 1:
            message = f"operands lie on groups {', '.join(map(str, sorted(groups)))}"
            raise TypingMistakeError("group", message, "Send one of them to the other group")

    def check_same_element(self, positions: list[int]) -> None:
        """Refuse tensors of different element types; numbers adopt the type of the tensors."""
        operands = [self.all[position] for position in positions]
        elements = {operand.element for operand in operands if operand is not None}
        if len(elements) > 1:
            message = f"element types differ: {' and '.join(sorted(elements))}"
            raise TypingMistakeError("element-type", message, "insert a Cast")


def check_sliceable(tensor: TensorType, dimension: int, name: str) -> None:
    """Refuse a dimension that a tensor does not have, or along which it is broadcast."""
    rank = len(tensor.shape)
    sizes = ", ".join(map(str, tensor.shape))
    if not 0 <= dimension < rank:
        message = f"{name}[{sizes}] has no dimension {dimension}"
        cure = f"slice along 0..{rank - 1}" if rank else "a scalar stays replicated"
        raise TypingMistakeError("dimension", message, cure)
    if tensor.shape[dimension] == 1:
        message = f"{name}[{sizes}] is broadcast along dimension {dimension}, its size is 1"
        raise TypingMistakeError("dimension", message, "leave it replicated")


def type_scalar(tensor: TensorType) -> TensorType:
    """Type the reduction of a tensor to a scalar.

    That of a sliced tensor is replicated, since an all-reduce of one scalar follows.
    """
    layout = REPLICATED if tensor.layout.is_sliced else tensor.layout
    return TensorType(tensor.element, (), layout, tensor.group)
