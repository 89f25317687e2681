"""Checked access to decoded node attributes: every error names file, byte and node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hub_core.chakra.nodes import (
    INTEGER_KINDS,
    INTEGER_LIST_KINDS,
    LARGEST,
    Kind,
    NodeType,
    TraceError,
    type_name,
)
from hub_core.chakra.records import NodeColumns
from hub_core.chakra.shapes import NO_KIND, WRONG_LENGTH
from hub_core.columns import BoolArray, Int64Array


@dataclass(frozen=True, slots=True)
class Triple:
    """Description of a list of three integers.

    `entries`: their names; `highest`: their maximum values; `absent`: values for nodes without the
    list.
    """

    entries: tuple[str, str, str]
    highest: tuple[int, int, int]
    absent: tuple[int, int, int]


class NodeFields:
    """Attributes of a batch of nodes, with the checks of a reader of algorithms.

    `is_send`, `is_receive`, `is_message`, `is_comp`: bool per node; `rank`: int64 per node.
    """

    def __init__(self, nodes: NodeColumns) -> None:
        """Raise `TraceError` for an attribute that occurs twice in a node."""
        self.nodes = nodes
        self.is_send = nodes.type == NodeType.COMM_SEND
        self.is_receive = nodes.type == NodeType.COMM_RECV
        self.is_message = self.is_send | self.is_receive
        self.is_comp = nodes.type == NodeType.COMP
        self.everywhere = np.ones(len(nodes.type), np.bool_)
        self.rank = np.asarray(nodes.batch.ranks, np.int64)[nodes.batch.file_of_node]
        # All nodes of a shape have the same names, so each shape is checked once.
        for shape, members in nodes.attributes.groups:
            if name := shape.repeated():
                message = f"the attribute {name!r} stands twice"
                raise self.fail(int(members.min()), message, "duplicate-attribute")

    def fail(self, node: int, message: str, code: str, cure: str = "") -> TraceError:
        """Create an error about one node."""
        subject = f"{type_name(int(self.nodes.type[node]))} {self.nodes.id[node]}"
        return self.nodes.batch.error_at(node, f"{subject}: {message}", code, cure)

    def refuse(self, bad: BoolArray, message: str, code: str) -> None:
        """Raise an error about the first node for which `bad` is True, if there is one."""
        if bad.any():
            raise self.fail(int(bad.argmax()), message, code)

    def has(self, name: str) -> BoolArray:
        """Return which nodes have the attribute, of any kind."""
        present: BoolArray = self.nodes.attributes.kind[name] != NO_KIND
        return present

    def require(self, name: str, where: BoolArray) -> None:
        """Refuse the first node of `where` without the attribute."""
        # The kind is checked when the value is read.
        message = f"the attribute {name} is missing"
        self.refuse(where & ~self.has(name), message, "missing-attribute")

    def numbers(self, name: str, where: BoolArray, low: int, high: int, default: int) -> Int64Array:
        """Return an integer attribute, checked in the nodes of `where`.

        The value is `default` in all other nodes, and if the attribute is absent.
        """
        present = where & self.has(name)
        # The kind is checked first, because other kinds have no integer value.
        self._check_kind(name, present, _IS_INTEGER, "an integer")
        values = np.where(present, self.nodes.attributes.values[name], default)
        self._check_range(name, present, values, low, high)
        return values

    def triple(self, name: str, where: BoolArray, form: Triple) -> tuple[Int64Array, ...]:
        """Return the columns of a list of three integers, checked in the nodes of `where`."""
        present = where & self.has(name)
        wrong = present & (self.nodes.attributes.kind[name] == WRONG_LENGTH)
        message = f"the attribute {name} has not the three entries {', '.join(form.entries)}"
        self.refuse(wrong, message, "attribute-kind")
        self._check_kind(name, present, _IS_INTEGER_LIST, "an integer list")
        columns = []
        for entry, (high, absent) in enumerate(zip(form.highest, form.absent, strict=True)):
            values = self.nodes.attributes.values[f"{name}.{entry}"]
            columns.append(np.where(present, values, absent))
            self._check_range(name, present, columns[-1], 0, high)
        return tuple(columns)

    def micros(self) -> Int64Array:
        """Return the field duration_micros, checked."""
        values = self.nodes.micros
        self._check_range("duration_micros", values != 0, values, 0, LARGEST // 1000)
        return values

    def _check_kind(
        self, name: str, present: BoolArray, accepted: BoolArray, expected: str
    ) -> None:
        """Refuse the first value of a kind that is not accepted."""
        kind = self.nodes.attributes.kind[name]
        # Absent attributes have kind 0, which is never accepted, so they are excluded.
        wrong = present & ~accepted[kind]
        if wrong.any():
            node = int(wrong.argmax())
            kind_name = Kind(kind[node]).field
            message = f"the attribute {name} is of kind {kind_name}, expected {expected}"
            raise self.fail(node, message, "attribute-kind")

    def _check_range(
        self, name: str, present: BoolArray, values: Int64Array, low: int, high: int
    ) -> None:
        """Refuse the first value outside `low..high`."""
        # Values of absent attributes are defaults, which may be outside.
        wrong = present & ((values < low) | (values > high))
        if wrong.any():
            node = int(wrong.argmax())
            message = f"{name} is {values[node]}, expected {low}..{high}"
            raise self.fail(node, message, "attribute-range")


def _create_mask(kinds: Iterable[Kind]) -> BoolArray:
    """Convert kinds to a mask that is indexed by a column of kinds (bytes)."""
    accepted = np.zeros(256, np.bool_)
    accepted[sorted(kinds)] = True
    return accepted


_IS_INTEGER = _create_mask(INTEGER_KINDS)
_IS_INTEGER_LIST = _create_mask(INTEGER_LIST_KINDS)
