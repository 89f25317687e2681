"""Programs as JSON documents, with or without sizes and histories; canonical hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from collhub_coconet.program.operations import (
    ATTRIBUTES,
    REPLICATED,
    Argument,
    Binding,
    ElementType,
    Kind,
    Layout,
    LayoutRule,
    Operation,
    Placement,
    Reduction,
    TensorType,
    at_root,
    on_mesh,
    partial,
    sliced,
)
from collhub_coconet.program.program import Chain, Program, Stage, check_binding
from collhub_coconet.program.uneven_rows import read_counts
from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, JsonValue, Location

SCHEMA = "collhub/tensor-program-1"
_SCHEMA_FILE = "tensor-program-1.json"

_NAME = re.compile("^[A-Za-z_][A-Za-z0-9_]*$")
"""Pattern of a name in the schema."""

Fields = Mapping[str, Any]
"""Part of a document that conforms to the schema."""

History = tuple[Mapping[str, JsonValue], ...]
"""Legality records of the transformations of a program, in order of application."""


CAPTURE = "capture"
"""Name of the record of a program that was captured on a fixed number of ranks."""


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """Program with the sizes of its workload, and the history of its transformations."""

    program: Program
    binding: Binding
    history: History = ()

    def check_ranks(self, num_ranks: int) -> None:
        """Raise `InputError` if the program was captured on another number of ranks.

        The graph of one rank has the sizes of its blocks and divisors such as that of an average.
        """
        for record in self.history:
            # Histories of traces have no schema.
            is_capture = isinstance(record, dict) and record.get("transformation") == CAPTURE
            captured = record.get("num_ranks") if is_capture else num_ranks
            if captured != num_ranks:
                message = f"the program was captured on {captured} ranks, not {num_ranks}"
                cure = f"choose a network of {captured} ranks, or capture it on {num_ranks}"
                location = Location(self.program.name)
                raise InputError(message, location=location, cure=cure, code="ranks")


def program_to_json(program: Program, more: Fields | None = None) -> str:
    """Format a program as a JSON document in ASCII that ends with a newline.

    The fields are, in this order: `schema`, `name`, `sizes` ([lowest, highest] by symbol), `mesh`
    (names of the axes, only if the program has some), `arguments`, `operations`, `outputs`,
    `stages`, `chains`, and all fields of `more` in its order, without a check. `more` is usually
    `bound`, `num_ranks` and `transformations`; None adds nothing. All entries are in the order of
    the program, also the symbols. Arguments, operations, stages and chains have one line per entry;
    an empty list is `[]`. Raises `ValueError` if an argument's layout has another number of axes
    than the mesh.
    """
    parts = [f'  "schema": {json.dumps(SCHEMA)}', f'  "name": {json.dumps(program.name)}']
    sizes = {name: list(bounds) for name, bounds in program.sizes.items()}
    parts.append(f'  "sizes": {json.dumps(sizes)}')
    if program.mesh:
        parts.append(f'  "mesh": {json.dumps(program.mesh)}')
    arguments = [argument_fields(argument, program.mesh) for argument in program.arguments]
    parts.append(_format_rows("arguments", arguments))
    parts.append(_format_rows("operations", map(operation_fields, program.operations)))
    parts.append(f'  "outputs": {json.dumps(program.outputs)}')
    for name, rows in stage_fields(program).items():
        parts.append(_format_rows(name, rows))
    parts += [f'  "{name}": {json.dumps(value)}' for name, value in (more or {}).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def program_from_json(content: str | bytes, file: str = "program") -> Program:
    """Parse the JSON document of a program.

    `file`: its name, for messages. Raise `InputError` with the line for a syntax error or a
    repeated key. For a document that violates the schema, it has one finding (`schema`)
    with the `$.path` per violation. For a violation of the typing rules it names the
    operation, the condition and the cure. It is also raised for unknown axes and invalid
    stages.
    """
    document = parse_json_object(content.encode() if isinstance(content, str) else content, file)
    return parse_program(document, file)


def parse_program(document: Fields, file: str) -> Program:
    """Create a program from a parsed JSON document.

    `file`: its name, for messages. Raises `InputError` for the first of these that applies:

    1. violations of the schema (`schema`): all are reported, each with its `$.path` in
       `document` and without a line number
    2. a layout of an argument on an axis that the mesh lacks (`axis`)
    3. violations of the rules of names and types (`type_program`)
    4. the first mistake in the stages and chains (`stage`)
    """
    # Checked first, so that the types of all fields are known below.
    violations = schema_violations(_shorten(document), _SCHEMA_FILE)
    if violations:
        # Paths and messages are those of the complete document.
        violations = schema_violations(document, _SCHEMA_FILE)
        location = Location(file)
        raise InputError([violation.finding(location, "schema") for violation in violations])
    sizes = {name: (low, high) for name, (low, high) in document["sizes"].items()}
    stages = (
        Stage(stage["name"], stage["family"], tuple(stage["members"]))
        for stage in document.get("stages", ())
    )
    chains = (
        Chain(tuple(chain["members"]), tuple(chain["dimensions"]))
        for chain in document.get("chains", ())
    )
    mesh = tuple(document.get("mesh", ()))
    return Program(
        document["name"],
        sizes,
        tuple(_create_argument(row, mesh) for row in document["arguments"]),
        tuple(map(_create_operation, document["operations"])),
        tuple(document["outputs"]),
        tuple(stages),
        tuple(chains),
        mesh,
    )


def _shorten(document: Fields) -> Fields:
    """Copy a document, with a single row for all rows that differ in valid names only.

    In the lists `arguments`, `operations` and `stages`, every row is replaced by its form
    (`_shorten_row`), and of equal forms only one remains, at the position of the first. In the list
    `outputs`, valid names are replaced by a single `x` (`_shorten_names`). Other fields, also
    `chains`, and fields of these names that are no lists, are kept. `document` is not changed.

    The copy conforms to the schema if and only if the document does. So checking thousands of
    similar rows takes the time of one.
    """
    short = dict(document)
    for table in ("arguments", "operations", "stages"):
        rows = document.get(table)
        if isinstance(rows, list):
            short[table] = list({repr(row): row for row in map(_shorten_row, rows)}.values())
    if isinstance(names := document.get("outputs"), list):
        short["outputs"] = _shorten_names(names)
    return short


def _shorten_row(row: object) -> object:
    """Copy a row of a document with names replaced by `x`, so that rows can be compared by form.

    A valid `name` becomes `x`. In the list `members`, the first valid name becomes `x`, and all
    further valid names are removed. In the list `operands`, every text becomes `x`, also an invalid
    name. Everything else is kept. A row that is not an object is returned unchanged.

    Valid names have at most 200 characters: ASCII letters, digits and `_`, no digit at the start.
    """
    if not isinstance(row, dict):
        return row
    (name,) = _shorten_names([row.get("name")])
    short = {**row, "name": name} if "name" in row else dict(row)
    if isinstance(members := row.get("members"), list):
        short["members"] = _shorten_names(members)
    if isinstance(operands := row.get("operands"), list):
        # Any text may be an operand.
        short["operands"] = ["x" if isinstance(each, str) else each for each in operands]
    return short


def _shorten_names(names: list[object]) -> list[object]:
    """Replace all valid names by a single `x` at the position of the first one; return a new list.

    Valid names have at most 200 characters: ASCII letters, digits and `_`, no digit at the start.
    All other entries, also repeated ones, are kept in their order. Example: `["a", "1", "b"]` gives
    `["x", "1"]`. `names` is not changed.
    """
    short: list[object] = []
    for name in names:
        if not isinstance(name, str) or len(name) > 200 or not _NAME.search(name):
            short.append(name)
        elif "x" not in short:
            short.append("x")
    return short


def stage_fields(program: Program) -> dict[str, list[Fields]]:
    """Convert stages and chains to lists of objects: `{"stages": [...], "chains": [...]}`.

    A stage becomes an object with `name`, `family` and `members`, a chain one with `members` and
    `dimensions`. Both lists are in the order of the program; they are empty without entries.
    """
    stages: list[Fields] = []
    for stage in program.stages:
        members = {"members": stage.members}
        stages.append({"name": stage.name, "family": stage.family, **members})
    chains: list[Fields] = []
    for chain in program.chains:
        chains.append({"members": chain.members, "dimensions": chain.dimensions})
    return {"stages": stages, "chains": chains}


def type_fields(kind: TensorType, mesh: Sequence[str] = ()) -> dict[str, object]:
    """Convert a tensor type to the fields `element`, `shape`, `layout` and their parameters.

    For a layout on a single axis, `layout` is the placement. It is followed by `dimension` if the
    layout is sliced, by `reduction` if partial, by `root` if at a root. `mesh` is not used then.

    For a layout on several axes, `layout` is an object. It maps the name of each axis to an object
    with the fields `layout`, `dimension`, `reduction` and `root` of this axis. Replicated axes are
    left out, so {} means replicated on all. `mesh` has the names of the axes in order. Raises
    `ValueError` if their number differs from that of the axes of the layout.

    `group` comes last and is left out for group 0. `shape` is the tuple of the type.
    """
    fields: dict[str, object] = {"element": kind.element, "shape": kind.shape}
    if kind.layout.axes:
        layouts = zip(mesh, kind.layout.axes, strict=True)
        fields["layout"] = {
            axis: _layout_fields(layout) for axis, layout in layouts if layout != REPLICATED
        }
    else:
        fields |= _layout_fields(kind.layout)
    # The most frequent group is omitted.
    if kind.group:
        fields["group"] = kind.group
    return fields


def _layout_fields(layout: Layout) -> dict[str, object]:
    """Convert a layout on one axis to fields: `layout` has its placement, such as `sliced`.

    A sliced layout also has `dimension`, a partial one `reduction`, and one on a root `root`.
    Replicated and local layouts have no further field.
    """
    fields: dict[str, object] = {"layout": layout.placement}
    if layout.is_sliced:
        fields["dimension"] = layout.dimension
    if layout.reduction is not None:
        fields["reduction"] = layout.reduction
    if layout.root >= 0:
        fields["root"] = layout.root
    return fields


def _create_layout(fields: Fields) -> Layout:
    """Create the layout on one axis from `layout`, the placement, and its parameter.

    The parameter is `dimension` of a sliced layout (default -1), `reduction` of a partial one
    (default `sum`), and `root` of one on a root (default 0). Other placements have no parameter;
    fields that do not belong to the placement are ignored. Raises `ValueError` for an unknown
    placement or reduction, and `KeyError` without `layout`.
    """
    placement = Placement(fields["layout"])
    if placement is Placement.SLICED:
        return sliced(fields.get("dimension", -1))
    if placement is Placement.PARTIAL:
        return partial(fields.get("reduction", "sum"))
    if placement is Placement.ROOT:
        return at_root(fields.get("root", 0))
    return Layout(placement)


def argument_fields(argument: Argument, mesh: Sequence[str] = ()) -> dict[str, object]:
    """Convert an argument to a row of the document: its name, then the fields of its type.

    `mesh`: names of the axes, empty for none. Only a state (a value that the program
    updates) also has `state`, which is true, and `whole_after`: whether all ranks read the
    complete state after the program. Raise `ValueError` if the layout has another number of
    axes than `mesh`.
    """
    fields: dict[str, object] = {"name": argument.name, **type_fields(argument.type, mesh)}
    if argument.is_state:
        fields |= {"state": True, "whole_after": argument.whole_after}
    return fields


def _create_argument(fields: Fields, mesh: tuple[str, ...]) -> Argument:
    """Create an argument of a program from the fields of a row of the document.

    `name`, `element`, `shape` and `layout` are required, otherwise `KeyError`. `layout` is one of:

    - A text: the placement on every axis of `mesh`. Its parameter is a field of the row.
    - A mapping from axes of `mesh` to objects with `layout` (required) and its parameter. Axes that
      it lacks are replicated.

    The parameter is `dimension` of a sliced layout (default -1), `reduction` of a partial one
    (default sum), `root` of one on a root (default 0). Without a mesh, there is one axis, which is
    replicated for an empty mapping. Other defaults: `group` 0, `state` and `whole_after` false.
    Other fields are ignored.

    Raises `InputError` (`axis`) for the alphabetically first axis that the mesh lacks, and
    `ValueError` for an unknown placement, reduction or element type.
    """
    given = fields["layout"]
    if isinstance(given, str):
        layout = on_mesh(*(_create_layout(fields),) * max(1, len(mesh)))
    else:
        unknown = sorted(given.keys() - set(mesh))
        if unknown:
            message = f"argument {fields['name']}: the mesh has no axis {unknown[0]}"
            cure = f"axes of the mesh: {', '.join(mesh) or 'none'}"
            raise InputError(message, cure=cure, code="axis")
        layouts = [_create_layout(given[axis]) if axis in given else REPLICATED for axis in mesh]
        layout = on_mesh(*(layouts or [REPLICATED]))
    element = ElementType(fields["element"])
    kind = TensorType(element, tuple(fields["shape"]), layout, fields.get("group", 0))
    is_state = fields.get("state", False)
    return Argument(fields["name"], kind, is_state, fields.get("whole_after", False))


def operation_fields(operation: Operation) -> dict[str, object]:
    """Convert an operation to a row of the document: name, kind, operands, and its attributes.

    Attributes that are None are left out.
    """
    fields: dict[str, object] = {"name": operation.name, "kind": operation.kind}
    fields["operands"] = operation.operands
    attributes = ((name, getattr(operation, name)) for name in ATTRIBUTES)
    return fields | {name: value for name, value in attributes if value is not None}


def _create_operation(fields: Fields) -> Operation:
    attributes = {name: fields[name] for name in ATTRIBUTES if name in fields}
    if "reduction" in attributes:
        attributes["reduction"] = Reduction(attributes["reduction"])
    if "element" in attributes:
        attributes["element"] = ElementType(attributes["element"])
    if "rule" in attributes:
        attributes["rule"] = LayoutRule(attributes["rule"])
    for name in {"shape", "axes", "order", "counts"} & attributes.keys():
        attributes[name] = tuple(attributes[name])
    return Operation(fields["name"], Kind(fields["kind"]), tuple(fields["operands"]), **attributes)


def parse_call(operation: Operation) -> dict[str, Any]:
    """Return the JSON object in the `call` text of an opaque operation, such as its operator.

    The text is written by the author of the document and has no schema, so any key may be
    missing. Return {} if there is no text, or it is no JSON object.
    """
    try:
        fields = json.loads(operation.call or "")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _format_rows(name: str, rows: Iterable[Mapping[str, object]]) -> str:
    """Format a list of objects as the member `name` of a JSON document, one object per line.

    The member is indented by two blanks, its objects by four. An empty list is `[]` on the
    same line. The text does not end with a comma or a line break.
    """
    lines = [f"    {json.dumps(row)}" for row in rows]
    if not lines:
        return f'  "{name}": []'
    return f'  "{name}": [\n' + ",\n".join(lines) + "\n  ]"


DEFAULT_RANKS = 4


def bound_to_json(bound: BoundProgram) -> str:
    """Format the document `collhub/tensor-program-1` of a program with chosen sizes and ranks.

    After the program itself it has the number of every symbol (`bound`), the ranks per group
    (`num_ranks`), the ranks along every axis (`mesh_sizes`, only of a mesh), and the history of the
    program (`transformations`).
    """
    more: dict[str, object] = {"bound": dict(bound.binding.sizes)}
    more["num_ranks"] = bound.binding.num_ranks
    if bound.program.mesh:
        more["mesh_sizes"] = bound.binding.axis_sizes
    more["transformations"] = list(bound.history)
    return program_to_json(bound.program, more)


def bound_from_json(
    content: bytes,
    file: str,
    num_ranks: int | None = None,
    sizes: Mapping[str, int] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> BoundProgram:
    """Parse a program document (JSON) and choose numbers for its symbols and ranks.

    The first source that has a number is used:

    - Symbol: `sizes`, `bound` of the document, the only size that the program permits.
    - Ranks of a mesh axis: `mesh` by name, `mesh_sizes` of the document by position.
    - Number of ranks: with several axes the product over the axes, each of which needs a number.
      With one axis or none: the ranks of the axis, `num_ranks` (unless 0), `num_ranks` of the
      document (unless 0), the ranks of the first table of counts, 4.

    The history is `transformations` of the document. Raises `InputError` for invalid JSON, schema
    or types, and for a wrong or missing number (`bind_sizes`). Raises `InputError` (`ranks`) if the
    program was captured on another number of ranks.
    """
    # Options have priority over the document, which has priority over fixed sizes of the program.
    document = parse_json_object(content, file)
    program = parse_program(document, file)
    known = {name: low for name, (low, high) in program.sizes.items() if low == high}
    known |= document.get("bound", {})
    ranks = num_ranks or document.get("num_ranks")
    axes = dict(zip(program.mesh, document.get("mesh_sizes", ()), strict=False)) | dict(mesh or {})
    history = tuple(document.get("transformations", ()))
    binding = bind_sizes(program, ranks, known | dict(sizes or {}), axes)
    bound = BoundProgram(program, binding, history)
    bound.check_ranks(binding.num_ranks)
    return bound


def bind_sizes(
    program: Program,
    num_ranks: int | None,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int] | None = None,
) -> Binding:
    """Check the numbers of ranks and symbols of a program, and return them as a binding.

    `sizes`: a number for every symbol, even one with only one possible size. `mesh`: ranks by axis
    name, None for none. With several axes it must have each, and `num_ranks` is ignored. With one
    axis or none, the first of these is the number of ranks: the number of the axis in `mesh`,
    `num_ranks` (not 0), ranks of the first table of counts, `DEFAULT_RANKS` (4). The binding lists
    ranks by axis only if the program has axes.

    Raises `InputError`, in this order: an unknown axis, or one of several without a number
    (`axis`); invalid counts if they decide the ranks; an unknown symbol, then one without a number
    (`symbol`); a size outside its inclusive bounds (`size`); fewer than 2 ranks (`ranks`), a size
    below 1 (`size`), or an axis with fewer than 1 rank; arguments or operations that do not fit
    (`check_binding`).
    """
    location = Location(program.name)
    axis_sizes = _bind_mesh(program, num_ranks, dict(mesh or {}))
    # Checked first, since a misspelt symbol also appears as a missing one.
    unknown = sorted(sizes.keys() - program.sizes.keys())
    if unknown:
        message = f"the program has no symbol {unknown[0]}"
        cure = f"its symbols: {', '.join(program.sizes) or 'none'}"
        raise InputError(message, location=location, cure=cure, code="symbol")
    for symbol in sorted(program.sizes.keys() - sizes.keys()):
        message = f"symbol {symbol} is not bound"
        cure = f"give it a number: --size {symbol}=8, or -O sizes={symbol}=8"
        raise InputError(message, location=location, cure=cure, code="symbol")
    for symbol, size in sizes.items():
        low, high = program.sizes[symbol]
        if not low <= size <= high:
            message = f"size {symbol} is {size}, the program has {low}..{high}"
            cure = "state a size within its bounds"
            raise InputError(message, location=location, cure=cure, code="size")
    binding = Binding(prod(axis_sizes), sizes, axis_sizes if program.mesh else ())
    check_binding(program, binding)
    return binding


def _bind_mesh(program: Program, num_ranks: int | None, mesh: dict[str, int]) -> tuple[int, ...]:
    """Return the number of ranks along every axis of the program's mesh, in its order.

    A program with at most one axis gives one number, the first that exists:

    1. the number of the axis in `mesh`
    2. `num_ranks`, if it is neither None nor 0
    3. the ranks of the first operation with a table of counts
    4. `DEFAULT_RANKS` (4)

    With several axes, `mesh` must have a number for each, and `num_ranks` is ignored. Numbers are
    not checked. Raises `InputError` (`axis`) for an axis in `mesh` that the program does not have,
    and for a missing number. In a program with at most one axis and without `num_ranks`, invalid
    counts in the first table raise `InputError` (`invalid-counts`), even if `mesh` has the number.
    """
    location = Location(program.name)
    unknown = sorted(mesh.keys() - set(program.mesh))
    if unknown:
        message = f"the mesh has no axis {unknown[0]}"
        cure = f"axes of the mesh: {', '.join(program.mesh) or 'none'}"
        raise InputError(message, location=location, cure=cure, code="axis")
    if len(program.mesh) <= 1:
        counted = (read_counts(one).num_ranks for one in program.operations if one.counts)
        ranks = num_ranks or next(counted, DEFAULT_RANKS)
        return (next(iter(mesh.values()), ranks),)
    for axis in program.mesh:
        if axis not in mesh:
            message = f"the ranks along axis {axis} are not stated"
            cure = f"state them: -O mesh={','.join(f'{name}=2' for name in program.mesh)}"
            raise InputError(message, location=location, cure=cure, code="axis")
    return tuple(mesh[axis] for axis in program.mesh)


def canonical_hash(program: Program) -> str:
    """Return a SHA-256 hash (hex) of a program that ignores names and order of its operations.

    It covers four lists. The first three are sorted and keep repetitions:

    - operations: kind, attributes (`ATTRIBUTES`), and operands in order. An operand counts as the
      hash of its value, a number as its text.
    - stages: their sorted members, without name and family
    - chains: their members (operations or stages) in order, without dimensions
    - outputs: their hashes in the order of the program

    An argument is hashed with its name, type and other JSON fields (`argument_fields`). It counts
    only where an operation or an output refers to it. Name, sizes and groups of the program do
    not count.
    """
    hashes = {
        argument.name: _hash_lines([str(argument_fields(argument, program.mesh))])
        for argument in program.arguments
    }
    # Operands precede their readers in a program, so that their hashes are available.
    for operation in program.operations:
        # Hash kind, attributes and operands; `hashes`: hashes of values by name, all operands' too.
        attributes = [f"{name}={getattr(operation, name)}" for name in ATTRIBUTES]
        operands = [
            hashes[operand] if isinstance(operand, str) else repr(operand)
            for operand in operation.operands
        ]
        hashes[operation.name] = _hash_lines([operation.kind, *attributes, *operands])
    stages = {
        stage.name: _hash_lines(sorted(hashes[member] for member in stage.members))
        for stage in program.stages
    }
    # The members of a chain are operations or stages.
    labels = hashes | stages
    chains = [_hash_lines([labels[member] for member in chain.members]) for chain in program.chains]
    # Not a set: a program that computes a value twice is a different state.
    operations = sorted(hashes[operation.name] for operation in program.operations)
    outputs = [hashes[name] for name in program.outputs]
    sections = (operations, sorted(stages.values()), sorted(chains), outputs)
    return _hash_lines(_hash_lines(section) for section in sections)


def _hash_lines(lines: Iterable[str]) -> str:
    """SHA-256 (hex) of the lines in order; unambiguous because no line contains a line break."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
