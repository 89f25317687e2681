"""Attributes and dependencies of decoded nodes, checked: every error names file, byte and node.

Ids in dependencies become positions of nodes; repeated and missing ids are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hub_core.chakra.nodes import (
    INTEGER_KINDS,
    INTEGER_LIST_KINDS,
    LARGEST,
    AttributeKind,
    NodeType,
    TraceError,
    type_name,
)
from hub_core.chakra.records import Batch, DecodedNodes, Dependencies
from hub_core.chakra.shapes import NO_KIND, WRONG_LENGTH
from hub_core.columns import BoolArray, Int64Array, UInt64Array, distinct, group_of_entry, rows_of


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

    def __init__(self, nodes: DecodedNodes) -> None:
        """Store the masks of node kinds (send, receive, computation) and the rank of every node.

        Raises `TraceError` (`duplicate-attribute`) if an attribute occurs twice in a node. The
        error names the first node of the first shape (set of records with equal layout) with such
        an attribute.
        """
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
                message = f"the attribute {name!r} occurs twice"
                raise self.fail(int(members.min()), message, "duplicate-attribute")

    def fail(self, node: int, message: str, code: str, cure: str = "") -> TraceError:
        """Create an error about the node in row `node`, which the caller raises.

        Its message begins with the type and id of the node; its location is the node's file, byte
        and rank.
        """
        subject = f"{type_name(int(self.nodes.type[node]))} {self.nodes.id[node]}"
        return self.nodes.batch.error_at(node, f"{subject}: {message}", code, cure)

    def refuse(self, bad: BoolArray, message: str, code: str) -> None:
        """Raise `TraceError` about the first node for which `bad` is True, if there is one."""
        if bad.any():
            raise self.fail(int(bad.argmax()), message, code)

    def has(self, name: str) -> BoolArray:
        """Return bool[nodes]: True for the nodes that have a value of the attribute, of any kind.

        An attribute without a value counts as absent. Raises `KeyError` for a name that the
        `ShapeBook` does not decode.
        """
        present: BoolArray = self.nodes.attributes.kind[name] != NO_KIND
        return present

    def require(self, name: str, where: BoolArray) -> None:
        """Raise `TraceError` (`missing-attribute`) for the first node without the attribute.

        Only the nodes for which `where` is True are checked, in row order. A value of any kind
        suffices. Raises `KeyError` for a name that the `ShapeBook` does not decode.
        """
        # The kind is checked when the value is read.
        message = f"the attribute {name} is missing"
        self.refuse(where & ~self.has(name), message, "missing-attribute")

    def numbers(self, name: str, where: BoolArray, low: int, high: int, default: int) -> Int64Array:
        """Return an integer attribute of every node (int64), checked in the nodes of `where`.

        The value is `default` in nodes outside `where` and in nodes without the attribute;
        `default` is not checked. Raises `TraceError` for the first present value in `where` of
        another kind (`attribute-kind`), then for the first one outside `low`..`high`, both included
        (`attribute-range`). Raises `KeyError` for a name that the `ShapeBook` does not decode.
        """
        present = where & self.has(name)
        # The kind is checked first, because other kinds have no integer value.
        self._check_kind(name, present, _IS_INTEGER, "an integer")
        values = np.where(present, self.nodes.attributes.values[name], default)
        self._check_range(name, present, values, low, high)
        return values

    def triple(self, name: str, where: BoolArray, form: Triple) -> tuple[Int64Array, ...]:
        """Return the three columns (int64 by node) of an attribute that is a list of 3 integers.

        Nodes without the attribute, and nodes outside `where`, get the value `form.absent[k]` in
        column k. Only nodes in `where` that have the attribute are checked. These checks are made
        in order, each for all nodes; the first that fails raises `TraceError` at its first node:

        - The list has 3 entries (`attribute-kind`).
        - The value is a list of integers (`attribute-kind`).
        - Entry k is in 0..`form.highest[k]`, for k = 0, 1, 2 (`attribute-range`).
        """
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
        """Return the field duration_micros of every node in microseconds (int64), 0 if absent.

        Raises `TraceError` (`attribute-range`) for a negative value, and for one above `LARGEST //
        1000`, because its nanoseconds would exceed `LARGEST`.
        """
        values = self.nodes.micros
        self._check_range("duration_micros", values != 0, values, 0, LARGEST // 1000)
        return values

    def _check_kind(
        self, name: str, present: BoolArray, accepted: BoolArray, expected: str
    ) -> None:
        """Raise `TraceError` (`attribute-kind`) for the first node whose value has a wrong kind.

        The kind of a value is its `AttributeKind`, the number of its field in the trace format.
        `present`: bool[nodes], the nodes to check; each must have the attribute `name`.
        `accepted`: bool[256], True at the number of each accepted kind. `expected`: the
        accepted kinds in words, for the message.
        """
        kind = self.nodes.attributes.kind[name]
        # Absent attributes have kind 0, which is never accepted, so they are excluded.
        wrong = present & ~accepted[kind]
        if wrong.any():
            node = int(wrong.argmax())
            kind_name = AttributeKind(kind[node]).field
            message = f"the attribute {name} is of kind {kind_name}, expected {expected}"
            raise self.fail(node, message, "attribute-kind")

    def _check_range(
        self, name: str, present: BoolArray, values: Int64Array, low: int, high: int
    ) -> None:
        """Raise `TraceError` for the first present value outside `low..high` (both allowed).

        The code is `attribute-range`, at the node. Values of absent attributes are not checked.
        """
        # Values of absent attributes are defaults, which may be outside.
        wrong = present & ((values < low) | (values > high))
        if wrong.any():
            node = int(wrong.argmax())
            message = f"{name} is {values[node]}, expected {low}..{high}"
            raise self.fail(node, message, "attribute-range")


@dataclass(frozen=True, slots=True)
class Edges:
    """Dependencies between nodes by position, ordered by child, then as listed in the file."""

    parents: Int64Array
    children: Int64Array

    def only(self, is_selected: BoolArray) -> Edges:
        """Return the edges for which `is_selected` is True, in order; this object if all are."""
        return (
            self
            if is_selected.all()
            else Edges(self.parents[is_selected], self.children[is_selected])
        )


@dataclass(frozen=True, slots=True)
class ResolvedLinks:
    """Dependencies of a batch, the number of dropped ones, and files with an irregular form.

    `irregular`: bool per file; the ids are not 0..k-1 in file order, a dependency points forward,
    or a list of dependencies is not ascending.
    """

    data: Edges
    control: Edges
    dropped: int
    irregular: BoolArray


def link(nodes: DecodedNodes, drop_dangling: bool) -> ResolvedLinks:
    """Resolve the ids in the dependencies of a batch to rows of nodes in the batch.

    Parents are searched in the file of the child. Edges are ordered by child, then as
    listed in the file. With `drop_dangling`, dependencies on missing nodes are dropped and
    counted (data and control together).

    The result also marks irregular files (bool per file). A file is regular if its ids are
    0..k-1 in order, and if for each kind of dependency the parents of every node, in the
    order of the file, are strictly ascending and precede the node. Dropped dependencies do
    not make a file irregular.

    Raise `TraceError` for the first of these defects: an id that occurs twice in a file
    (`duplicate-id`); without `drop_dangling`, the first data dependency on a missing node,
    then the first such control dependency (`dangling-dependency`).
    """
    index = _Index(nodes.batch, nodes.id)
    data, lost_data = index.resolve(nodes.data, drop_dangling)
    control, lost_control = index.resolve(nodes.control, drop_dangling)
    irregular = ~index.is_plain
    for edges in (data, control):
        is_odd = edges.parents >= edges.children
        # Also irregular: a repeated parent, and a later parent before an earlier one.
        same_child = edges.children[1:] == edges.children[:-1]
        is_odd[1:] |= same_child & (edges.parents[1:] <= edges.parents[:-1])
        irregular[nodes.batch.file_of_node[edges.children[is_odd]]] = True
    return ResolvedLinks(data, control, lost_data + lost_control, irregular)


def _create_mask(kinds: Iterable[AttributeKind]) -> BoolArray:
    """Return bool[256], True at the numbers of `kinds`, types of attribute values.

    Indexed by a column of kind numbers (uint8), it gives the nodes of an accepted kind. It
    is all False if `kinds` is empty.
    """
    accepted = np.zeros(256, np.bool_)
    accepted[sorted(kinds)] = True
    return accepted


_IS_INTEGER = _create_mask(INTEGER_KINDS)


_IS_INTEGER_LIST = _create_mask(INTEGER_LIST_KINDS)


class _Index:
    """Positions of nodes by file and id; `is_plain`: bool per file, ids are 0..k-1 in order."""

    def __init__(self, batch: Batch, ids: UInt64Array) -> None:
        self._batch, self._ids = batch, ids
        self._first = batch.file_indptr[:-1]
        self._sizes = np.diff(batch.file_indptr)
        plain_ids = np.arange(len(batch)) - self._first[batch.file_of_node]
        self.is_plain = np.ones(len(self._first), np.bool_)
        self.is_plain[batch.file_of_node[ids != plain_ids.astype(np.uint64)]] = False
        if self.is_plain.all():
            return
        # All nodes of the batch, sorted by (file, id) for binary searches.
        self._distinct = distinct(self._ids)
        keys = self._build_keys(batch.file_of_node, self._ids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._order]
        doubled = np.flatnonzero(self._sorted_keys[1:] == self._sorted_keys[:-1])
        if len(doubled):
            node = int(self._order[doubled[0] + 1])
            message = f"a second node has id {self._ids[node]}"
            raise batch.error_at(node, message, "duplicate-id")

    def _build_keys(self, file: Int64Array, ids: UInt64Array) -> Int64Array:
        """Combine the file number and the node id of every entry to one key (int64).

        Different pairs have different keys, ordered by file, then id. The key is -1 for an id
        that no node of the batch has, in any file. Needs `_distinct`, which is set first.
        """
        number = rows_of(ids, self._distinct)
        return np.where(number >= 0, file * len(self._distinct) + number, -1)

    def resolve(self, dependencies: Dependencies, drop_dangling: bool) -> tuple[Edges, int]:
        """Return the edges of one kind of dependencies, and the number of dropped dependencies.

        An edge is (row of the parent, row of the child) in the batch, in the order of
        `dependencies`. Parents are searched in the child's file only. With `drop_dangling`,
        dependencies on missing nodes are left out and counted; otherwise the first one raises
        `TraceError` (`dangling-dependency`) at the child, whose message also has the number of such
        dependencies in the batch if there are more.
        """
        children = group_of_entry(dependencies.indptr)
        file = self._batch.file_of_node[children]
        if self.is_plain.all():
            # The common case needs no search: the id is the position in the file.
            exists: BoolArray = dependencies.ids < self._sizes[file].astype(np.uint64)
            position = self._first[file] + np.where(exists, dependencies.ids, 0).astype(np.int64)
        else:
            sorted_position = rows_of(self._build_keys(file, dependencies.ids), self._sorted_keys)
            position, exists = self._order[sorted_position], sorted_position >= 0
        # The error names the first one and counts the others.
        lost = np.flatnonzero(~exists)
        if len(lost) and not drop_dangling:
            child, parent_id = int(children[lost[0]]), int(dependencies.ids[lost[0]])
            more = f" ({len(lost)} such dependencies here)" if len(lost) > 1 else ""
            node = f"node {self._ids[child]} depends on node {parent_id}"
            cure = "read with the option drop_dangling to leave such dependencies out"
            message = f"{node}, which is not in the file{more}"
            raise self._batch.error_at(child, message, "dangling-dependency", cure)
        return Edges(position, children).only(exists), len(lost)
