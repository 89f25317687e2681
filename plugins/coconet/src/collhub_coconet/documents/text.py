"""Programs as readable text, and the writers of programs."""

from __future__ import annotations

from collhub_coconet.documents.from_workload import find_program
from collhub_coconet.documents.json_document import bound_to_json, parse_call
from collhub_coconet.program.operations import (
    Kind,
    Operand,
    Operation,
    Reduction,
)
from collhub_coconet.program.program import Program, reduces_scalar
from hub_core.model import Loss, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

# Operator of a kind, and how strongly it binds.
_OPERATORS = {
    Kind.ADD: ("+", 2),
    Kind.SUBTRACT: ("-", 2),
    Kind.MULTIPLY: ("*", 3),
    Kind.DIVIDE: ("/", 3),
    Kind.POWER: ("**", 4),
    Kind.LESS: ("<", 1),
    Kind.GREATER: (">", 1),
    Kind.EQUAL: ("==", 1),
}
_BINDING_OF_CALLS = 5


def statements(program: Program) -> list[str]:
    """Format the statements of a program, such as `s = ReduceScatter(+, g, 0)  [S_0 on 1]`.

    There is one line per operation, in the order of the program. The brackets contain the layout
    of the value, then ` on GROUP` unless the group is 0. `, AllReduce of one scalar` follows if
    the operation reduces slices to a scalar.

    An operation has no line, and its reader shows its expression, if both conditions hold: its name
    begins with `_` and is no output; it is a slice, or its value is read exactly once.
    """
    writer = _ExpressionWriter(program)
    return [
        writer.format_line(operation)
        for operation in program.operations
        if not writer.is_inlined(operation)
    ]


def text(program: Program) -> str:
    """Return a program as text, one item per line, with a line end after the last one.

    The lines are, in this order:

    1. `program NAME`
    2. `mesh AXIS, AXIS`, if the axes of the mesh have names
    3. `argument NAME: TYPE`, or `state NAME: TYPE`, per argument
    4. the statements (`statements`)
    5. `output NAME, NAME` with all outputs
    6. `fuse NAME (FAMILY): MEMBER, MEMBER` per stage
    7. `overlap MEMBER, MEMBER` per chain

    Sizes of symbols are not in the text. Within each kind, the order is that of the program.
    """
    lines = [f"program {program.name}"]
    if program.mesh:
        lines.append(f"mesh {', '.join(program.mesh)}")
    for argument in program.arguments:
        role = "state" if argument.is_state else "argument"
        lines.append(f"{role} {argument.name}: {argument.type}")
    lines.extend(statements(program))
    lines.append(f"output {', '.join(program.outputs)}")
    for stage in program.stages:
        lines.append(f"fuse {stage.name} ({stage.family}): {', '.join(stage.members)}")
    for chain in program.chains:
        lines.append(f"overlap {', '.join(chain.members)}")
    return "\n".join(lines) + "\n"


class _ExpressionWriter:
    """Formats the expressions of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._reads = {
            name: sum(reader.reads.count(name) for reader in readers)
            for name, readers in program.readers.items()
        }

    def is_inlined(self, operation: Operation) -> bool:
        """Return whether an operation is shown within its reader instead of having a line.

        True for an unnamed slice, and for an unnamed operation whose value is read exactly
        once; an operation that reads a value as two operands reads it twice. Operations are
        unnamed if their name begins with `_`. False for outputs of the program.
        """
        if not operation.is_inner or operation.name in self._program.output_names:
            return False
        return operation.kind is Kind.SLICE or self._reads.get(operation.name, 0) == 1

    def format_line(self, operation: Operation) -> str:
        """Format one statement as text, such as `s = ReduceScatter(+, g, 0)  [S_0 on 1]`.

        The brackets contain the layout of the value. Then follow ` on GROUP`, unless the group
        is 0, and `, AllReduce of one scalar` if the operation reduces slices to a scalar.
        """
        kind = self._program.types[operation.name]
        group = f" on {kind.group}" if kind.group else ""
        expression, _ = self._expression(operation)
        note = ", AllReduce of one scalar" if reduces_scalar(self._program, operation) else ""
        return f"{operation.name} = {expression}  [{kind.layout}{group}{note}]"

    def _operand(self, operand: Operand, min_binding: int = 0) -> str:
        """Format an operand: its name or number, or the expression of an inlined operation.

        The expression gets parentheses if its operator binds less than `min_binding` (by default
        never). Arguments, and operations that are not inlined, are given by their names.
        """
        operation = self._program.by_name.get(operand) if isinstance(operand, str) else None
        if operation is None or not self.is_inlined(operation):
            return str(operand)
        expression, binding = self._expression(operation)
        return expression if binding >= min_binding else f"({expression})"

    def _expression(self, operation: Operation) -> tuple[str, int]:
        """Return the expression of an operation as text, and how strongly its operator binds.

        The binding is 1 for comparisons, 2 for `+` and `-`, 3 for `*` and `/`, 4 for `**`, 5 for
        calls. Operands are names, numbers, or inlined expressions. The three forms are:

        - Arithmetic and comparison: infix, `a - (b + c)`. Parentheses are put around operands that
          bind less. An equal binding also gets them on the right, and on the left of `**`.
        - Opaque: a call of its operator, with operands only, such as `aten::relu(x)`.
        - Otherwise: a call of the kind, such as `ReduceScatter(+, g, 0)`. Arguments, without those
          that are None: reduction (`+` for a sum), operands, dimension, root, element type, rate,
          start, count, shape in brackets, counts in parentheses, axes, order, seed, signed offset.
        """
        if operation.kind in _OPERATORS:
            sign, binding = _OPERATORS[operation.kind]
            left = self._operand(operation.operands[0], binding + (operation.kind is Kind.POWER))
            right = self._operand(operation.operands[1], binding + 1)
            return f"{left} {sign} {right}", binding
        parts = [self._operand(operand) for operand in operation.operands]
        if operation.kind is Kind.OPAQUE:
            operator = parse_call(operation).get("operator", operation.kind)
            return f"{operator}({', '.join(parts)})", _BINDING_OF_CALLS
        if operation.reduction is not None:
            is_sum = operation.reduction is Reduction.SUM
            parts.insert(0, "+" if is_sum else operation.reduction)
        for value in (operation.dimension, operation.root, operation.element, operation.rate):
            parts += [] if value is None else [str(value)]
        parts += [] if operation.start is None else [str(operation.start)]
        parts += [] if operation.count is None else [str(operation.count)]
        if operation.shape is not None:
            parts.append(f"[{', '.join(map(str, operation.shape))}]")
        if operation.counts is not None:
            parts.append(f"({', '.join(map(str, operation.counts))})")
        parts += list(operation.axes or ())
        parts += [str(dimension) for dimension in operation.order or ()]
        parts += [] if operation.seed is None else [str(operation.seed)]
        parts += [] if operation.offset is None else [f"{operation.offset:+d}"]
        return f"{operation.kind}({', '.join(parts)})", _BINDING_OF_CALLS


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Write the program of a workload as a JSON document (`collhub/tensor-program-1`).

    It has the sizes of symbols, the ranks and the transformations. Raises `InputError` for a
    workload whose nodes contain no valid program.
    """
    content = bound_to_json(find_program(workload)).encode("ascii")
    return WriteResult((Artifact("", content),))


def lines(workload: Workload) -> list[str]:
    """Return the lines of the program's text, for `collhub inspect`.

    Raises `InputError` for a workload without a program.
    """
    return text(find_program(workload).program).splitlines()


def write_text(workload: Workload, options: NoOptions) -> WriteResult:
    """Write a program as readable text: the lines of `text`, with layouts in brackets.

    They are the heading, the arguments, one line per statement, the outputs and the
    transformations. No reader exists for this format. The loss of the sizes of symbols is
    always reported. Raise `InputError` for a workload whose nodes contain no program.
    """
    content = text(find_program(workload).program).encode()
    # No reader exists for this format.
    losses = [Loss("sizes", "all symbols", "the text has symbols, and is for people")]
    return WriteResult((Artifact("", content),), losses)
