"""Execute a program of `mscclpp.language` in a separate process and report its plans.

Our implementation is importable as `mscclpp.language` only in that process. The report also lists
defects that the plan of the package (release 1f5f065d) for this program has. Our plan does not have
them, so the author needs to know them before the program is run with the package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from collhub_mscclpp import language
from collhub_mscclpp.language.fusion import (
    MAX_CHANNELS,
    MAX_RANGES,
    MAX_SEMAPHORES,
    SUMS,
    exceeds_tables,
    fuse_as_package,
    lists_channels,
    mixes_sources,
    reads_sum,
)
from collhub_mscclpp.language.plan_document import (
    find_missing_barrier,
    insert_data_barriers_as_package,
    insert_requested_barriers,
)
from collhub_mscclpp.language.program import CollectiveProgram
from collhub_mscclpp.language.recorded import Recorded, ReduceOperationType, ReplicationPolicy
from hub_core.model import InputError
from hub_core.sandbox import Report, calling_line, chosen_places, error_report, run_job

# The package has many modules; programs import names from any of them.
_MODULES = (
    "mscclpp",
    "mscclpp.language",
    "mscclpp.language.channel",
    "mscclpp.language.collectives",
    "mscclpp.language.general",
    "mscclpp.language.internal",
    "mscclpp.language.internal.types",
    "mscclpp.language.loop",
    "mscclpp.language.program",
    "mscclpp.language.rank",
    "mscclpp.language.thread_block_group",
    "mscclpp.language.utils",
)


def has_package() -> bool:
    """Whether the package `mscclpp` with its language is installed and can be loaded."""
    try:
        return importlib.util.find_spec("mscclpp.language.program") is not None
    # A package without the language, or one that cannot be loaded on this host.
    except (ImportError, OSError):
        return False


def install() -> None:
    """Insert this implementation into `sys.modules` under the module names of the package.

    Existing modules of these names are replaced. Every module, also an inner one, has all public
    names of the language. Inner modules become attributes of their parents.
    """
    exported = {name: getattr(language, name) for name in language.__all__}
    for name in _MODULES:
        module = ModuleType(name, language.__doc__)
        module.__dict__.update(exported, __all__=list(exported), __path__=[])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


class _PlanLanguage:
    """The functions of the language that `run_job` calls."""

    folder = str(Path(__file__).parent)

    def __init__(self) -> None:
        self._file = ""
        self._uses_package = False
        self._programs: list[Any] = []
        self._lines: list[int] = []
        # By number of the program: the plan that the program itself requested. A second request
        # for a plan would create its instances twice in the package.
        self._plans: dict[int, str] = {}

    def prepare(self, file: str) -> None:
        """Prepare to record the programs that the file defines; the file is not executed here.

        If the package `mscclpp` is installed, the programs of its class are recorded. Otherwise
        this implementation is made importable under the names of the package. Two methods of the
        class of programs are replaced permanently. The new ones call the original ones and return
        their results. `__enter__` appends the program, and the line of its `with` statement, for
        each call. `to_json` records the returned text as the plan of the program, for each recorded
        `with` of it; a later text replaces an earlier one.

        Raises `InputError` (`not-available`) for a package without the class, which is older than
        this form of the language.
        """
        self._file = file
        self._uses_package = has_package()
        program_class: Any = CollectiveProgram
        if self._uses_package:
            module = importlib.import_module("mscclpp.language.program")
            program_class = getattr(module, "CollectiveProgram", None)
            if program_class is None:
                message = "the installed package mscclpp has no CollectiveProgram: it is too old"
                cure = "upgrade mscclpp, or uninstall it; the hub then uses its own implementation"
                raise InputError(message, cure=cure, code="not-available")
        else:
            install()
        enter, to_json = program_class.__enter__, program_class.to_json

        def enter_recorded(program: Any) -> Any:
            # The line of `with`, to tell several programs apart.
            self._programs.append(program)
            self._lines.append(calling_line(self._file))
            return enter(program)

        def to_json_recorded(program: Any, *arguments: Any, **keywords: Any) -> Any:
            text = to_json(program, *arguments, **keywords)
            places = [at for at, recorded in enumerate(self._programs) if recorded is program]
            self._plans.update(dict.fromkeys(places, text))
            return text

        program_class.__enter__, program_class.to_json = enter_recorded, to_json_recorded

    def has_result(self) -> bool:
        """Whether the file has executed a program."""
        return self._programs != []

    def report(self, namespace: Mapping[str, object], chosen: str | None, end: Report) -> Report:
        """Return the report of the chosen program: its plan, its line, and defects.

        `chosen`: a number from 1 in the order of the `with` statements or, if no program has this
        number, a name. None selects all programs. If not exactly one program is selected, an error
        report (`several-programs`, line -1) is returned, which lists all programs.

        Otherwise the report has these members:

        - `plan`: the last text that `to_json` of the program returned. If the file has not
          called it, it is called here; its errors pass through.
        - `line`: line of the `with` statement in the file, -1 if it is in no line of the file
        - `package`: whether the installed package made the plan
        - `defects`: texts of `find_defects`. Empty if the package is used, because the check of
          the plan detects them.

        `namespace` and `end` are ignored.
        """
        del namespace, end
        names = [str(program.name) for program in self._programs]
        fitting = chosen_places(names, chosen)
        if len(fitting) != 1:
            listed = ", ".join(f"{at} {name!r}" for at, name in enumerate(names, 1))
            message = f"defines {len(names)} programs: {listed or 'none'}"
            return error_report(message, -1, "several-programs")
        number = fitting[0]
        if number not in self._plans:
            self._programs[number].to_json()
        plan, line = self._plans[number], self._lines[number]
        # A plan of the package contains its defects; the check of plans finds them.
        programs = () if self._uses_package else self._programs
        defects = [*find_defects(self._programs[number], programs[:number])] if programs else []
        return {"plan": plan, "line": line, "package": self._uses_package, "defects": defects}

    def message(self, error: BaseException) -> str:
        """Return an explanation of an exception that a program raised; "" if there is none.

        Only with this implementation, i.e. without the installed package, two kinds are explained:

        - an `ImportError` about a module in `mscclpp` that the language does not have: in
          `mscclpp.language` it is of the earlier language with chunks, otherwise of the runtime
        - an `AttributeError` about a name that the module `mscclpp` lacks: a part of the runtime
        """
        if self._uses_package:
            return ""
        missing = ""
        if isinstance(error, ImportError) and (error.name or "").startswith("mscclpp."):
            missing = str(error.name)
        elif isinstance(error, AttributeError) and error.obj is sys.modules.get("mscclpp"):
            missing = f"mscclpp.{error.name}"
        if missing.startswith("mscclpp.language"):
            return (
                f"imports {missing}, which the language does not have; the earlier one with `chunk`"
                " is not read: write the program with channels and buffers"
            )
        return missing and (
            f"needs {missing}, a part of the runtime of MSCCL++: move the program to a file without"
            " it, or install the package mscclpp"
        )


def main() -> None:
    """Read a job from standard input, execute its program, and write the report to standard
    output.
    """
    run_job(_PlanLanguage())


_MAX_BARRIERS = 16
_SEPARATE = "separate them by another operation, or set instr_fusion=False"


def find_defects(
    program: CollectiveProgram,
    earlier: Sequence[CollectiveProgram] = (),
) -> Iterator[str]:
    """Yield a text for each defect of the plan that the package mscclpp would write for a program.

    1. The replication policy is `none`.
    2. Both the program and the `earlier` programs have barriers: the package continues their
       numbers. `earlier`: programs of the same process that were built before.
    3. Then defects of operations, by rank. The operations are those after the package's fusion
       (only with `instr_fusion`) and insertion of barriers (`_find_block_defects`). The kinds are:
       invalid operation, operation that exceeds the tables of executors, fused sums of which one
       reads the result of the other, and dependent operations without a barrier (only with
       `auto_sync`).

    Each kind gives at most one text per rank, for the first defect in the order of thread blocks.
    The texts of a rank are in the order in which their kinds occur first. They begin with rank and
    thread block. Without defects the iterator is empty.
    """
    if program.replication_policy is ReplicationPolicy.none:
        yield "replication_policy none always fails with a TypeError there: leave it out"
    # The package continues the numbers of the barriers of earlier programs.
    count = _count_barriers(program)
    before = sum(map(_count_barriers, earlier))
    if count and before:
        is_over = before + count > _MAX_BARRIERS
        more = f", beyond the {_MAX_BARRIERS} of the executor" if is_over else ""
        yield (
            f"its barriers are numbered from {before} on there, behind those of the programs "
            f"before it{more}: make each program in a process of its own"
        )
    for rank, blocks in enumerate(program.blocks):
        text_by_kind: dict[str, str] = {}
        for number, recorded in sorted(blocks.items()):
            for kind, text in _find_block_defects(program, recorded):
                text_by_kind.setdefault(kind, f"rank {rank}, thread block {number}: {text}")
        yield from text_by_kind.values()


def _count_barriers(program: CollectiveProgram) -> int:
    """Return the largest number of barriers of a rank."""
    return max(map(len, program.barriers), default=0)


def _find_block_defects(
    program: CollectiveProgram, recorded: Sequence[Recorded]
) -> Iterator[tuple[str, str]]:
    """Yield (kind of defect, text) for the plan that the package would create for a thread block.

    `recorded`: the operations of the block. They are fused as by the package if
    `program.instr_fusion`, then get its requested barriers, and its data barriers if
    `program.auto_sync`. `_find_list_defects` examines first this list, then the body of each
    pipeline in it, in order. Pipelines inside pipelines are not examined. Kinds are those of
    `_find_operation_defects`, and:

    - `size`: a fused operation exceeds the tables of executors
    - `sum`: two sums are fused although the second one reads the result of the first
    - `meeting`: two dependent operations have no barrier between them (only with `auto_sync`)

    Yields nothing for a block without defects. `recorded` is not changed.
    """
    fused = fuse_as_package(recorded) if program.instr_fusion else list(recorded)
    lowered = insert_requested_barriers(fused)
    if program.auto_sync:
        lowered = insert_data_barriers_as_package(lowered)
    yield from _find_list_defects(program, recorded, fused, lowered)
    bodies = zip(
        *(
            [operation.body for operation in operations if operation.name == "pipeline"]
            for operations in (recorded, fused, lowered)
        ),
        strict=True,
    )
    for lists in bodies:
        yield from _find_list_defects(program, *lists)


def _find_list_defects(
    program: CollectiveProgram,
    recorded: Sequence[Recorded],
    fused: Sequence[Recorded],
    lowered: Sequence[Recorded],
) -> Iterator[tuple[str, str]]:
    """Yield (kind of defect, text) for one list of operations: a thread block or a pipeline.

    `recorded`, `fused`, `lowered`: the operations as recorded, after fusion, and with barriers. The
    defects, in this order:

    - For each fused operation: its defects (`_find_operation_defects`), then `size` if it exceeds
      the executor's tables (`exceeds_tables`). `size` is omitted if any recorded operation exceeds
      them, because another check reports that.
    - `sum`, only with `instr_fusion`: each two neighbours in `recorded` that are sums of the same
      name, if the package fuses them although the second reads the result of the first.
    - `meeting`, only with `auto_sync`: the first pair of dependent operations in `lowered` without
      a barrier in between (`find_missing_barrier`).
    """
    # A recorded operation with too many operands is in our plan too; its check reports it.
    is_long = any(exceeds_tables(operation) for operation in recorded)
    for operation in fused:
        yield from _find_operation_defects(operation, program.instances)
        if exceeds_tables(operation) and not is_long:
            ranges = max(len(operation.src), len(operation.dst))
            channels = len(operation.channels) if lists_channels(operation) else 0
            text = f"neighbours become one {operation.name} of {channels} channels, {ranges} ranges"
            limits = f"{MAX_CHANNELS}, {MAX_RANGES} and {MAX_SEMAPHORES}"
            semaphores = len(operation.semaphores)
            counts = f"and {semaphores} semaphores there, and executors have room for"
            yield "size", f"{text} {counts} {limits}: {_SEPARATE}"
    if program.instr_fusion:
        # The package fuses sums even if the second one adds the result of the first.
        for first, second in pairwise(recorded):
            joined = fuse_as_package([first, second])
            is_sum = first.name == second.name and first.name in SUMS
            if is_sum and len(joined) == 1 and reads_sum(first, second):
                text = f"two neighbouring {first.name} become one there, which reads a chunk before"
                yield "sum", f"{text} the first one has written it: {_SEPARATE}"
    pair = find_missing_barrier(lowered, program.locate) if program.auto_sync else None
    if pair is not None:
        first, second = pair
        text = f"threads do not meet between {first.name} and {second.name} there, though both"
        yield "meeting", f"{text} touch the same data: add a barrier of the block"


def _find_operation_defects(operation: Recorded, instances: int) -> Iterator[tuple[str, str]]:
    """Yield (kind of defect, text) for one operation of the package's plan, in this order.

    - `switch`: a `glres` (sum and broadcast) whose first source and first destination have
      different indices
    - `buffers`: a put (`put` or `ppkt`) on a memory channel with sources in several buffers, which
      are all read from the buffer of the first source
    - `packets`: a `recpkt` or `recspkt` (a sum whose result is also stored as packets), if
      `instances` is above 1
    - `operator`: any operation with a reduction operator other than sum

    Yields nothing for all other operations. `instances`: number of instances of the program.
    """
    name = operation.name
    if name == "glres" and operation.src[0].index != operation.dst[0].index:
        summed, stored = operation.src[0].index, operation.dst[0].index
        text = f"a sum of chunk {summed} that is broadcast to chunk {stored} is stored at"
        yield "switch", f"{text} {summed} there: use equal chunks"
    if mixes_sources(operation):
        buffers = list(dict.fromkeys(chunk.buffer.value for chunk in operation.src))
        text = f"neighbouring {name} of buffers {', '.join(buffers)} become one there"
        yield "buffers", f"{text}, which copies all from {buffers[0]}: {_SEPARATE}"
    if name in ("recpkt", "recspkt") and instances > 1:
        text = f"all {instances} instances of {name} write one copy of the packets there"
        yield "packets", f"{text}: {_SEPARATE}"
    if operation.reduce_op not in ("", ReduceOperationType.sum.value):
        text = f"{name} names the operator {operation.reduce_op}, and executors always add"
        yield "operator", f"{text}: use the operator sum"
