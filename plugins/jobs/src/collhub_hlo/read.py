"""Read HLO or StableHLO text as a workload: the program of one device, for all devices."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import cast

import numpy as np
from collhub_hlo_modules.collectives import KINDS, HloCollective
from collhub_hlo_modules.module import Module, read_module
from collhub_hlo_modules.text import StatementReader
from collhub_templates import number_by_use, repeat_edges, work_of

from collhub_hlo.mlir_text import MlirReader
from collhub_hlo.plugin import HLO, STABLEHLO, HloOptions
from collhub_hlo.stablehlo import read_stablehlo
from collhub_hlo.walking import NONE, WalkedProgram, evaluate
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Provenance,
    Severity,
    Workload,
    format_bytes,
)
from hub_core.plugin_api import Source, decompressed

EXTENSION = "hlo"
_MAX_LISTED_CALLS = 1000
_BYTECODE = b"ML\xefR"


def read(source: Source, options: HloOptions) -> Workload:
    """Read an HLO module (text) as a workload with replicas x partitions ranks.

    The text may be compressed. Assumptions and losses are reported through `source.report`.
    Raise `InputError` for several files (`several-files`); and, with the line, for damaged
    text, invalid groups, loops of unknown length (without the option `trip_count`), and too
    many nodes.
    """
    part = source.get_only_part("a module for all devices")
    with decompressed(part.stream(), part.name) as stream:
        statements = StatementReader(stream, part.name)
        module = read_module(statements, options.trip_count, assumes_devices=True)
    return _evaluate(module, options, source, HLO)


def read_mlir(source: Source, options: HloOptions) -> Workload:
    """Read a StableHLO module (MLIR as text, may be compressed) as a workload.

    The workload has replicas x partitions ranks. `options.trip_count` is the number of iterations
    of loops that do not state it; the other options are those of `HloOptions`. Assumptions and
    losses are reported through `source.report`.

    Raises `InputError` for several files (`several-files`); for MLIR bytecode (`bytecode`), with
    the commands that write text; and, with the line, for damaged text, invalid groups, loops of
    unknown length, and too many nodes.
    """
    part = source.get_only_part("a module for all devices")
    with decompressed(part.stream(), part.name) as stream:
        buffered = io.BufferedReader(cast(io.RawIOBase, stream))
        if buffered.peek(len(_BYTECODE)).startswith(_BYTECODE):
            cure = (
                "write text: lowered.as_text() of JAX, or stablehlo-translate --deserialize FILE"
                " for portable artifacts"
            )
            message = "this file is MLIR bytecode; text is read"
            raise InputError(message, location=Location(part.name), cure=cure, code="bytecode")
        module = read_stablehlo(MlirReader(buffered, part.name), options.trip_count)
    return _evaluate(module, options, source, STABLEHLO)


def _evaluate(module: Module, options: HloOptions, source: Source, format_name: str) -> Workload:
    """Convert a module to a workload: evaluate its entry, and report assumptions and losses.

    They are reported through `source.report`. `format_name`: format for the notes and the
    provenance. Raises `InputError` as `evaluate`.
    """
    file = source.parts[0].name
    program = evaluate(module, options, file)
    for code, text, severity in _notes(module, program, options, format_name):
        source.report(Diagnostic(code, text, severity, Location(file)))
    count = module.devices.count
    tables = _JobTables(program.calls, count)
    columns, rows = tables.columns(program, options), len(program.kind)
    edges = repeat_edges((program.before, program.after), rows, count)
    is_data = not module.is_scheduled or options.order == "data"
    no_edges = np.zeros(0, np.int64), np.zeros(0, np.int64)
    nodes = NodeColumns.from_columns(
        count,
        columns,
        edges if is_data else no_edges,
        no_edges if is_data else edges,
        source.name,
    )
    calls: list[JsonValue] = [_call_to_json(call) for call in program.calls[:_MAX_LISTED_CALLS]]
    entry = module.entry
    assert entry
    facts: dict[str, JsonValue] = {
        "module": module.name,
        "replicas": module.devices.replicas,
        "partitions": module.devices.partitions,
        "is_scheduled": module.is_scheduled,
        "products": entry.products,
        "product_operations": entry.product_operations,
        "collectives": calls,
    }
    return Workload(
        nodes,
        tuple(program.names),
        tables.groups,
        provenance=Provenance(format_name, "", source.name, source.sha256()),
        extensions={EXTENSION: facts},
    )


def lines(workload: Workload) -> Sequence[str]:
    """Describe the module of a workload for `inspect`, one fact per line.

    The first line has the name of the module, the replicas and the partitions. The second has the
    number of matrix products and their operations per device. Then one line follows for each
    collective that the extension lists (at most 1000), in its order: number of calls, kind,
    reduction if any, name, operand bytes of a call, dtype and groups. Empty for workloads that
    these readers did not create.
    """
    facts = workload.extensions.get(EXTENSION)
    if not isinstance(facts, dict):
        return []
    described = [
        f"module          {facts['module']}: {facts['replicas']} replicas x"
        f" {facts['partitions']} partitions",
        f"matrix products {facts['products']}, {facts['product_operations']} operations a device",
    ]
    calls = facts["collectives"]
    for call in calls if isinstance(calls, list) else []:
        assert isinstance(call, dict)
        assert isinstance(call["operand_bytes"], int)
        reduction = f" ({call['reduction']})" if call["reduction"] else ""
        described.append(
            f"{call['calls']} x {call['kind']}{reduction} {call['name']}:"
            f" {format_bytes(call['operand_bytes'])} {call['dtype']}, {call['groups']}"
        )
    return described


def _notes(
    module: Module, program: WalkedProgram, options: HloOptions, format_name: str
) -> Sequence[tuple[str, str, Severity]]:
    """Return (code, text, severity) of every finding about the module and its lowered program.

    The findings are, in this order:

    - warning `hlo-loss` for each entry of the program's losses, then of the module's losses, with
      its count
    - warning `hlo-devices` for each of the module's notes
    - only for a module of several devices, warnings `hlo-unpartitioned`: first if computations have
      the shapes of all devices together; then if the module has shardings, but the program calls no
      collective
    - note `hlo-devices` if both replicas and partitions exceed 1: the order of ranks is assumed
    - with the option `tflops`: note `hlo-unfused` if the format is StableHLO, then note
      `hlo-roofline`, because durations are estimates
    """
    notes = [
        ("hlo-loss", f"{count} evaluations of {text}", Severity.WARNING)
        for text, count in program.losses.items()
    ]
    notes += [
        ("hlo-loss", f"{count} {text}", Severity.WARNING) for text, count in module.losses.items()
    ]
    notes += [("hlo-devices", text, Severity.WARNING) for text in module.notes]
    if module.devices.count > 1 and module.global_instructions:
        text = (
            f"{module.global_instructions} computations have the shapes of all devices together,"
            " and the collectives that partitioning will add are not in the module; read the HLO"
            " text of the compiled program"
        )
        notes.append(("hlo-unpartitioned", text, Severity.WARNING))
    if module.devices.count > 1 and not program.calls and module.is_sharded:
        text = (
            "the module has shardings but no collectives: it is a dump before partitioning, with"
            " shapes of all devices together; read the dump after optimizations"
        )
        notes.append(("hlo-unpartitioned", text, Severity.WARNING))
    if module.devices.replicas > 1 and module.devices.partitions > 1:
        text = "rank = replica x partitions + partition is assumed: the text has no devices"
        notes.append(("hlo-devices", text, Severity.NOTE))
    if format_name == STABLEHLO and options.tflops:
        text = "operations are not fused yet: each one reads and writes memory in the durations"
        notes.append(("hlo-unfused", text, Severity.NOTE))
    if options.tflops:
        rate = f"{options.tflops:g} TFLOP/s and {options.memory_bandwidth / 1e12:g} TB/s"
        notes.append(("hlo-roofline", f"durations are estimates for {rate}", Severity.NOTE))
    return notes


def _call_to_json(call: HloCollective) -> dict[str, JsonValue]:
    sizes = sorted({len(group) for group in call.groups})
    noun = "pairs" if call.opcode not in KINDS else "groups"
    spread = "" if noun == "pairs" else " of " + ", ".join(map(str, sizes))
    return {
        "name": call.name,
        "kind": call.opcode,
        "dtype": call.dtype,
        "reduction": call.reduction,
        "operand_bytes": call.operand_bytes,
        "result_bytes": call.result_bytes,
        "calls": call.calls,
        "line": call.line,
        "groups": f"{len(call.groups)} {noun}{spread}",
    }


class _JobTables:
    """Groups of the job, and the group, root and peers of each collective by rank.

    The last row of every table is for rows that do not communicate.
    """

    def __init__(self, calls: Sequence[HloCollective], count: int) -> None:
        every = tuple(range(count))
        shape = len(calls) + 1, count
        self.is_member = np.zeros(shape, np.bool_)
        self.group = np.full(shape, NONE, np.int64)
        self.root = np.full(shape, NONE, np.int64)
        self.target = np.full(shape, NONE, np.int64)
        self.source = np.full(shape, NONE, np.int64)
        numbers: dict[tuple[int, ...], int] = {}
        for row, call in enumerate(calls):
            for ranks in call.groups:
                members = list(ranks)
                if call.opcode not in KINDS:
                    if ranks[0] != ranks[1]:
                        self.target[row, ranks[0]], self.source[row, ranks[1]] = ranks[1], ranks[0]
                    continue
                # A collective of one rank does not communicate.
                self.is_member[row, members] = len(ranks) > 1
                if ranks != every and len(ranks) > 1:
                    self.group[row, members] = numbers.setdefault(ranks, len(numbers))
                if call.opcode == "collective-broadcast":
                    self.root[row, members] = ranks[0]
        # Numbered by first use, rank by rank, as readers of written workloads number them.
        by_rank = self.group.T[:, :-1].reshape(-1)
        order, number_of = number_by_use(by_rank, len(numbers))
        self.group = number_of[self.group]
        ranks_of = list(numbers)
        self.groups = tuple(
            ProcessGroup(f"group_{index}", ranks_of[number])
            for index, number in enumerate(order.tolist())
        )
        kinds = [int(KINDS.get(call.opcode, NONE)) for call in calls]
        self._collective = np.array([*kinds, NONE], np.int64)
        # Both ends of a message have one tag; `send` and `recv` share a channel.
        tags = [
            call.channel if call.opcode in ("send", "recv") else len(calls) + index
            for index, call in enumerate(calls)
        ]
        self._tag = np.array([*(tag & 0x7FFFFFFF for tag in tags), 0], np.int64)

    def columns(self, program: WalkedProgram, options: HloOptions) -> dict[str, Int64Array]:
        """Build the columns of all ranks: all rows of rank 0, then of rank 1, and so on.

        Every rank has all rows of `program` in their order. Returns int64[ranks * rows] by name. A
        collective of which the rank is no member, and a SEND or RECV without a peer of the rank,
        become MARKER. `rank`, `kind` and `name` are set in all rows. The other columns are set only
        in these rows, elsewhere they are NONE (`tag`: 0):

        - computation: `operations`, `bytes`, `duration_ns`
        - collective: `bytes`, `collective`, `group`, `root`
        - SEND or RECV: `bytes`, `peer`, `tag`

        `duration_ns` is estimated from the rates in `options`: NONE without rates, at most 2^62 -
        1.
        """
        count, rows = self.group.shape[1], len(program.kind)
        kind = np.tile(np.array(program.kind, np.int64), count)
        call = np.tile(np.array(program.call, np.int64), count)
        rank = np.repeat(np.arange(count, dtype=np.int64), rows)
        is_send, is_receive = kind == NodeKind.SEND, kind == NodeKind.RECV
        peer = np.where(is_send, self.target[call, rank], self.source[call, rank])
        is_absent = (kind == NodeKind.COLLECTIVE) & ~self.is_member[call, rank]
        is_absent |= (is_send | is_receive) & (peer < 0)
        kind[is_absent] = int(NodeKind.MARKER)
        is_message = (kind == NodeKind.SEND) | (kind == NodeKind.RECV)
        is_collective = kind == NodeKind.COLLECTIVE
        is_compute = kind == NodeKind.COMPUTE

        def only(mask: BoolArray, values: Int64Array, default: int = NONE) -> Int64Array:
            return np.where(mask, values, default)

        operations, size = (
            np.array(column, np.int64) for column in (program.operations, program.bytes)
        )
        works = [
            work_of(options, *pair).get("duration_ns", NONE)
            for pair in zip(program.operations, program.bytes, strict=True)
        ]
        durations = np.array([min(duration_ns, (1 << 62) - 1) for duration_ns in works], np.int64)
        return {
            "rank": rank,
            "kind": kind,
            "name": np.tile(np.array(program.name, np.int64), count),
            "operations": only(is_compute, np.tile(operations, count)),
            "bytes": only(is_compute | is_collective | is_message, np.tile(size, count)),
            "duration_ns": only(is_compute, np.tile(durations, count)),
            "collective": only(is_collective, self._collective[call]),
            "group": only(is_collective, self.group[call, rank]),
            "root": only(is_collective, self.root[call, rank]),
            "peer": only(is_message, peer),
            "tag": only(is_message, self._tag[call], 0),
        }
