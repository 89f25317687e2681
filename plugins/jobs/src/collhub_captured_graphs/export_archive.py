"""Read `torch.export` archives (`.pt2`): the JSON of the graph only, never the pickled weights.

Format: `torch/_export/serde/schema.py` of PyTorch 2.13 (schema version 8; versions 5 to 8 have the
fields that are read here).
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

from collhub_captured_graphs.graph import (
    MAX_NODES,
    ArgumentValue,
    CapturedGraph,
    ElementName,
    GraphInput,
    GraphNode,
    GraphOutput,
    InputRole,
    OutputRole,
    Reference,
    Tensor,
)
from hub_core import parse_json_object
from hub_core.model import InputError, Location

Fields = Mapping[str, Any]

MAX_GRAPH_BYTES = 512 << 20
"""Largest JSON of a graph, after decompression; 24 layers have about 20 MB."""

MAX_ENTRIES = 1_000_000

_SUPPORTED_MAJOR_VERSIONS = range(5, 9)
# Newer archives have one JSON per model below models/; older ones a fixed name at the top.
_GRAPH_ENTRY = re.compile(r"(?:^|/)(?:models/[^/]+\.json|serialized_exported_program\.json)$")
_ELEMENTS = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
_INPUT_ROLES = {
    "user_input": InputRole.INPUT,
    "parameter": InputRole.PARAMETER,
    "buffer": InputRole.BUFFER,
    "tensor_constant": InputRole.CONSTANT,
}
_OUTPUT_ROLES = {
    "user_output": OutputRole.OUTPUT,
    "loss_output": OutputRole.LOSS,
    "gradient_to_parameter": OutputRole.GRADIENT,
    "gradient_to_user_input": OutputRole.GRADIENT,
    "buffer_mutation": OutputRole.MUTATION,
    "parameter_mutation": OutputRole.MUTATION,
    "user_input_mutation": OutputRole.MUTATION,
}
# Arguments without a meaning for shapes, work and results.
_PLACEMENT_ARGUMENTS = frozenset({"as_device", "as_layout", "as_memory_format"})
_KEYWORD = 2
_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
_SYMBOL = re.compile(r"Symbol\('(\w+)'[^)]*\)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")


def read_export(stream: BinaryIO, file: str) -> CapturedGraph:
    """Read the graph of an archive written by `torch.export.save`.

    Only one entry, the JSON of the graph, is read; nothing is extracted or unpickled. Raises
    `InputError` for a file that is no such archive, a JSON of more than `MAX_GRAPH_BYTES`, an
    unsupported version, branches that depend on data, and sizes that depend on data.
    """
    document = parse_json_object(_read_entry(stream, file), file)
    try:
        return _GraphReader(file).read(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        message = f"the graph is malformed: {type(error).__name__} {error}"
        _fail(file, message[:200], "save it again with torch.export.save", "schema")


def _read_entry(stream: BinaryIO, file: str) -> bytes:
    """Return the bytes of the JSON entry of the only graph in an archive of torch.export.

    The graph is the entry `models/NAME.json` or `serialized_exported_program.json`
    (`_GRAPH_ENTRY`), in any folder. Raises `InputError` (`archive`) for a file that is no readable
    archive, more than `MAX_ENTRIES` entries, no graph or several graphs, and a graph that is
    encrypted or larger than `MAX_GRAPH_BYTES`. The size is also checked by reading, since the size
    in the archive may be wrong.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            graphs = [entry for entry in entries if _GRAPH_ENTRY.search(entry.filename)]
            if len(entries) > MAX_ENTRIES or len(graphs) != 1:
                names = ", ".join(entry.filename[:80] for entry in graphs[:3]) or "none"
                message = f"the archive has {len(graphs)} graphs ({names}), one is expected"
                _fail(file, message, "save one program with torch.export.save", "archive")
            entry = graphs[0]
            if entry.flag_bits & 1 or entry.file_size > MAX_GRAPH_BYTES:
                message = f"{entry.filename[:80]} is encrypted or has more than {MAX_GRAPH_BYTES} B"
                _fail(file, message, "save the program with torch.export.save", "archive")
            with archive.open(entry) as content:
                # The size in the archive may be false.
                data = content.read(MAX_GRAPH_BYTES + 1)
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        NotImplementedError,
        EOFError,
        OSError,
    ) as error:
        _fail(file, f"no readable archive: {error}", "save it with torch.export.save", "archive")
    if len(data) > MAX_GRAPH_BYTES:
        _fail(file, f"the graph has more than {MAX_GRAPH_BYTES} bytes", "", "archive")
    return data


class _GraphReader:
    """Conversion of the JSON of one program. `file`: for messages."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._values: Fields = {}

    def read(self, document: Fields) -> CapturedGraph:
        """Convert the document.

        Raises `InputError` for unsupported content. Fields that are missing or malformed raise
        `KeyError`, `TypeError`, `ValueError`, `AttributeError` or `IndexError`; `read_export`
        converts them.
        """
        version = document["schema_version"]["major"]
        if version not in _SUPPORTED_MAJOR_VERSIONS:
            message = f"schema version {version!r:.20} is not supported"
            supported = _SUPPORTED_MAJOR_VERSIONS
            cure = f"save it with a release whose version is {supported[0]} to {supported[-1]}"
            _fail(self._file, message, cure, "version")
        module = document["graph_module"]
        graph, signature = module["graph"], module["signature"]
        self._values = graph["tensor_values"]
        if len(graph["nodes"]) > MAX_NODES:
            _fail(self._file, f"the graph has more than {MAX_NODES} nodes", "", "size")
        inputs = tuple(self._read_inputs(signature["input_specs"]))
        nodes = tuple(self._read_node(node, number) for number, node in enumerate(graph["nodes"]))
        outputs = tuple(self._read_outputs(signature["output_specs"]))
        producer = f"torch {document.get('torch_version', '')}".strip()
        return CapturedGraph("exported", inputs, nodes, outputs, {}, producer[:200], self._file)

    def _read_inputs(self, specifications: Sequence[Fields]) -> Iterable[GraphInput]:
        """Yield the inputs that are tensors; constants are part of the nodes that read them."""
        for specification in specifications:
            ((role, fields),) = specification.items()
            if role == "constant_input":
                continue
            if role not in _INPUT_ROLES:
                message = f"inputs of kind {role!r:.40} are not supported"
                _fail(self._file, message, "export functions of tensors", "input")
            argument = fields["arg"]
            name = _find_name(argument)
            if name is None:
                if "as_sym_int" in argument:
                    _fail(self._file, "an input is a symbolic size", _CURE_OF_SIZES, "size")
                continue
            target = next((str(fields[key]) for key in fields if key.endswith("_name")), "")
            yield GraphInput(self._read_tensor(name), _INPUT_ROLES[role], target)

    def _read_outputs(self, specifications: Sequence[Fields]) -> Iterable[GraphOutput]:
        """Yield the outputs that are tensors."""
        for specification in specifications:
            ((kind, fields),) = specification.items()
            argument = fields.get("arg", {})
            name = _find_name(argument)
            if name is None:
                continue
            role = _OUTPUT_ROLES.get(kind, OutputRole.OUTPUT)
            target = next((str(fields[key]) for key in fields if key.endswith("_name")), "")
            yield GraphOutput(_clean(name), role, target)

    def _read_node(self, fields: Fields, number: int) -> GraphNode:
        """Convert a node of the JSON; a list of tensors as result becomes several results.

        - results: in order; None for a result that is neither a tensor nor a list of tensors
        - name: the recorded one, else that of the first tensor among the results, else
          `node_<number>`; `number` is the position of the node from 0
        - operator: the target without `torch.ops.`, such as `aten.mm.default`
        - arguments: by name, in order; without those for devices, layouts and memory formats. A
          missing name becomes `argument_<i>`, with the number i of different names before it. Of
          equal names the last value counts.
        - keywords: names of arguments passed by keyword

        In names of nodes, tensors and arguments, characters other than ASCII letters, digits and
        `_` become `_`; at most 200 are kept. Raises `InputError`, results first, then arguments in
        order, then the target: for a symbolic number (`data-dependent`), an error of
        `_read_tensor`, a subgraph (`graph-break`), an error of `_read_argument`, and a target that
        is no operator name (`operator`). Raises `KeyError` for missing fields.
        """
        target = str(fields["target"])
        results: list[Tensor | None] = []
        for output in fields["outputs"]:
            if "as_tensor" in output:
                results.append(self._read_tensor(output["as_tensor"]["name"]))
            elif "as_tensors" in output:
                results += [self._read_tensor(entry["name"]) for entry in output["as_tensors"]]
            elif "as_sym_int" in output or "as_sym_bool" in output or "as_sym_float" in output:
                message = f"node {number} ({target[:80]}) computes a size or number from data"
                _fail(self._file, message, _CURE_OF_SIZES, "data-dependent")
            else:
                results.append(None)
        first = next((tensor.name for tensor in results if tensor is not None), f"node_{number}")
        name = _clean(str(fields.get("name") or first))
        arguments: dict[str, ArgumentValue] = {}
        keywords = set()
        for entry in fields["inputs"]:
            ((form, content),) = entry["arg"].items()
            if form in _PLACEMENT_ARGUMENTS:
                continue
            if form == "as_graph":
                message = f"node {name} ({target[:80]}) has branches, which depend on data"
                _fail(self._file, message, "export a program without branches", "graph-break")
            argument = _clean(str(entry["name"]) or f"argument_{len(arguments)}")
            arguments[argument] = self._read_argument(form, content, name)
            if entry.get("kind") == _KEYWORD:
                keywords.add(argument)
        operator = target.removeprefix("torch.ops.")
        if not _WORD.fullmatch(operator):
            _fail(self._file, f"operator {operator!r:.80} is no name", "", "operator")
        return GraphNode(name, operator, arguments, tuple(results), frozenset(keywords))

    def _read_argument(self, form: str, content: Any, node: str) -> ArgumentValue:
        """Convert an argument of a node by its form (`as_tensor`, `as_ints`, ...).

        - `as_none` becomes None.
        - A tensor becomes a `Reference` to its name, an optional tensor the same or None.
        - Integers, booleans, texts and `as_operator` are returned unchanged; a float, written as
          number or text, becomes a float.
        - An element type becomes an `ElementName`.
        - A symbolic number becomes its recorded value.
        - A list of these becomes a tuple, a list of lists a tuple of tuples. Floats in
          `as_float_lists` are not converted.

        `node`: name of the node, for messages. Raises `InputError` (`argument`) for an unknown
        form, and (`data-dependent`) for a symbol without a value. Raises `KeyError` for an unknown
        element type and `ValueError` for a text that is no float; `read_export` converts both.
        """
        result: int | bool | str
        match form:
            case "as_none":
                return None
            case "as_tensor":
                return Reference(_clean(content["name"]))
            case "as_tensors":
                return tuple(Reference(_clean(entry["name"])) for entry in content)
            case "as_nested_tensors":
                return tuple(self._read_argument("as_tensors", entry, node) for entry in content)
            case "as_optional_tensor":
                ((inner, value),) = content.items()
                return self._read_argument(inner, value, node)
            case "as_optional_tensors":
                return tuple(
                    self._read_argument("as_optional_tensor", entry, node) for entry in content
                )
            case "as_int" | "as_bool" | "as_string" | "as_operator":
                result = content
                return result
            case "as_float":
                return float(content)
            case "as_floats":
                return tuple(map(float, content))
            case "as_ints" | "as_bools" | "as_strings":
                return tuple(content)
            case "as_int_lists" | "as_float_lists":
                return tuple(map(tuple, content))
            case "as_scalar_type":
                return ElementName(_ELEMENTS[content])
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._read_symbol(content, node)
            case "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return tuple(self._read_symbol(entry, node) for entry in content)
            case _:
                message = f"node {node} has an argument of form {form!r:.40}, not supported"
                cure = "export functions of tensors and numbers"
                location = Location(self._file)
                raise InputError(message, location=location, cure=cure, code="argument")

    def _read_symbol(self, content: Fields, node: str) -> ArgumentValue:
        """Return the number (int, bool or float) of a symbolic argument of the node `node`.

        The type of the number is not checked. Raise `InputError` (`data-dependent`) if the
        argument has only a name, whose value is known at run time.
        """
        form = next((key for key in ("as_int", "as_bool", "as_float") if key in content), None)
        if form is None:
            name = content.get("as_name", "")
            message = f"node {node} has the argument {name!r:.40} of unknown size"
            _fail(self._file, message, _CURE_OF_SIZES, "data-dependent")
        value: int | bool | float = content[form]
        return value

    def _read_tensor(self, name: str) -> Tensor:
        """Return name, element type and shape of a value of the graph.

        `name`: a key of the graph's `tensor_values`. In the result, every character of the name
        other than ASCII letters, digits and `_` is `_`, and at most 200 characters are kept. Raises
        `InputError` for a size that is an expression instead of a number (`data-dependent`), then
        for an element type that is not in `_ELEMENTS` (`element`). Raises `KeyError` for an unknown
        name; `read_export` converts it.
        """
        meta = self._values[name]
        sizes = []
        for size in meta["sizes"]:
            if "as_int" not in size:
                expression = str(size.get("as_expr", {}).get("expr_str", ""))
                # Expressions are written as `Symbol('u0', integer=True)`.
                expression = _SYMBOL.sub(r"\1", expression)
                message = f"value {name:.80} has the size {expression!r:.40}, which is no number"
                _fail(self._file, message, _CURE_OF_SIZES, "data-dependent")
            sizes.append(int(size["as_int"]))
        if meta["dtype"] not in _ELEMENTS:
            _fail(
                self._file,
                f"value {name:.80} has element type {meta['dtype']!r:.20}",
                "",
                "element",
            )
        return Tensor(_clean(name), _ELEMENTS[meta["dtype"]], tuple(sizes))


_CURE_OF_SIZES = "export with fixed sizes: without dynamic_shapes, .item() and nonzero"


def _find_name(argument: Fields) -> str | None:
    """Return the name of a tensor argument in the JSON of an export; None for any other argument.

    It is the member `name`, else `name` of the member `as_tensor`; an empty name counts as missing.
    """
    name: str | None = argument.get("name") or argument.get("as_tensor", {}).get("name")
    return name


def _clean(name: str) -> str:
    """Return a name of letters, digits and underscores, as documents require."""
    return _INVALID_CHARACTER.sub("_", name)[:200]


def _fail(file: str, message: str, cure: str, code: str) -> NoReturn:
    raise InputError(message, location=Location(file), cure=cure, code=code)
