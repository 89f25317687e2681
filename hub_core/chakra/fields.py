"""Checked access to decoded node attributes: every complaint names file, byte and node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core.chakra.attributes import INTEGER_KINDS, INTEGER_LIST_KINDS, Kind
from hub_core.chakra.nodes import NodeType
from hub_core.chakra.records import NodeColumns
from hub_core.chakra.shapes import NO_KIND, WRONG_LENGTH
from hub_core.model.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LARGEST = 1 << 62


def type_name(node_type: int) -> str:
    """The schema's name of a node type."""
    return (
        f"{NodeType(node_type).name}_NODE"
        if node_type in list(NodeType)
        else f"node of unknown type {node_type}"
    )


class NodeFields:
    """The attributes of a batch of nodes with the checks that a reader of algorithms makes."""

    def __init__(self, nodes: NodeColumns) -> None:
        self.nodes = nodes
        self.is_send = nodes.type == NodeType.COMM_SEND
        self.is_receive = nodes.type == NodeType.COMM_RECV
        self.is_message = self.is_send | self.is_receive
        self.is_comp = nodes.type == NodeType.COMP
        self.rank = np.asarray(nodes.batch.ranks, np.int64)[nodes.batch.file_of_node]
        for shape, members in nodes.attributes.groups:
            if name := shape.repeated():
                raise self.fail(
                    int(members.min()),
                    f"the attribute {name!r} stands twice",
                    "duplicate-attribute",
                )

    def fail(self, node: int, message: str, code: str, cure: str = "") -> InputError:
        """An error about one node."""
        subject = f"{type_name(int(self.nodes.type[node]))} {self.nodes.id[node]}"
        return InputError(
            f"{subject}: {message}", location=self.nodes.batch.place(node), code=code, cure=cure
        )

    def refuse(self, bad: Mask, message: str, code: str, cure: str = "") -> None:
        """Raise an error about the first node where `bad` holds, if there is one."""
        if bad.any():
            raise self.fail(int(bad.argmax()), message, code, cure)

    def has(self, name: str) -> Mask:
        """Where the attribute stands, whatever its kind."""
        present: Mask = self.nodes.attributes.kind[name] != NO_KIND
        return present

    def require(self, name: str, where: Mask, cure: str = "") -> None:
        """Refuse the first node of `where` without the attribute."""
        self.refuse(
            where & ~self.has(name), f"the attribute {name} is missing", "missing-attribute", cure
        )

    def numbers(self, name: str, where: Mask, low: int, high: int, default: int) -> Int64Array:
        """An integer attribute, checked in the nodes of `where`; `default` in all others and where it is absent."""
        present = where & self.has(name)
        self._check_kind(name, present, _IS_INTEGER, "an integer")
        values = np.where(present, self.nodes.attributes.values[name], default)
        self._check_range(name, present, values, low, high)
        return values

    def regions(self, name: str, where: Mask) -> Int64Array:
        """A list [buffer, offset, count] a node; [3, 0, 0] where it is absent."""
        present = where & self.has(name)
        wrong = present & (self.nodes.attributes.kind[name] == WRONG_LENGTH)
        self.refuse(
            wrong,
            f"the attribute {name} has not the three entries buffer, offset, count",
            "attribute-kind",
        )
        self._check_kind(name, present, _IS_INTEGER_LIST, "an integer list")
        values = np.where(
            present[:, None], self.nodes.attributes.values[name], np.asarray([3, 0, 0])
        )
        for column, high in ((0, 3), (1, LARGEST), (2, LARGEST)):
            self._check_range(name, present, values[:, column], 0, high)
        return values

    def micros(self) -> Int64Array:
        """The field duration_micros."""
        values = self.nodes.micros
        self._check_range("duration_micros", values != 0, values, 0, LARGEST // 1000)
        return values

    def _check_kind(self, name: str, present: Mask, accepted: Mask, expected: str) -> None:
        kind = self.nodes.attributes.kind[name]
        wrong = present & ~accepted[kind]
        if wrong.any():
            node = int(wrong.argmax())
            message = (
                f"the attribute {name} is of kind {Kind(kind[node]).field}, expected {expected}"
            )
            raise self.fail(node, message, "attribute-kind")

    def _check_range(
        self, name: str, present: Mask, values: Int64Array, low: int, high: int
    ) -> None:
        wrong = present & ((values < low) | (values > high))
        if wrong.any():
            node = int(wrong.argmax())
            raise self.fail(
                node, f"{name} is {values[node]}, expected {low}..{high}", "attribute-range"
            )


def _table(kinds: frozenset[Kind]) -> Mask:
    accepted = np.zeros(256, np.bool_)
    accepted[sorted(kinds)] = True
    return accepted


_IS_INTEGER = _table(INTEGER_KINDS)
_IS_INTEGER_LIST = _table(INTEGER_LIST_KINDS)
