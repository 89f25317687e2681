"""Write a program as a Python module that runs on `torch.distributed`.

Every rank runs the function `step` of the module on its parts of the tensors. Collectives are
functional: one starts as soon as its operand exists, and its first reader waits for it, so that
independent computations overlap with it. The buckets of the program are one collective each; with
the option `bucket_size`, further small all-reduces share buckets.
"""

from __future__ import annotations

import heapq
import importlib.resources
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_coconet.documents.from_workload import extract_program
from collhub_coconet.documents.json_document import CAPTURE, BoundProgram, parse_call
from collhub_coconet.plugin import TorchModuleOptions
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    REPLICATED,
    UNEVEN_COLLECTIVES,
    ElementType,
    Kind,
    LayoutRule,
    Operand,
    Operation,
    distance_from_end,
    has_dimension,
    sliced,
)
from collhub_coconet.program.program import (
    BUCKET,
    Chain,
    Program,
    count_ranks,
    find_axis_positions,
)
from collhub_coconet.program.shape_rules import find_axes
from collhub_coconet.program.uneven_rows import list_row_blocks, read_counts
from hub_core.model import InputError, Location, Loss, Workload
from hub_core.plugin_api import Artifact, WriteResult

CHUNKS = 4
"""Chunks of an overlapped matrix product and its all-reduce, or of overlapped exchanges."""

_RUNTIME = "module_runtime.py"
# Lines of the runtime that the tables of a module replace, and before which `step` is inserted.
_TABLES = """NUM_RANKS = 0
MESH: dict[str, int] = {}
GROUPS: list[list[str]] = []
ARGUMENTS: dict[str, tuple[str, list[int], int | str | list[int | str]]] = {}
UPDATES: dict[str, str] = {}
OUTPUT_LAYOUTS: dict[str, int | str | list[int | str]] = {}
OUTPUT_SHAPES: dict[str, list[int]] = {}
"""
_MAIN = 'if __name__ == "__main__":'
_REDUCTIONS = {"sum": "sum", "prod": "product", "min": "min", "max": "max"}
_INFIX = {
    Kind.ADD: "+",
    Kind.SUBTRACT: "-",
    Kind.MULTIPLY: "*",
    Kind.DIVIDE: "/",
    Kind.POWER: "**",
    Kind.LESS: "<",
    Kind.GREATER: ">",
    Kind.EQUAL: "==",
}
_FUNCTIONS = {
    Kind.SQRT: "torch.sqrt({})",
    Kind.TANH: "torch.tanh({})",
    Kind.EXP: "torch.exp({})",
    Kind.LOG: "torch.log({})",
    Kind.ERF: "torch.erf({})",
    Kind.SELECT: "torch.where({}, {}, {})",
    Kind.MATMUL: "torch.matmul({}, {})",
    Kind.BATCH_MATMUL: "torch.matmul({}, {})",
    Kind.TRANSPOSE: "{}.transpose(-1, -2)",
}
_ROWS = {"sum": "sum", "prod": "prod", "min": "amin", "max": "amax"}
_SCALARS = {
    Kind.SUM: ("{}.sum()", "sum", "{}"),
    Kind.MAX: ("{}.amax()", "max", "{}"),
    Kind.NORM: ("({0} * {0}).sum()", "sum", "torch.sqrt({})"),
}
"""Of a reduction to a scalar: the value of a rank's part, the reduction over ranks, the result."""

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*){1,2}")
# Operators that create tensors; the module names the device.
_FACTORIES = frozenset(
    {
        *("aten.arange", "aten.full", "aten.zeros", "aten.ones", "aten.empty", "aten.eye"),
        *("aten.scalar_tensor", "aten.rand", "aten.randn"),
    }
)
_RESHAPES = dict.fromkeys(("aten.view", "aten._unsafe_view"), "aten.reshape.default")
# Operators that access files, or memory by the strides of the capture, are never written.
_FORBIDDEN = frozenset({"aten.from_file", "aten.as_strided"})
_FORBIDDEN_NAMESPACES = frozenset({"load_library", "import_module", "loaded_libraries"})


def write(workload: Workload, options: TorchModuleOptions) -> WriteResult:
    """Write the program of a workload as a Python module for PyTorch.

    Returns one artifact in UTF-8 without a file name, and the losses: stages become
    separate kernels, and an overlap is cut into chunks only if it joins a matrix product
    with its all-reduce, or two exchanges of rows by counts. All-reduces with fewer bytes on
    a rank than the option `bucket_size` are combined if they are ready together; None
    combines none, except for the buckets of the program.

    Raise `InputError` for nodes that describe no program (`extract_program`), a number of
    ranks that does not fit, programs of several groups, blocks of unequal length on a mesh
    of several axes, names that are not valid in Python, and operations without a form in
    PyTorch.
    """
    writer = _ModuleWriter(extract_program(workload), options.bucket_size or 0)
    content = writer.write()
    return WriteResult((Artifact("", content.encode()),), writer.losses)


@dataclass
class _ModuleWriter:
    """Text of one module. `pending`: collectives in flight, by name of their value.

    `combined`: axes of the process groups that the module needs.
    """

    bound: BoundProgram
    bucket_bytes: int
    losses: list[Loss] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)
    _pending: set[str] = field(default_factory=set)
    _chunked: dict[str, Chain] = field(default_factory=dict)
    _combined: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def program(self) -> Program:
        """Program that is written."""
        return self.bound.program

    def write(self) -> str:
        """Return the text of the module: description, tables, runtime functions, and `step`.

        `step` returns a dictionary of the values on this rank by name: first the outputs of the
        program, then the new states that are not outputs. A new state is the value of the last
        `UPDATE` of a state. `losses` is extended. The method may be called only once, because it
        also changes the writer. Raises `InputError` for a program that a module cannot run
        (`_check`), and for an operation without a form in PyTorch.
        """
        program, binding = self.program, self.bound.binding
        self._check()
        self._find_chunked_chains()
        self._write_step()
        arguments = {
            argument.name: (
                str(argument.type.element),
                list(binding.shape(argument.type.shape)),
                _describe_layout(program, argument.name),
            )
            for argument in program.arguments
        }
        updates = {
            operation.reads[0]: operation.name
            for operation in program.operations
            if operation.kind is Kind.UPDATE
        }
        outputs = list(dict.fromkeys((*program.outputs, *updates.values())))
        is_mesh = len(program.mesh) > 1
        combined = sorted(axes for axes in self._combined if len(axes) > 1)
        groups = [*((axis,) for axis in program.mesh), *combined]
        tables = {
            "NUM_RANKS": binding.num_ranks,
            "MESH": dict(zip(program.mesh, binding.mesh, strict=True)) if is_mesh else {},
            "GROUPS": [list(one) for one in groups] if is_mesh else [],
            "ARGUMENTS": arguments,
            "UPDATES": updates,
            "OUTPUT_LAYOUTS": {name: _describe_layout(program, name) for name in outputs},
            "OUTPUT_SHAPES": {
                name: list(binding.shape(program.types[name].shape)) for name in outputs
            },
        }
        runtime = importlib.resources.files(__package__).joinpath(_RUNTIME).read_text("utf-8")
        # The description of the runtime functions is replaced by that of the module.
        head, tail = runtime[runtime.index("from __future__") :].split(_TABLES, 1)
        body, end = tail.split(_MAIN, 1)
        parts = [
            self._describe(),
            head.rstrip("\n") + "\n",
            "\n".join(f"{name} = {value!r}" for name, value in tables.items()),
            body.rstrip("\n"),
            self._format_step(outputs),
            f"\n\n{_MAIN}{end}",
        ]
        return "\n".join(parts)

    def _check(self) -> None:
        """Raise `InputError` for programs that a module of one process group cannot run.

        The first of these faults is reported:

        - a number of ranks that does not fit the program (`check_ranks`)
        - several groups of a pipeline
        - on a mesh of several axes, a value with blocks that are empty or of unequal length
        - a name of a value that is no identifier or a keyword of Python
        """
        self.bound.check_ranks(self.bound.binding.num_ranks)
        if self.program.num_groups > 1:
            message = "the program has several groups of a pipeline, a module has one"
            raise self._refuse(message, "write it as tensor-program")
        for name in self.program.types if len(self.program.mesh) > 1 else ():
            if -1 in self._find_local_shape(name):
                cure = "use sizes that are multiples of the ranks along the axes"
                raise self._refuse(f"{name} has blocks of unequal length on a mesh", cure)
        for name in self.program.types:
            if not _NAME.fullmatch(name) or keyword.iskeyword(name):
                raise self._refuse(f"{name:.60} is no name in Python", "rename the value")

    def _describe(self) -> str:
        """Return the docstring of the module as Python text, with its triple quotes.

        The lines, in this order:

        - `One step of 'NAME' on N ranks.`, with at most 100 characters for the quoted name
        - the transformations of the history, except the capture: `Transformations: a, b.`, or
          `none`
        - for each record of the history with integers for the time before and after (predicted,
          in ns): `Predicted time: 1.5 ms, 2 ms before.`
        - how to call `step`

        Backslashes and triple quotes are removed from the text.
        """
        lines = [
            f'"""One step of {self.program.name!r:.100} on {self.bound.binding.num_ranks} ranks.'
        ]
        names = [str(one.get("transformation")) for one in self.bound.history]
        passes = [name for name in names if name != CAPTURE]
        lines += ["", f"Transformations: {', '.join(passes) or 'none'}."]
        for record in self.bound.history:
            before, after = record.get("predicted_before_ns"), record.get("predicted_ns")
            if isinstance(before, int) and isinstance(after, int):
                lines.append(f"Predicted time: {after / 1e6:.6g} ms, {before / 1e6:.6g} ms before.")
        lines += ["", "`step(shard(arguments))` returns outputs and new states by name."]
        text = "\n".join(lines).replace("\\", "").replace('"""', "")
        return f'"""{text}\n"""\n'

    def _format_step(self, outputs: Sequence[str]) -> str:
        """Return the text of the function `step`, which contains the statements in `_lines`.

        The written function is `step(arguments, group=None)`. `arguments` has the part of each
        argument on this rank by name. In this order, its body:

        1. assigns each argument to a variable of its name
        2. sets `device_` to the device of the first argument, or "cpu" without arguments
        3. creates the process groups as `groups_`, only for a mesh of several axes
        4. executes the statements
        5. returns the values in `outputs` by name, in this order

        The text begins with two empty lines and has no line end at the end.
        """
        device = next(iter(self.program.declared), None)
        lines = [
            "",
            "",
            "def step(arguments: Mapping[str, torch.Tensor], group: Group = None) -> Tensors:",
        ]
        lines.append('    """Run one step on the parts of this rank; returns outputs by name."""')
        lines += [f"    {name} = arguments[{name!r}]" for name in self.program.declared]
        lines.append(f"    device_ = {device}.device" if device else '    device_ = "cpu"')
        if len(self.program.mesh) > 1:
            lines.append("    groups_ = _make_groups(group)")
        lines += [f"    {line}" for line in self._lines]
        entries = ", ".join(f"{name!r}: {name}" for name in outputs)
        return "\n".join([*lines, f"    return {{{entries}}}"])

    def _write_step(self) -> None:
        """Write all operations, so that collectives start early and their readers wait late.

        An operation is ready when all operations that it reads are written. A delayed operation
        reads a pending (started, not awaited) result or a delayed operation. Ready communications
        are next, then computations, then delayed computations, each in the order of
        `Program.kernels`.

        - A member of a bucket of the program is kept until all members are ready; the bucket is
          then written as one.
        - A small all-reduce (`_fits_bucket`) joins the open bucket, a second kind of bucket. It is
          written first if it is full, if the next operation needs it, differs in element type, axes
          or reduction, or reads a pending result (`_must_flush`). It is also written if no
          operation is ready.
        - Any other operation is written by itself.

        At the end, waits for the results that are still pending follow in the order of the kernels.
        Raises `InputError` for operations that PyTorch lacks.
        """
        order = {
            operation.name: number
            for number, operation in enumerate(
                operation for kernel in self.program.kernels() for operation in kernel
            )
        }
        missing = {
            operation.name: len({read for read in operation.reads if read in order})
            for operation in self.program.operations
        }
        waiting: list[tuple[int, int, str]] = []
        delayed: set[str] = set()
        for name, count in missing.items():
            if not count:
                heapq.heappush(waiting, self._rank_operation(name, order, delayed))
        bucket: list[Operation] = []
        # Members of buckets of the program whose operands are present, by the first member.
        collected: dict[str, list[Operation]] = {}
        while waiting or bucket:
            ready = self.program.by_name[waiting[0][2]] if waiting else None
            if bucket and (ready is None or self._must_flush(bucket, ready)):
                self._write_bucket(bucket)
                names = [operation.name for operation in bucket]
                bucket = []
            else:
                assert ready is not None
                heapq.heappop(waiting)
                if ready.name in self.program.buckets:
                    members = self.program.buckets[ready.name]
                    present = collected.setdefault(members[0].name, [])
                    present.append(ready)
                    if len(present) < len(members):
                        continue
                    self._write_bucket(members)
                    names = [operation.name for operation in members]
                elif self._fits_bucket(ready):
                    bucket.append(ready)
                    continue
                else:
                    self._write_operation(ready)
                    names = [ready.name]
            for name in names:
                for reader in self.program.readers.get(name, ()):
                    missing[reader.name] -= 1
                    is_late = name in self._pending or name in delayed
                    if is_late:
                        delayed.add(reader.name)
                    if not missing[reader.name]:
                        heapq.heappush(waiting, self._rank_operation(reader.name, order, delayed))
        for name in sorted(self._pending, key=order.__getitem__):
            self._lines.append(f"{name} = {name}.wait()")

    def _rank_operation(
        self, name: str, order: Mapping[str, int], delayed: set[str]
    ) -> tuple[int, int, str]:
        """Return the sort key of an operation: (priority, position in `order`, name).

        The operation with the smallest key is written next. The priority is 0 for a communication,
        2 for a computation in `delayed`, and 1 for any other computation.
        """
        if self.program.by_name[name].is_communication:
            return 0, order[name], name
        return (2 if name in delayed else 1), order[name], name

    def _fits_bucket(self, operation: Operation) -> bool:
        """Check whether an operation may join an open bucket of small all-reduces.

        It must be an all-reduce that is not cut into chunks, with fewer than `bucket_bytes`
        bytes in the longest part of a rank. With a limit of 0, no operation fits.
        """
        if operation.kind is not Kind.ALL_REDUCE or operation.name in self._chunked:
            return False
        size = self.bound.binding.bytes_of_rank(self.program.types[operation.name])
        return size < self.bucket_bytes

    def _must_flush(self, bucket: Sequence[Operation], ready: Operation) -> bool:
        """Check whether an open bucket must be written before the operation `ready`.

        A bucket is a group of small all-reduces that are performed as one; it must have a member.
        True in each of these cases, otherwise False:

        - The members have `bucket_bytes` bytes or more together on a rank.
        - `ready` fits a bucket (`_fits_bucket`), and its element type, axes or reduction differ
          from those of the first member.
        - `ready` does not fit a bucket, and reads a member of the bucket or the result of a
          collective that has been started but not awaited.
        """
        types = self.program.types
        sizes = [self.bound.binding.bytes_of_rank(types[one.name]) for one in bucket]
        if sum(sizes) >= self.bucket_bytes:
            return True
        if not self._fits_bucket(ready):
            reads = set(ready.reads)
            return bool(reads & {one.name for one in bucket}) or any(
                read in self._pending for read in reads
            )
        first = bucket[0]
        same = types[ready.name].element is types[first.name].element
        same = same and ready.axes == first.axes
        return not same or ready.reduction is not first.reduction

    def _write_bucket(self, bucket: Sequence[Operation]) -> None:
        """Write one statement that starts a collective of several tensors.

        Kind, axes and reduction are those of the first member. A kind other than all-reduce and
        reduce-scatter is written as an all-gather. If operands are pending, i.e. started without a
        wait, the statements that wait for them are written first. The results are pending
        afterwards.

        A bucket with one member is written as a single operation. So is each member of a bucket
        whose first member is an uneven collective. Raises `InputError` if PyTorch lacks the
        reduction of an all-reduce or reduce-scatter.
        """
        if len(bucket) == 1 or bucket[0].kind in UNEVEN_COLLECTIVES:
            for operation in bucket:
                self._write_operation(operation)
            return
        self._wait({read for operation in bucket for read in operation.reads})
        names = ", ".join(operation.name for operation in bucket)
        operands = ", ".join(operation.reads[0] for operation in bucket)
        kind, group = bucket[0].kind, self._format_group(bucket[0].axes)
        if kind is Kind.ALL_REDUCE:
            reduction = self._format_reduction(bucket[0])
            call = f"_all_reduce_bucket([{operands}], {reduction!r}, {group})"
        elif kind is Kind.REDUCE_SCATTER:
            dimensions = [operation.dimension or 0 for operation in bucket]
            reduction = self._format_reduction(bucket[0])
            call = f"_reduce_scatter_bucket([{operands}], {dimensions}, {reduction!r}, {group})"
        else:
            gathered = [self._find_gathered(operation) for operation in bucket]
            dimensions, sizes = ([one[part] for one in gathered] for part in (0, 1))
            call = f"_all_gather_bucket([{operands}], {dimensions}, {sizes}, {group})"
        self._lines.append(f"{names} = {call}")
        self._pending |= {operation.name for operation in bucket}

    def _write_operation(self, operation: Operation) -> None:
        """Write the statements of one operation, after waits for its pending operands.

        The result of a communication is then pending, that is, in flight until a statement
        waits for it. Members of a chain in `_chunked` are an exception: the call with the last
        member writes the chain in chunks (`_write_chunks`), with a result that is complete.
        Calls with the other members write nothing. Raises `InputError` for an operation without
        a form in PyTorch.
        """
        chain = self._chunked.get(operation.name)
        if chain is not None:
            self._write_chunks(operation, chain)
            return
        self._wait(operation.reads)
        if operation.is_communication:
            self._lines.append(f"{operation.name} = {self._format_collective(operation)}")
            self._pending.add(operation.name)
        elif operation.kind is Kind.OPAQUE:
            self._write_opaque(operation)
        else:
            self._lines.append(f"{operation.name} = {self._format_expression(operation)}")

    def _wait(self, names: Sequence[str] | set[str]) -> None:
        """Write waits for the values whose collectives are in flight, in order of the names.

        They are then no longer pending; other values are ignored.
        """
        for name in sorted(self._pending.intersection(names)):
            self._lines.append(f"{name} = {name}.wait()")
            self._pending.discard(name)

    def _find_chunked_chains(self) -> None:
        """Store in `_chunked` the chains that can be cut into chunks; add losses for the others.

        A chain is a sequence of operations that the program overlaps chunk by chunk. It is stored
        under the names of its members in two cases:

        - It consists of operations only, which `_can_chunk_rows` accepts: two exchanges of rows
          with the computations between them.
        - It has two members, a matrix product and its all-reduce, which `_can_chunk` accepts.

        Every other chain adds the loss `overlap`. Then every stage, i.e. a group of operations that
        form one kernel, adds the loss `fuse`. Instead, a bucket of uneven collectives adds the loss
        `coalesce`, and any other bucket adds none.
        """
        for chain in self.program.chains:
            members = [self.program.by_name.get(name) for name in chain.members]
            operations = [operation for operation in members if operation is not None]
            if len(operations) == len(members) and self._can_chunk_rows(operations):
                self._chunked |= dict.fromkeys(chain.members, chain)
                continue
            product, reduction = members[0], members[-1]
            is_pair = len(members) == 2 and product is not None and reduction is not None
            if is_pair and self._can_chunk(product, reduction, chain.dimensions[0]):
                assert product is not None
                assert reduction is not None
                self._chunked[reduction.name] = chain
                self._chunked[product.name] = chain
            else:
                names = " > ".join(chain.members)
                reason = "starts and waits overlap; the chain is not cut into chunks"
                self.losses.append(Loss("overlap", names, reason))
        for stage in self.program.stages:
            is_bucket = stage.family == BUCKET
            if is_bucket and self.program.by_name[stage.members[0]].kind in UNEVEN_COLLECTIVES:
                reason = "uneven collectives of a bucket are separate calls"
                self.losses.append(Loss("coalesce", stage.name, reason))
            if is_bucket:
                continue
            reason = "its operations are separate kernels of PyTorch"
            self.losses.append(Loss("fuse", stage.name, reason))

    def _can_chunk(
        self, product: Operation | None, reduction: Operation | None, distance: int
    ) -> bool:
        """Check whether a product and its all-reduce can be cut into chunks along a dimension.

        `distance`: number of the dimension of the product from the end, 1 for the last. True if
        all of this holds:

        - `product` is a MatMul, and `reduction` is an all-reduce.
        - The product is no output of the program, and one operation reads it. Whether this is
          `reduction` is not checked.
        - The dimension is any but the last one (a row dimension), and the complete product has
          at least `CHUNKS` elements along it.

        False if the product or the reduction is None.
        """
        if product is None or reduction is None or product.kind is not Kind.MATMUL:
            return False
        shape = self.program.types[product.name].shape
        dimension = len(shape) - distance
        size = self.bound.binding.shape(shape)[dimension]
        readers = self.program.readers.get(product.name, ())
        return (
            reduction.kind is Kind.ALL_REDUCE
            and len(readers) == 1
            and product.name not in self.program.outputs
            and dimension in find_axes(Kind.MATMUL, len(shape)).rows
            and size >= CHUNKS
        )

    def _can_chunk_rows(self, members: Sequence[Operation]) -> bool:
        """Check whether a chain is written as exchanges of chunks of rows around a loop.

        `members`: operations of the chain, at least two. True if all of this holds:

        - The first and the last member are AllToAllVs along the same axes. The last one reads the
          blocks of rows that the first one delivers.
        - No value but the last one is an output or is read outside of the chain.
        - Each member between them is a MatMul, or a pointwise operation other than Dropout.
        - The second operand of a MatMul is from outside of the chain.
        - Operands of a pointwise operation from outside are the same for all rows, i.e. have no
          dimension of rows, or one of size 1.
        - The first member reads no value of the chain.
        """
        first, *inner, last = members
        names = {operation.name for operation in members}
        if {first.kind, last.kind} != {Kind.ALL_TO_ALL_V} or first.axes != last.axes:
            return False
        # `overlap` ensures this; a document may have any chains.
        if list_row_blocks(first)[1] != list_row_blocks(last)[0]:
            return False
        for operation in members[:-1]:
            readers = {reader.name for reader in self.program.readers.get(operation.name, ())}
            if operation.name in self.program.outputs or not readers <= names:
                return False
        for operation in inner:
            rank = len(self.program.types[operation.name].shape)
            outside = [read for read in operation.reads if read not in names]
            if operation.kind is Kind.MATMUL:
                has_rows = operation.reads[1] in names
            elif operation.kind in POINTWISE:
                has_rows = any(
                    has_dimension(self.program.types[read].shape, rank) for read in outside
                )
            else:
                return False
            if has_rows or operation.kind is Kind.DROPOUT:
                return False
        return set(members[0].reads).isdisjoint(names)

    def _write_row_chunks(self, members: Sequence[Operation]) -> None:
        """Write a chain of two exchanges of rows (AllToAllV) in `CHUNKS` chunks of rows.

        `members`: exchange, computations, exchange back. The rows between every pair of ranks are
        divided evenly among the chunks; of c rows, chunk k (from 0) has those from c * k //
        `CHUNKS` up to the next chunk. The written statements are, in this order:

        1. waits for pending values from outside of the chain
        2. the start of the first exchange of all chunks
        3. for each chunk: the wait for it, the computations, and the start of the exchange back
        4. the wait for all chunks, which gives the complete result

        Raises `InputError` for a computation without a form in PyTorch.
        """
        names = {operation.name for operation in members}
        reads = (read for operation in members for read in operation.reads)
        self._wait({read for read in reads if read not in names})
        first, *inner, last = members
        parts, group = f"_{last.name}_parts", self._format_group(first.axes)
        sent, returned = (read_counts(one).table.tolist() for one in (first, last))
        rows = self.program.types[last.name].shape[0]
        self._lines += [
            f"{parts} = [",
            f"    _send_chunk({first.reads[0]}, {sent}, chunk_, {CHUNKS}, {group})",
            f"    for chunk_ in range({CHUNKS})",
            "]",
            f"for chunk_ in range({CHUNKS}):",
            f"    {first.name} = {parts}[chunk_].wait()",
            *(f"    {one.name} = {self._format_expression(one)}" for one in inner),
            f"    {parts}[chunk_] = _forward_chunk(",
            f"        {last.reads[0]}, {returned}, chunk_, {CHUNKS}, {group}",
            "    )",
            f"{last.name} = _join_chunks(",
            f"    [part_.wait() for part_ in {parts}], {returned}, {rows}, {group}",
            ")",
        ]

    def _write_chunks(self, operation: Operation, chain: Chain) -> None:
        """Write a chain of overlapped operations in chunks, when its last member is written.

        For any other member no line is written, so the chain is written only once. Lines that wait
        for the operands from outside come first. The result is complete, not pending.

        - A chain that begins with an AllToAllV exchanges 4 chunks of rows, and runs the operations
          between both exchanges on each chunk.
        - Any other chain is a matrix product and its all-reduce. The first operand of the product
          is cut along the dimension of the chain into at most 4 chunks (`torch.Tensor.chunk`). Each
          chunk is reduced while the next one is multiplied; then the results are concatenated.

        Raises `InputError` for a reduction or a computation that PyTorch lacks.
        """
        if self.program.by_name[chain.members[0]].kind is Kind.ALL_TO_ALL_V:
            if operation.name == chain.members[-1]:
                self._write_row_chunks([self.program.by_name[name] for name in chain.members])
            return
        if operation.kind is Kind.MATMUL:
            return
        product = self.program.by_name[operation.reads[0]]
        self._wait(product.reads)
        shape = self.program.types[product.name].shape
        dimension = len(shape) - chain.dimensions[0]
        x, w = product.reads
        reduction = self._format_reduction(operation)
        parts, group = f"_{operation.name}_parts", self._format_group(operation.axes)
        self._lines += [
            f"{parts} = [",
            f"    _all_reduce(torch.matmul(part, {w}), {reduction!r}, {group})",
            f"    for part in {x}.chunk({CHUNKS}, {dimension})",
            "]",
            f"{operation.name} = torch.cat([part.wait() for part in {parts}], {dimension})",
        ]

    def _write_opaque(self, operation: Operation) -> None:
        """Append the lines of an opaque operation, by the first rule that applies.

        1. The operator is `view`, or `operation.rule` is `TO_BLOCKS` or `TO_LOCAL`: the first
           operand is reshaped to the shape that the result has on one rank.
        2. The operator is `result`: entry `output` (an `int`) of `<operand>_results` is selected.
        3. An operator of PyTorch is called with `arguments` (by name; those in `keywords` are
           passed by name). Operators that create tensors also get `device=device_`. If `results`
           (default 1) is not 1, they are assigned to `NAME_results`, and the one with index
           `output` (default 0) to the name of the operation. Views become `aten.reshape.default`.

        Raises `InputError` (`torch-module`) for an invalid operator, argument, keyword list or
        `output`, and for operators that load files or code, or use strides (`aten.as_strided`).
        """
        call, name = parse_call(operation), operation.name
        operator = call.get("operator")
        if operator == "view" or operation.rule in (LayoutRule.TO_BLOCKS, LayoutRule.TO_LOCAL):
            shape = list(self._find_local_shape(name))
            self._lines.append(f"{name} = {operation.reads[0]}.reshape({shape})")
            return
        if operator == "result":
            position = call.get("output")
            if type(position) is not int:
                raise self._refuse(f"{name} selects no result", "capture the program again")
            self._lines.append(f"{name} = {operation.reads[0]}_results[{position}]")
            return
        arguments, keywords = call.get("arguments"), call.get("keywords")
        is_valid = isinstance(operator, str) and _OPERATOR.fullmatch(operator)
        if not is_valid or not isinstance(arguments, dict) or not isinstance(keywords, list):
            raise self._refuse(f"{name} has no call of an operator", "capture the program again")
        assert isinstance(operator, str)
        base = ".".join(operator.split(".")[:2])
        if base in _FORBIDDEN or operator.split(".")[0] in _FORBIDDEN_NAMESPACES:
            raise self._refuse(
                f"{name} calls {operator}, which is not written", "capture without it"
            )
        parts = []
        for argument, value in arguments.items():
            if not _NAME.fullmatch(argument):
                raise self._refuse(f"{name} has the argument {argument!r:.40}", "capture it again")
            text = self._format_value(operation, value)
            parts.append(f"{argument}={text}" if argument in keywords else text)
        if base in _FACTORIES:
            parts.append("device=device_")
        # Strides may differ from those of the capture, so that a view may need a copy.
        operator = _RESHAPES.get(base, operator)
        text = f"torch.ops.{operator}({', '.join(parts)})"
        results, output = call.get("results", 1), call.get("output", 0)
        if results == 1:
            self._lines.append(f"{name} = {text}")
            return
        if type(results) is not int or type(output) is not int or not 0 <= output < results:
            message = f"{name} selects result {output!r:.40} of {results!r:.40} results"
            raise self._refuse(message, "capture the program again")
        self._lines.append(f"{name}_results = {text}")
        self._lines.append(f"{name} = {name}_results[{output}]")

    def _format_value(self, operation: Operation, value: object) -> str:
        """Format an argument of an operator, given as a JSON value, as a Python expression.

        - a list: a list of the formatted entries, at any depth
        - `{"operand": i}`: the name of `operation.reads[i]`, if 0 <= i < number of operands
        - `{"float": text}`: `float('inf')` for "inf", likewise "-inf" and "nan"; for a decimal
          number such as "1e-5" the `repr` of its value, "1e-05"
        - `{"element": name}`: an element type, `torch.NAME`, if the name is an identifier
        - a number, text, boolean or None: its `repr`

        Raises `InputError` (`torch-module`) for every other argument, also for an operand that does
        not exist.
        """
        if isinstance(value, list):
            return f"[{', '.join(self._format_value(operation, entry) for entry in value)}]"
        match value:
            case {"operand": int(number)} if 0 <= number < len(operation.reads):
                return operation.reads[number]
            case {"float": "inf" | "-inf" | "nan" as text}:
                return f"float({text!r})"
            case {"float": str(text)} if _NUMBER.fullmatch(text):
                return repr(float(text))
            case {"element": str(element)} if _NAME.fullmatch(element):
                return f"torch.{element}"
            case bool() | int() | float() | str() | None:
                return repr(value)
        raise self._refuse(f"{operation.name} has the argument {value!r:.40}", "capture it again")

    def _format_collective(self, operation: Operation) -> str:
        """Return the Python expression that starts a collective, whose result is pending.

        The process group has the ranks along the operation's axes. If the mesh has at least two
        axes and the operation names axes, they are added to `_combined` (groups to create).

        Supported are all-reduce, reduce-scatter, all-gather, all-to-all, broadcast, reduce, and
        the uneven collectives. Raises `InputError` (`torch-module`) in these cases:

        - another communication, such as one between groups
        - an all-to-all if a dimension that it splits or joins is no multiple of its ranks
        - a reduction other than sum, prod, min and max
        """
        x, group = operation.reads[0], self._format_group(operation.axes)
        kind, operand = operation.kind, self.program.types[x]
        shape = self.bound.binding.shape(operand.shape)
        if kind is Kind.ALL_REDUCE:
            return f"_all_reduce({x}, {self._format_reduction(operation)!r}, {group})"
        if kind is Kind.REDUCE_SCATTER:
            reduction = self._format_reduction(operation)
            return f"_reduce_scatter({x}, {operation.dimension}, {reduction!r}, {group})"
        if kind is Kind.ALL_GATHER:
            dimension, size = self._find_gathered(operation)
            return f"_all_gather({x}, {dimension}, {size}, {group})"
        if kind is Kind.ALL_TO_ALL:
            source, destination = self._find_gathered(operation)[0], operation.dimension or 0
            ranks = count_ranks(self.program, self.bound.binding, operation)
            if shape[source] % ranks or shape[destination] % ranks:
                cure = f"use sizes that are multiples of {ranks}"
                raise self._refuse(f"{operation.name} exchanges blocks of unequal length", cure)
            return f"_all_to_all({x}, {source}, {destination}, {shape[destination]}, {group})"
        if kind is Kind.BROADCAST:
            return f"_broadcast({x}, {operation.root}, {group})"
        if kind is Kind.REDUCE:
            reduction = self._format_reduction(operation)
            return f"_reduce({x}, {operation.root}, {reduction!r}, {group})"
        if kind in UNEVEN_COLLECTIVES:
            counts = read_counts(operation).table.tolist()
            if kind is Kind.ALL_TO_ALL_V:
                rows = self.program.types[operation.name].shape[0]
                return f"_all_to_all_rows({x}, {counts}, {rows}, {group})"
            if kind is Kind.ALL_GATHER_V:
                return f"_all_gather_rows({x}, {counts}, {group})"
            reduction = self._format_reduction(operation)
            return f"_reduce_scatter_rows({x}, {counts}, {reduction!r}, {group})"
        raise self._refuse(
            f"{operation.name}: {kind} has no form in one group", "write tensor-program"
        )

    def _find_gathered(self, operation: Operation) -> tuple[int, int]:
        """Return the dimension that a collective gathers or exchanges, and its size afterwards.

        It is the dimension along which the first axis of the collective (in the order of the mesh)
        slices its operand. The size is that of the complete tensor, divided by the ranks of each
        axis that slices the same dimension and along which the collective does not communicate,
        rounded down each time.
        """
        kind = self.program.types[operation.reads[0]]
        axes = find_axis_positions(self.program, operation)
        dimension = kind.layout.by_axis[axes[0]].dimension
        size = self.bound.binding.shape(kind.shape)[dimension]
        for axis, layout in enumerate(kind.layout.by_axis):
            if axis not in axes and layout.dimension == dimension:
                size //= self.bound.binding.axis_sizes[axis]
        return dimension, size

    def _format_group(self, axes: Sequence[str] | None) -> str:
        """Return the Python expression of the process group over these axes of the mesh.

        It is `group` if the mesh has fewer than two axes, or `axes` is None or empty. Otherwise
        it is the entry of `groups_` under the names joined by `+`, in the order of the mesh.
        The axes are then added to `_combined`, so that the module creates this group.
        """
        if len(self.program.mesh) < 2 or not axes:
            return "group"
        names = tuple(sorted(axes, key=self.program.mesh.index))
        self._combined.add(names)
        return f"groups_[{'+'.join(names)!r}]"

    def _format_reduction(self, operation: Operation) -> str:
        reduction = str(operation.reduction)
        if reduction not in _REDUCTIONS:
            raise self._refuse(
                f"{operation.name} reduces with {reduction}", "use sum, prod, min or max"
            )
        return _REDUCTIONS[reduction]

    def _format_expression(self, operation: Operation) -> str:
        """Return a computation as an expression of PyTorch.

        A reduction to a scalar also waits for its all-reduce, if axes slice the operand. An
        update gives its new value. Raises `InputError` for a convolution or any other kind that
        has no form in PyTorch, for a row reduction that PyTorch lacks, and for a scatter into
        blocks of unequal length.
        """
        kind = operation.kind
        if kind in REDUCTIONS_TO_SCALARS:
            return self._format_scalar(operation)
        operands = [self._format_operand(operation, operand) for operand in operation.operands]
        if kind in _INFIX:
            return f" {_INFIX[kind]} ".join(operands)
        if kind in _FUNCTIONS:
            return _FUNCTIONS[kind].format(*operands)
        group = self._format_group(operation.axes)
        dimension = operation.dimension
        if kind is Kind.ROW_REDUCE:
            reduction = str(operation.reduction)
            if reduction not in _ROWS:
                message = f"{operation.name} reduces with {reduction}"
                raise self._refuse(message, "use sum, prod, min or max")
            text = f"{operands[0]}.{_ROWS[reduction]}({dimension}, keepdim=True)"
            return text + self._format_narrowing(operation)
        formats: dict[Kind, Callable[[], str]] = {
            Kind.ARG_MAX: lambda: f"{operands[0]}.argmax({dimension}, keepdim=True)",
            Kind.TOP_VALUES: lambda: f"_top({operands[0]}, {dimension}, {operation.count}).values",
            Kind.TOP_INDICES: lambda: (
                f"_top({operands[0]}, {dimension}, {operation.count}).indices"
            ),
            Kind.GATHER: lambda: self._format_gather(operation),
            Kind.SCATTER: lambda: (
                f"_scatter({operands[0]}, {operands[1]},"
                f" {list(self._find_local_shape(operation.name, needs_lengths=True))})"
            ),
            Kind.PERMUTE: lambda: f"{operands[0]}.permute({list(operation.order or ())})",
            Kind.PART: lambda: (
                f"{operands[0]}.narrow({dimension}, {operation.start}, {operation.count})"
            ),
            Kind.CAST: lambda: f"{operands[0]}.to(torch.{operation.element})",
            Kind.SLICE: lambda: f"_block({operands[0]}, {operation.dimension}, {group})",
            Kind.UPDATE: lambda: operands[1],
            Kind.RESHAPE: lambda: (
                f"{operands[0]}.reshape({list(self._find_local_shape(operation.name))})"
            ),
            Kind.CONCAT: lambda: f"torch.cat([{', '.join(operands)}], {operation.dimension})",
        }
        if kind not in formats or kind in CONTRACTIONS:
            raise self._refuse(
                f"{operation.name}: {kind} is not written for PyTorch", "use tensor-program"
            )
        return formats[kind]()

    def _format_narrowing(self, operation: Operation) -> str:
        """Return the suffix `.to(torch.ELEMENT)` that restores the element type of a reduction.

        PyTorch makes sums and products of integers int64. The suffix is empty for int64 and
        float results, and for minimum and maximum.
        """
        element = self.program.types[operation.name].element
        is_wide = operation.kind is Kind.SUM or str(operation.reduction) in ("sum", "prod")
        if not is_wide or element.is_float or element is ElementType.INT64:
            return ""
        return f".to(torch.{element})"

    def _format_gather(self, operation: Operation) -> str:
        """Return the Python expression that selects rows of a table by index (Gather).

        If no axis of the mesh slices the rows, it is `table[indices]`. Otherwise it calls
        `_gather_rows` with the number of rows of the complete table and the process group of the
        slicing axes. Indices then count in the complete table, and rows that another rank holds
        are zeros. The group is registered with the module if it combines axes of a mesh.
        """
        rows, indices = operation.reads
        kind = self.program.types[rows]
        positions = [axis for axis, layout in enumerate(kind.layout.by_axis) if layout == sliced(0)]
        if not positions:
            return f"{rows}[{indices}]"
        axes = [self.program.mesh[axis] for axis in positions] if self.program.mesh else None
        size = self.bound.binding.shape(kind.shape)[0]
        return f"_gather_rows({rows}, {indices}, {size}, {self._format_group(axes)})"

    def _format_scalar(self, operation: Operation) -> str:
        """Return the Python expression of a reduction to a scalar: SUM, MAX or NORM (Euclidean).

        - No axis of the mesh slices the operand: the expression reduces the tensor of the rank.
        - Otherwise it also all-reduces the scalar over the group of the slicing axes, and waits
          for the result. A sum is all-reduced by sum and a maximum by maximum. For a norm the
          sums of squares are all-reduced by sum before the square root.
        """
        part, reduction, result = _SCALARS[operation.kind]
        text = part.format(operation.reads[0]) + self._format_narrowing(operation)
        layouts = self.program.types[operation.reads[0]].layout.by_axis
        if any(layout.is_sliced for layout in layouts):
            axes = zip(self.program.mesh, layouts, strict=False)
            group = self._format_group([axis for axis, layout in axes if layout.is_sliced])
            text = f"_all_reduce_scalar({text}, {reduction!r}, {group})"
        return result.format(text)

    def _format_operand(self, operation: Operation, operand: Operand) -> str:
        """Return an operand as Python expression: a number, a name, or a block of a value.

        - An operand that is no name is a number and is returned as its `repr`.
        - If `operation` is not pointwise, the name is returned.
        - Otherwise the name is enclosed in one call of `_block` per mesh axis that slices the
          result and replicates the operand. The call takes this rank's block of the sliced
          dimension. Dimensions are aligned at the end of the shapes. An axis is left out if the
          operand lacks the dimension or has size 1 there.
        """
        if not isinstance(operand, str):
            return repr(operand)
        result, kind = self.program.types[operation.name], self.program.types[operand]
        if operation.kind not in POINTWISE:
            return operand
        text = operand
        pairs = zip(result.layout.by_axis, kind.layout.by_axis, strict=True)
        for axis, (layout, found) in enumerate(pairs):
            if layout.is_sliced and found == REPLICATED:
                distance = distance_from_end(layout.dimension, len(result.shape))
                if has_dimension(kind.shape, distance):
                    group = self._format_group(self.program.mesh[axis : axis + 1])
                    text = f"_block({text}, {len(kind.shape) - distance}, {group})"
        return text

    def _find_local_shape(self, name: str, *, needs_lengths: bool = False) -> tuple[int, ...]:
        """Return the shape of a value on a rank, with -1 for sliced dimensions of unknown length.

        Dimensions that are not sliced have their full size. A sliced dimension has the length of
        the rank's block, i.e. its size divided by the number of ranks on the mesh axis, if
        `needs_lengths`, or if the mesh has several axes, the division has no remainder, and the
        block is not empty. Otherwise it is -1. Raises `InputError` if `needs_lengths` and a
        division has a remainder.
        """
        kind = self.program.types[name]
        shape = list(self.bound.binding.shape(kind.shape))
        for layout, ranks in zip(kind.layout.by_axis, self.bound.binding.axis_sizes, strict=True):
            if layout.is_sliced:
                length, remainder = divmod(shape[layout.dimension], ranks)
                if needs_lengths and remainder:
                    cure = f"use sizes that are multiples of {ranks}"
                    raise self._refuse(f"{name} has blocks of unequal length", cure)
                is_equal = bool(kind.layout.axes) and not remainder and length > 0
                shape[layout.dimension] = length if needs_lengths or is_equal else -1
        return tuple(shape)

    def _refuse(self, message: str, cure: str) -> InputError:
        location = Location(self.program.name)
        return InputError(message, location=location, cure=cure, code="torch-module")


def _describe_layout(program: Program, name: str) -> int | str | list[int | str]:
    """Return the layout of a value: the sliced dimension, `replicated`, or `local` for any other.

    On a mesh of several axes it is a list with one such entry per axis.
    """
    layouts: list[int | str] = [
        layout.dimension
        if layout.is_sliced
        else ("replicated" if layout == REPLICATED else "local")
        for layout in program.types[name].layout.by_axis
    ]
    return layouts if len(layouts) > 1 else layouts[0]
