"""Readers of captured programs: `torch.export` archives, documents of graphs, and HLO text."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence

from collhub_captured_graphs import CapturedGraph, graph_from_json, read_export

from collhub_coconet.lowering.workload import lower_source
from collhub_coconet.plugin import CapturedHloOptions, CapturedOptions
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, parse_placement, type_graph
from hub_core.model import UsageError, Workload, parse_whole
from hub_core.plugin_api import Source, decompressed


def read_archive(source: Source, options: CapturedOptions) -> Workload:
    """Read the graph of a `.pt2` archive as the workload of a typed program.

    Raise `UsageError` unless the source has exactly one archive, and for invalid options.
    Raise `InputError` for an archive that `torch.export.save` did not write
    (`read_export`), and for graphs that cannot be typed (`type_graph`).
    """
    if len(source.parts) != 1:
        raise UsageError(f"{source.name}: one archive was expected, {len(source.parts)} were given")
    with source.parts[0].stream() as stream:
        # A stream that cannot seek is read completely, since the directory is at the end.
        archive = stream if stream.seekable() else io.BytesIO(stream.read())
        graph = read_export(archive, source.name)
    return _lower(graph, source, options)


def read_document(source: Source, options: CapturedOptions) -> Workload:
    """Read a document `collhub/captured-graph-1` as the workload of a typed program.

    Raises `InputError` for an invalid document or a graph that has no types.
    """
    return _lower(graph_from_json(source.content(), source.name), source, options)


def read_hlo(source: Source, options: CapturedHloOptions) -> Workload:
    """Read the HLO text of a compiled program, such as that of JAX, as a typed program.

    The text may be compressed. `options.trip_count`: trips of loops whose number is
    unknown. Raise `UsageError` unless the source has exactly one file, and for invalid
    options. Raise `InputError` with the line for damaged text and for modules with messages
    between devices, and for graphs that `type_graph` refuses.
    """
    # Imported here, because other formats of this plugin do not need the reader of HLO.
    from collhub_hlo_modules import StatementReader, build_graph, read_module

    if len(source.parts) != 1:
        raise UsageError(f"{source.name}: one module was expected, {len(source.parts)} were given")
    part = source.parts[0]
    with decompressed(part.stream(), part.name) as stream:
        statements = StatementReader(stream, part.name)
        module = read_module(statements, options.trip_count, is_complete=True)
    return _lower(build_graph(module, part.name), source, options)


def _lower(graph: CapturedGraph, source: Source, options: CapturedOptions) -> Workload:
    """Type a captured graph with the choices of the options, and lower the program to a workload.

    Parameters are replicated if the option `parameters` is `replicated`, otherwise local (a
    value per rank), unless `placements` names them. `source`: of the graph; it is recorded.
    Raise `UsageError` for `placements`, `mesh` or `groups` that cannot be parsed, and
    `InputError` for a graph that cannot be typed.
    """
    choices = TypingChoices(
        options.num_ranks,
        "R" if options.parameters == "replicated" else "L",
        parse_placements(options.placements),
        options.unknown == "local",
        parse_mesh(options.mesh),
        parse_groups(options.groups),
    )
    return lower_source(type_graph(graph, choices), source)


def parse_placements(text: str) -> Mapping[str, str]:
    """Parse the placements of tensors; return the text of each placement by name.

    The text is a list such as `w=R,x=S(0),y=(S(0),R)`. A placement is one of these:

    - `R`: replicated
    - `L`: local, a different value per rank
    - `S(d)`: sliced along dimension d
    - several of these in parentheses, one per axis of the mesh

    The number of axes is not compared with a mesh. Blanks around names and placements are
    removed. Empty entries between commas are skipped, so empty text gives {}. The last entry
    of a name is used. Raise `UsageError` for any other entry, also one of blanks only.
    """
    placements = {}
    for part in filter(None, _COMMA_OUTSIDE_BRACKETS.split(text)):
        name, sign, placement = (piece.strip() for piece in part.partition("="))
        num_axes = placement.count(",") + 1
        if not name or not sign or parse_placement(placement, num_axes) is None:
            message = f"placement {part!r:.60} is not understood"
            raise UsageError(message, cure="write placements as w=R,x=S(0),y=L,z=(S(0),R)")
        placements[name] = placement
    return placements


_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^=]*\))")


def parse_mesh(text: str) -> Mapping[str, int]:
    """Return the ranks along every axis from `dp=2,tp=4`, in this order; empty for empty text.

    Entries without any character between commas are skipped; an entry of blanks is an error. Blanks
    around names and numbers are ignored. Raises `UsageError` for other text, a name that is no
    Python identifier, a number that is not 1 to 2^63 - 1 in digits, and an axis that occurs twice.
    """
    sizes = {}
    for part in filter(None, text.split(",")):
        name, _, number = (piece.strip() for piece in part.partition("="))
        size = parse_whole(number, (1 << 63) - 1)
        if not name.isidentifier() or not size or name in sizes:
            message = f"axis {part!r:.60} is not understood"
            raise UsageError(message, cure="write the ranks along every axis once: mesh=dp=2,tp=4")
        sizes[name] = size
    return sizes


def parse_groups(text: str) -> Mapping[str, Sequence[str]]:
    """Return axes by the name of a process group from `0=tp,1=dp,2=dp+tp`; empty for empty text.

    Empty entries between commas, and blanks around names, are ignored. The last entry of a name
    counts. Raises `UsageError` for an entry without a name, without axes, or with an empty
    axis. Names of axes are not checked.
    """
    groups = {}
    for part in filter(None, text.split(",")):
        name, _, axes = (piece.strip() for piece in part.partition("="))
        names = [axis.strip() for axis in axes.split("+")]
        if not name or not all(names):
            message = f"process group {part!r:.60} is not understood"
            raise UsageError(message, cure="write the axes of every group: groups=0=tp,1=dp+tp")
        groups[name] = names
    return groups


def list_documents() -> Sequence[Source]:
    """Return an example: a gradient, reduced over four ranks and subtracted from a parameter."""
    return [Source.of_bytes("step.graph.json", _DOCUMENT.encode())]


def list_archives() -> Sequence[Source]:
    """Return one example in memory, `sum.pt2`: the sum of a tensor over all ranks.

    It has the format of `torch.export.save`; its bytes are equal at every call.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        # A fixed date, so that equal graphs give equal bytes.
        entry = zipfile.ZipInfo("sum/models/model.json", (1980, 1, 1, 0, 0, 0))
        archive.writestr(entry, json.dumps(_build_export()))
    return [Source.of_bytes("sum.pt2", content.getvalue())]


_DOCUMENT = """{
  "schema": "collhub/captured-graph-1",
  "name": "step",
  "groups": {"0": [0, 1, 2, 3]},
  "inputs": [
    {"name": "w", "element": "float32", "shape": [8], "role": "parameter", "placement": "R"},
    {"name": "x", "element": "float32", "shape": [8], "role": "input", "placement": "L"}
  ],
  "nodes": [
    {"name": "g", "operator": "aten.mul.Tensor",
     "arguments": {"self": {"value": "x"}, "other": 0.25},
     "results": [{"name": "g", "element": "float32", "shape": [8]}]},
    {"name": "a", "operator": "_c10d_functional.all_reduce.default",
     "arguments": {"input": {"value": "g"}, "reduce_op": "sum", "group_name": "0"},
     "results": [{"name": "a", "element": "float32", "shape": [8]}]},
    {"name": "a1", "operator": "_c10d_functional.wait_tensor.default",
     "arguments": {"tensor": {"value": "a"}},
     "results": [{"name": "a1", "element": "float32", "shape": [8]}]},
    {"name": "w1", "operator": "aten.sub.Tensor",
     "arguments": {"self": {"value": "w"}, "other": {"value": "a1"}},
     "results": [{"name": "w1", "element": "float32", "shape": [8]}]}
  ],
  "outputs": [{"value": "w1", "role": "mutation", "target": "w"}]
}
"""


def list_modules() -> Sequence[Source]:
    """Return an example: a gradient, averaged over four devices and subtracted from a weight."""
    return [Source.of_bytes("step.hlo.txt", _MODULE.encode())]


_MODULE = """HloModule step, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, \
entry_computation_layout={(f32[8]{0}, f32[8]{0})->f32[8]{0}}, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %total = f32[] add(%a, %b)
}

%update (w: f32[8], g: f32[8]) -> f32[8] {
  %w = f32[8]{0} parameter(0)
  %g = f32[8]{0} parameter(1)
  %rate = f32[] constant(0.025)
  %rates = f32[8]{0} broadcast(%rate), dimensions={}
  %step = f32[8]{0} multiply(%g, %rates)
  ROOT %next = f32[8]{0} subtract(%w, %step)
}

ENTRY %main (weight: f32[8], gradient: f32[8]) -> f32[8] {
  %weight = f32[8]{0} parameter(0), sharding={replicated}
  %gradient = f32[8]{0} parameter(1)
  %reduced = f32[8]{0} all-reduce(%gradient), channel_id=1, replica_groups={{0,1,2,3}}, \
use_global_device_ids=true, to_apply=%sum
  ROOT %fusion = f32[8]{0} fusion(%weight, %reduced), kind=kLoop, calls=%update
}
"""


def _build_export() -> dict[str, object]:
    """Return the JSON object of an exported program: one all-reduce (sum) of 8 float32 elements.

    Its input is `x`. The nodes are an all-reduce in group "0", named `all_reduce`, and the wait for
    it, `wait_tensor`, which is the only output. The object has the schema version 8.20, the torch
    version 2.13.0, and the graph module with graph and signature. Each call returns a new object.
    """
    size = {"dtype": 7, "sizes": [{"as_int": 8}]}
    nodes = [
        {
            "target": "torch.ops._c10d_functional.all_reduce.default",
            "inputs": [
                {"name": "input", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
                {"name": "reduce_op", "arg": {"as_string": "sum"}, "kind": 1},
                {"name": "group_name", "arg": {"as_string": "0"}, "kind": 1},
            ],
            "outputs": [{"as_tensor": {"name": "all_reduce"}}],
        },
        {
            "target": "torch.ops._c10d_functional.wait_tensor.default",
            "inputs": [{"name": "tensor", "arg": {"as_tensor": {"name": "all_reduce"}}, "kind": 1}],
            "outputs": [{"as_tensor": {"name": "wait_tensor"}}],
        },
    ]
    result = {"as_tensor": {"name": "wait_tensor"}}
    signature = {
        "input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
        "output_specs": [{"user_output": {"arg": result}}],
    }
    graph = {
        "inputs": [{"as_tensor": {"name": "x"}}],
        "outputs": [result],
        "nodes": nodes,
        "tensor_values": {"x": size, "all_reduce": size, "wait_tensor": size},
    }
    return {
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.13.0",
        "graph_module": {"graph": graph, "signature": signature},
    }
