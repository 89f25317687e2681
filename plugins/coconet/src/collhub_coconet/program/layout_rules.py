"""Layout rules of all operations as one table, and its application to every axis of a mesh.

An operation is typed axis by axis. On one axis, each operand has a symbol: R replicated, L local,
S(role) sliced along a dimension with this role in the operation, P(op) partial with the operator of
the operation, P(sum) and so on partial with another operator, P(any) any of them, @ the value of
one root. A number counts as R. A combination that is not in the table is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from collhub_coconet.program.operations import (
    ARITHMETIC,
    COMPARISONS,
    CONTRACTIONS,
    LOCAL,
    REDUCTIONS_TO_SCALARS,
    REPLICATED,
    UNARY,
    Kind,
    Layout,
    Operation,
    Placement,
    Reduction,
    at_root,
    partial,
    sliced,
)

TABLE = """
AllReduce      L -> R               P(op) -> R
ReduceScatter  L -> S(to)           P(op) -> S(to)
AllGather      S(any) -> R
AllToAll       S(any) -> S(to)
AllToAllV      L -> L
AllGatherV     L -> R
ReduceScatterV L -> L               P(op) -> L
Slice          R -> S(to)
Broadcast      L -> R               R -> R               @ -> R
Reduce         L -> @               R -> @               P(op) -> @
Send           R -> R               L -> L               S(dim) -> S(dim)     P(any) -> P(any)
Send           @ -> @
Update         R, R -> R            S(dim), S(dim) -> S(dim)                  @, @ -> @

pointwise      R -> R               L -> L               S(dim) -> S(dim)
pointwise      R, R -> R            L, L -> L            L, R -> L            R, L -> L
pointwise      S(dim), S(dim) -> S(dim)      S(dim), R -> S(dim)      R, S(dim) -> S(dim)
Add            P(sum), P(sum) -> P(sum)
Subtract       P(sum), P(sum) -> P(sum)
Multiply       P(sum), R -> P(sum)           R, P(sum) -> P(sum)
Divide         P(sum), R -> P(sum)
Cast           P(any) -> P(any)
Index          R -> R               L -> R               S(dim) -> S(dim)     P(any) -> R

contraction    R, R -> R            S(row), R -> S(row)  R, S(free) -> S(free)
contraction    S(sum), S(sum) -> P(sum)      S(batch), S(batch) -> S(batch)
contraction    L, R -> L            R, L -> L            L, L -> L
contraction    P(sum), R -> P(sum)           R, P(sum) -> P(sum)

to scalar      R -> R               L -> L               S(dim) -> R
Sum            P(sum) -> P(sum)
Max            P(max) -> P(max)
RowReduce      R -> R               L -> L               S(kept) -> S(kept)
RowReduce      S(reduced) -> P(op)           P(op) -> P(op)
ArgMax         R -> R               L -> L               S(kept) -> S(kept)
TopValues      R -> R               L -> L               S(kept) -> S(kept)
TopIndices     R -> R               L -> L               S(kept) -> S(kept)

Transpose      R -> R               L -> L               S(dim) -> S(dim)     P(any) -> P(any)
Permute        R -> R               L -> L               S(dim) -> S(dim)     P(any) -> P(any)
Reshape        R -> R               L -> L               S(dim) -> S(dim)     P(any) -> P(any)
Part           R -> R               L -> L               S(kept) -> S(kept)   P(any) -> P(any)
Concat         R, R -> R            L, L -> L            L, R -> L            R, L -> L
Concat         S(kept), S(kept) -> S(kept)               P(any), P(any) -> P(any)
Concat         R -> R    L -> L    S(kept) -> S(kept)    P(any) -> P(any)
Gather         R, R -> R            S(rows), R -> P(sum)          S(width), R -> S(width)
Gather         R, S(ids) -> S(ids)  L, R -> L            R, L -> L            L, L -> L
Gather         P(sum), R -> P(sum)
Scatter        R, R -> R            S(ids), S(ids) -> P(sum)      R, S(width) -> S(width)
Scatter        R, P(sum) -> P(sum)  L, R -> L            R, L -> L            L, L -> L
"""
"""Rows: a kind, or a class of kinds, and for each permitted combination the layout of the result.

Communications are typed on the axes of the operation; on other axes their layout remains. `to` is
the dimension that the operation names, `dim` any dimension, `kept` one that the operation does not
reduce. A Gather from sliced rows gives zeros for the rows of other ranks, hence partial sums. In a
program without named axes, partial sums of contractions are written L, which may be read freely.
"""

_CLASSES = {
    "pointwise": sorted({*ARITHMETIC, *COMPARISONS, *UNARY, Kind.SELECT}),
    "contraction": sorted(CONTRACTIONS),
    "to scalar": sorted(REDUCTIONS_TO_SCALARS),
}
_NAME_WIDTH = 15

Role = tuple[str, int]
"""Role of a dimension in an operation, such as `sum` or `row`, and its number."""

Symbols = tuple[str, ...]


def _parse_table(table: str) -> dict[tuple[Kind, Symbols], str]:
    """Parse the text of a table to the symbol of the result by (kind, symbols of the operands).

    A line begins with a kind or the name of a class of kinds (the first `_NAME_WIDTH` characters);
    its entries `a, b -> c` are separated by at least two blanks. An entry of a class gives one rule
    per kind. An entry with `P(any)` gives one rule per reduction, which replaces `any` in all its
    symbols. A later entry replaces an earlier one with the same key. Raises `ValueError` for an
    unknown name.
    """
    rules: dict[tuple[Kind, Symbols], str] = {}
    for line in filter(None, table.splitlines()):
        name = line[:_NAME_WIDTH].strip()
        kinds = _CLASSES.get(name) or [Kind(name)]
        # Entries are separated by two blanks or more.
        for entry in filter(None, map(str.strip, line[_NAME_WIDTH:].split("  "))):
            operands, _, result = entry.partition(" -> ")
            operators = tuple(Reduction) if "P(any)" in entry else (Reduction.SUM,)
            for operator in operators:
                symbols, symbol = (
                    part.replace("P(any)", f"P({operator})") for part in (operands, result)
                )
                for kind in kinds:
                    rules[kind, tuple(symbols.split(", "))] = symbol
    return rules


RULES = _parse_table(TABLE)


@cache
def number_roles(name: str, count: int) -> tuple[Role, ...]:
    """Return a role (`name`, distance from the end) for each of `count` dimensions.

    The last dimension has the distance 1.
    """
    return tuple((name, count - index) for index in range(count))


def permitted_symbols(kind: Kind) -> list[str]:
    """Return the symbols of single operands that the table permits for a kind, in its order."""
    return [symbols[0] for rule, symbols in RULES if rule is kind and len(symbols) == 1]


@cache
def find_axis_layout(
    operation: tuple[Kind, Reduction | None, int | None, int | None],
    layouts: tuple[Layout, ...],
    roles: tuple[tuple[Role, ...], ...],
    result: tuple[Role, ...],
) -> Layout | None:
    """Return the layout of a result on one axis of a mesh, or None if no rule permits it.

    `operation`: kind, reduction, dimension, root. `roles`, `result`: role of each dimension of the
    operands and of the result; its first item is its name. `RULES` maps the kind and the symbols of
    the operands to that of the result, otherwise None. Symbols of operands: `S(name)` sliced along
    a dimension with this name; `@` on a root, if the operation has no root or the same one, else `@
    elsewhere`; `P(op)` partial by the operation's reduction; else its text: `P(sum)`, `R`, `L`.

    Symbols of the result: `S(to)` sliced along the operation's dimension (None: 0); other `S(...)`
    along the first dimension with the role of the sliced operands, None if there is none; `P(op)`
    by the operation's reduction; `@` on its root (without one, the layout of the first operand);
    else its text. None if operands are sliced along different roles.
    """
    kind, reduction, dimension, root = operation
    symbols, sliced_roles = [], set[Role]()
    for layout, roles_of_operand in zip(layouts, roles, strict=True):
        if layout.is_sliced:
            role = roles_of_operand[layout.dimension]
            sliced_roles.add(role)
            symbols.append(f"S({role[0]})")
        elif layout.placement is Placement.ROOT:
            symbols.append("@" if root is None or layout.root == root else "@ elsewhere")
        elif layout.reduction is not None and layout.reduction is reduction:
            symbols.append("P(op)")
        else:
            symbols.append(str(layout))
    symbol = RULES.get((kind, tuple(symbols)))
    if symbol is None or len(sliced_roles) > 1:
        return None
    if symbol.startswith("S("):
        name = symbol[2:-1]
        if name == "to":
            return sliced(dimension or 0)
        (role,) = sliced_roles
        return sliced(result.index(role)) if role in result else None
    if symbol.startswith("P("):
        operator = reduction if symbol == "P(op)" else Reduction(symbol[2:-1])
        return partial(str(operator))
    if symbol == "@":
        return at_root(root or 0) if root is not None else layouts[0]
    return LOCAL if symbol == "L" else REPLICATED


def find_axes(operation: Operation, mesh: Sequence[str]) -> tuple[int, ...]:
    """Return the positions in the mesh of the axes of a communication, ascending.

    An operation that names no axis (None) communicates along axis 0 of a mesh of one axis, and
    also without a mesh. Raises `KeyError` with the name of an axis that the mesh does not have
    or that occurs twice, and with "" if no axis is named although the mesh has several.
    """
    if operation.axes is None:
        if len(mesh) > 1:
            raise KeyError("")
        return (0,)
    positions = []
    for name in operation.axes:
        if name not in mesh or mesh.index(name) in positions:
            raise KeyError(name)
        positions.append(mesh.index(name))
    return tuple(sorted(positions))
