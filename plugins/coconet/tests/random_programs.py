"""Random programs and random legal transformations of them, for the laws of equivalence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from collhub_coconet import (
    LOCAL,
    REPLICATED,
    Kind,
    Layout,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    Rewrite,
    Value,
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    arg_max,
    as_slice,
    batch_matmul,
    cast,
    coalesce,
    concat,
    dropout,
    equal,
    erf,
    exp,
    fuse,
    gather,
    index_of,
    largest,
    log,
    matmul,
    movable,
    norm,
    overlap,
    part,
    partial,
    permute,
    reduce_scatter,
    reduce_scatter_v,
    remove_dead,
    reorder,
    reshape,
    row_reduce,
    scatter,
    select,
    send,
    slice_of,
    sliced,
    split,
    split_at_root,
    sqrt,
    tanh,
    top_k,
    total,
    transpose,
    update,
)
from collhub_coconet.program.program import BUCKET_KINDS

from hub_core.model import InputError

SIZES = {"N": (1, 64), "M": (1, 64)}
PAIRS = (
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: select(x > y, x, y),
    lambda x, y: select(equal(x, 0.5), y, x),
    matmul,
)
SINGLES = (
    lambda x: x * 0.5,
    lambda x: 1 - x,
    lambda x: x**2,
    sqrt,
    tanh,
    norm,
    total,
    largest,
    all_reduce,
    all_gather,
    send,
    lambda x: cast(x, "float32"),
    lambda x: slice_of(x, 1),
    lambda x: reduce_scatter(x, 0),
    lambda x: dropout(x, 0.3, 11),
)
# Operations with other shapes, indices, or exponentials.
EXTENDED = (
    exp,
    log,
    lambda x: row_reduce(x, 1, "max"),
    lambda x: row_reduce(x, 0, "sum"),
    lambda x: cast(arg_max(x, 1), str(x.type.element)),
    lambda x: cast(index_of(x, 0), str(x.type.element)),
    lambda x: top_k(x, 1, 1)[0],
    lambda x: cast(top_k(x, 1, 0)[1], str(x.type.element)),
    lambda x: reshape(x, "N", 1, "M"),
    lambda x: reshape(x, "N", "M"),
    lambda x: concat(x, x, dimension=1),
    lambda x: x + row_reduce(concat(part(x, 1, 0, 1), part(x, 1, 0, 1), dimension=1), 1),
    erf,
    lambda x: permute(reshape(x, "N", 1, "M"), 0, 2, 1),
    lambda x: batch_matmul(reshape(x, "N", "M", 1), reshape(x, "N", 1, "M")),
    lambda x: x - row_reduce(x, 1, "max"),
    lambda x: x / row_reduce(exp(x), 1),
    lambda x: all_reduce(x, "max"),
    lambda x: cast(x, "bfloat16"),
    lambda x: cast(x, "float8_e4m3fn"),
    lambda x: cast(x, "float8_e5m2"),
    lambda x: cast(x, "int8"),
)
NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
# What moves elements between dimensions.
REARRANGING = (lambda x: all_to_all(x, 1), lambda x: all_to_all(x, 0), transpose)


def random_extended_program(seed: int, most: int = 20, *, is_wide: bool = False) -> Program:
    """A program with the operations of `EXTENDED`, tables and indices, on one axis or a mesh.

    An axis is drawn for each communication of a mesh. `is_wide`: in float64, on a mesh.
    """
    choice = random.Random(seed)
    element = choice.choice([*NARROW, "float16", "float32", "float32", "float64", "int8"])
    mesh = choice.choice([(), ("a",), ("a", "b"), ("a", "b")])
    if is_wide:
        element, mesh = "float64", ("a", "b")
    build = ProgramBuilder("extended", mesh, **SIZES)
    gradient = build.argument("g", element, "N", "M", layout=_layout(mesh, partial("sum")))
    states = [build.state(name, element, "N", "M") for name in ("s", "t")]
    indices = build.argument("i", "int32", "M")
    values = [gradient, *states, build.argument("r", element, "N", "M")]
    values += [build.argument("b", element, "M"), build.argument("c", element, "M", "M")]
    if len(mesh) > 1:
        layout = {"a": sliced(choice.randrange(2)), "b": sliced(choice.randrange(2))}
        values.append(build.argument("x", element, "N", "M", layout=layout))
        values.append(build.argument("y", element, "M", "M", layout={"b": sliced(0)}))
    values.append(all_reduce(gradient, axes=mesh[:1] or None).named("reduced"))
    made = [values[-1]]
    extended = EXTENDED[:-4] if is_wide else EXTENDED
    if is_wide:
        # The first operations read a partial value often.
        made.append((gradient * 0.5).named("half"))
        values.append(made[-1])
    singles = [*SINGLES, *extended, *extended, *REARRANGING]
    if mesh:
        singles += [_on_axis(function, axis) for function in COMMUNICATIONS for axis in mesh]
    singles += [
        lambda x: gather(x, indices),
        lambda x: scatter(indices, gather(x, indices), "N", "M"),
    ]
    for _ in range(6 * most):
        if len(build.program(*made).operations) >= most - 2:
            break
        found = _attempt(choice, values, singles)
        if found is not None:
            made.append(found)
            values.append(found)
    for state in states[: choice.randrange(3)]:
        made += _updated(state, made)
    outputs = [made[-1], *choice.sample(made, min(2, len(made)))]
    unique = {value.name: value for value in outputs}
    return remove_dead(build.program(*unique.values())).program


COMMUNICATIONS = (
    lambda x, axis: all_reduce(x, axes=axis),
    lambda x, axis: all_reduce(x, "max", axes=axis),
    lambda x, axis: reduce_scatter(x, 0, axes=axis),
    lambda x, axis: reduce_scatter(x, 1, axes=axis),
    lambda x, axis: all_gather(x, axes=axis),
    lambda x, axis: slice_of(x, 0, axes=axis),
    lambda x, axis: slice_of(x, 1, axes=axis),
    lambda x, axis: all_to_all(x, 0, axes=axis),
)


def _on_axis(function: Callable[[Value, str], Value], axis: str) -> Callable[[Value], Value]:
    return lambda x: function(x, axis)


def _layout(mesh: tuple[str, ...], first: Layout) -> Layout | dict[str, Layout]:
    return {mesh[0]: first} if mesh else first


def random_program(seed: int, most: int = 20, is_rearranging: bool = False) -> Program:
    """A program of at most so many operations; ill-typed attempts are dropped."""
    choice = random.Random(seed)
    singles = (*SINGLES, *REARRANGING) if is_rearranging else SINGLES
    element = choice.choice(["float16", "float32", "float32", "float64", "int32"])
    build = ProgramBuilder("random", **SIZES)
    gradient = build.argument("g", element, "N", "M", layout=LOCAL)
    states = [build.state(name, element, "N", "M") for name in ("s", "t")]
    values = [gradient, *states, build.argument("r", element, "N", "M")]
    values += [build.argument("b", element, "M"), build.argument("c", element, "M", "M")]
    values.append(all_reduce(gradient).named("reduced"))
    made = [values[-1]]
    if is_rearranging:
        made.append(all_to_all(reduce_scatter(gradient, 0), 1).named("exchanged"))
        values.append(made[-1])
    for _ in range(4 * most):
        if len(build.program(*made).operations) >= most - 2:
            break
        found = _attempt(choice, values, singles)
        if found is not None:
            made.append(found)
            values.append(found)
    for state in states[: choice.randrange(3)]:
        made += _updated(state, made)
    outputs = [made[-1], *choice.sample(made, min(2, len(made)))]
    unique = {value.name: value for value in outputs}
    return remove_dead(build.program(*unique.values())).program


def _attempt(
    choice: random.Random,
    values: list[Value],
    singles: Sequence[Callable[[Value], Value]],
    pairs: Sequence[Callable[[Value, Value], Value]] = PAIRS,
) -> Value | None:
    # Late values are preferred, so that long paths arise.
    recent = values[-choice.choice([2, 4, len(values)]) :]
    try:
        if choice.random() < 0.5:
            return choice.choice(singles)(choice.choice(recent))
        return choice.choice(pairs)(choice.choice(recent), choice.choice(values))
    except InputError:
        return None


def _updated(state: Value, made: list[Value]) -> list[Value]:
    fitting = [value for value in made if value.type == state.type]
    return [update(state, fitting[-1])] if fitting else []


def random_moves(program: Program, seed: int, most: int = 6) -> tuple[Program, list[str]]:
    """The program after random legal transformations, and their names."""
    choice = random.Random(seed)
    names = []
    for _ in range(4 * most):
        try:
            rewrite = _move(program, choice)
        except RefusedMoveError:
            continue
        program = rewrite.program
        names.append(rewrite.record.transformation)
        if len(names) == most:
            break
    return program, names


def _move(program: Program, choice: random.Random) -> Rewrite:
    kind = choice.choice(
        ["split", "split", "reorder", "reorder", "root", "state", "fuse", "chain", "bucket"]
    )
    operations = [one.name for one in program.operations]
    if kind in ("split", "root"):
        target = choice.choice(_of_kind(program, Kind.ALL_REDUCE) or operations)
        function = split if kind == "split" else split_at_root
        return function(program, target, choice.randrange(2))
    if kind == "reorder":
        target = choice.choice(_of_kind(program, Kind.ALL_GATHER) or operations)
        if target not in _of_kind(program, Kind.ALL_GATHER):
            return reorder(program, target, [target])
        members = movable(program, target)
        return reorder(program, target, members[: choice.randint(0, len(members))])
    if kind == "state":
        return as_slice(program, [choice.choice(sorted(program.states) or operations)])
    if kind == "bucket":
        alike = _of_kind(program, choice.choice(sorted(BUCKET_KINDS))) or operations
        return coalesce(program, choice.sample(alike, min(len(alike), choice.choice([2, 2, 3]))))
    count = choice.randint(2, min(6, max(2, len(operations))))
    start = choice.randrange(max(1, len(operations) - 1))
    members = operations[start : start + count]
    # Chains end all other transformations: they come last, and seldom.
    if kind == "chain" and choice.random() < 0.2:
        return overlap(program, members[:2])
    return fuse(program, members)


def _of_kind(program: Program, kind: Kind) -> list[str]:
    return [one.name for one in program.operations if one.kind is kind]


def random_uneven_program(seed: int, num_ranks: int, most: int = 12) -> Program:
    """A program of uneven collectives of so many ranks; some counts, also of all ranks, are zero.

    Every second AllToAllV has the transposed counts of the one before it, as a combine has those of
    a dispatch.
    """
    choice = random.Random(seed)
    element = choice.choice(["int32", "int64", "float32", "float64"])
    build = ProgramBuilder("uneven", M=(1, 64))
    rows = choice.randrange(2, 8)
    values = [
        build.argument(name, element, rows, "M", layout=layout)
        for name, layout in (("x", LOCAL), ("y", LOCAL), ("r", REPLICATED))
    ]
    values += [build.argument("b", element, "M"), build.argument("c", element, "M", "M")]
    tables: list[list[list[int]]] = []
    singles = [
        *(lambda v: v * 3, lambda v: 1 - v, lambda v: select(v > 1, v, 0), all_reduce, largest),
        *(lambda v: row_reduce(v, 1, "max"), lambda v: v - row_reduce(v, 1, "sum")),
        *[lambda v: _exchange(choice, v, num_ranks, tables)] * 8,
        *[lambda v: _gather_or_scatter(choice, v, num_ranks)] * 6,
    ]
    made: list[Value] = []
    for _ in range(20 * most):
        if len(made) >= most:
            break
        found = _attempt(choice, values, singles, UNEVEN_PAIRS)
        if found is not None and found.type.shape and _has_few_rows(found):
            made.append(found.named(f"v{len(made)}"))
            values.append(made[-1])
    outputs = [made[-1], *choice.sample(made, min(2, len(made)))]
    unique = {value.name: value for value in outputs}
    return remove_dead(build.program(*unique.values())).program


UNEVEN_PAIRS = (
    lambda v, w: v + w,
    lambda v, w: v - w,
    lambda v, w: select(v > w, v, w),
    lambda v, w: cast(matmul(v, w), str(v.type.element)),
)


def _has_few_rows(value: Value) -> bool:
    rows = value.type.shape[0]
    return not isinstance(rows, int) or rows <= 40


def _exchange(
    choice: random.Random, value: Value, num_ranks: int, tables: list[list[list[int]]]
) -> Value:
    """Exchange rows by the transposed counts of the last exchange, or by new ones."""
    if tables and choice.random() < 0.5:
        result = all_to_all_v(value, [list(column) for column in zip(*tables[-1], strict=True)])
        tables.pop()
        return result
    counts = [_divide(choice, value, num_ranks, is_complete=False) for _ in range(num_ranks)]
    result = all_to_all_v(value, counts)
    tables.append(counts)
    return result


def _gather_or_scatter(choice: random.Random, value: Value, num_ranks: int) -> Value:
    if choice.random() < 0.5:
        return reduce_scatter_v(
            value,
            _divide(choice, value, num_ranks, is_complete=True),
            choice.choice(["sum", "max", "min"]),
        )
    rows = value.type.shape[0] if value.type.shape else 0
    most = rows if isinstance(rows, int) else 0
    return all_gather_v(value, [choice.randint(0, most) for _ in range(num_ranks)])


def _divide(choice: random.Random, value: Value, num_ranks: int, *, is_complete: bool) -> list[int]:
    """Divide the rows of a value among the ranks; not all of them, unless `is_complete`."""
    rows = value.type.shape[0] if value.type.shape else 0
    counts = [0] * num_ranks
    # Few of the ranks, so that the others have no rows.
    targets = choice.sample(range(num_ranks), choice.randint(1, num_ranks))
    for _ in range(rows if isinstance(rows, int) else 0):
        if is_complete or choice.random() < 0.8:
            counts[choice.choice(targets)] += 1
    return counts
