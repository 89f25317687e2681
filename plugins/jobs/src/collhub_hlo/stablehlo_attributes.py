"""Attributes of StableHLO operations, rewritten in the form that HLO text gives them.

Sources: openxla/stablehlo `StablehloOps.td`, `StablehloAttrs.td`, `ReplicaGroupUtils.cpp` and
`rfcs/` (mesh axes); MLIR prints more than 100 elements of a `dense` attribute as hexadecimal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from collhub_hlo.mlir_text import MlirOperation, parse_dictionaries

_PAIR_OF_LISTS = re.compile(r"contracting_dims\s*=\s*\[([\d,\s]*)\]\s*x")
# The dimensions of the first tensor in a list of types.
_DIMENSIONS = re.compile(r"(?<=<)(?:[0-9?]+x)*")
_LHS_CONTRACTING = re.compile(r"lhs_contracting_dimensions\s*=\s*\[([\d,\s]*)\]")
_CONVOLUTION = re.compile(r"(\[[^\]]*\])\s*x\s*(\[[^\]]*\])\s*->\s*(\[[^\]]*\])")
_DIRECTION = re.compile(r"\A\s*([A-Z]{2})\b|comparison_direction\s*([A-Z]{2})\b")
_HANDLE = re.compile(r"\bhandle\s*=\s*(-?\d{1,18})\b")
_INTEGER = re.compile(r"\s*(-?\d{1,18})\b")
_TARGET = re.compile(r'@("[^"]*"|[\w$.\-]+)\s*\(')
_INDEX = re.compile(r"\[(\d{1,9})\]|\bindex\s*=\s*(\d{1,9})")
_DENSE = re.compile(r"dense<(.*)>\s*:\s*tensor<((?:\d+\s*x\s*)*)([us]?i)(\d+)>\s*\Z", re.DOTALL)
_DENSE_VALUES = re.compile(r"[\s\d,\[\]\-]*\Z")
_MESH_OF_GROUPS = re.compile(r"\bmesh(?:_name)?\s*=\s*@(?:\"([^\"]*)\"|([\w$.\-]+))")
_MESH_AXIS = re.compile(r'mesh_axis<\s*name\s*=\s*"([^"]*)"\s*,\s*size\s*=\s*(\d{1,9})\s*>')
_SHARDY_AXIS = re.compile(r'"([^"]*)"\s*=\s*(\d{1,9})')
_SHARDY_DEVICES = re.compile(r"device_ids\s*=\s*\[([\d,\s]*)\]")
_MESH_DEVICES = re.compile(r"device_ids\s*=\s*(dense<[^>]*>\s*:\s*tensor<[^>]*>)")
_AXIS = re.compile(
    r'axis_ref\s*(?:<\s*(?:name\s*=\s*)?)?"([^"]*)"\s*'
    r"(?:(?:,\s*sub_axis_info\s*=|:)\s*(\(\s*\d+\s*\)\s*\d+))?"
)
COLLECTIVES = frozenset((
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "recv", "reduce-scatter", "send",
))  # fmt: skip
_MAX_IDS = 1 << 20
_MAX_DIGITS = 18


def rewrite_attributes(
    operation: MlirOperation, opcode: str, meshes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of an operation that the reader needs, by name, as texts of HLO.

    `opcode` (the HLO opcode of the operation) decides which attributes are returned. One that the
    operation lacks is omitted, except where a default is given:

    - `dot`: `lhs_contracting_dims`, as `{1}`; `{}` if none is found
    - `convolution`: `dim_labels`, as `b01f_01io->b01f`
    - `compare`: `direction`, as `LT`
    - `get-tuple-element`: `index`
    - `custom-call`: `custom_call_target` (`""` if not found), `backend_config`
    - an opcode in `COLLECTIVES`: `channel_id` (if positive), `use_global_device_ids` and
      `is_host_transfer` (only as `true`), `replica_groups`, `source_target_pairs` (if not empty).
      For `send` and `recv`, the pairs are in `frontend_attributes` instead.
    - any other opcode: the result is empty

    `meshes`: HLO texts of the named meshes, as returned by `read_mesh`. Only collectives raise
    `ValueError`: for unreadable groups or pairs, groups without two dimensions or with an id below
    -1, and an undefined mesh. Ids of -1 (padding) and empty groups are dropped.
    """
    head = operation.head
    if opcode == "dot":
        return {"lhs_contracting_dims": "{" + _contracted(operation) + "}"}
    if opcode == "convolution":
        match = _CONVOLUTION.search(head)
        if match is None:
            return {}
        # For example `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`.
        left, right, result = (re.sub(r"[\[\],\s]", "", group) for group in match.groups())
        return {"dim_labels": f"{left}_{right}->{result}"}
    if opcode == "compare":
        match = _DIRECTION.search(head)
        return {"direction": match[1] or match[2]} if match else {}
    if opcode == "get-tuple-element":
        match = _INDEX.search(head)
        return {"index": match[1] or match[2]} if match else {}
    if opcode in COLLECTIVES:
        return _collective_attributes(operation, opcode, meshes)
    if opcode == "custom-call":
        attributes = {"custom_call_target": custom_call_target(operation)}
        if configuration := parse_dictionaries(head).get("backend_config"):
            attributes["backend_config"] = configuration
        return attributes
    return {}


def custom_call_target(operation: MlirOperation) -> str:
    """Return the name of the target of a custom call, without quotes; "" if the text has none.

    It is the name of the first `@NAME(` in the pretty form, otherwise the attribute
    `call_target_name` of the generic form.
    """
    if match := _TARGET.search(operation.head):
        return match[1].strip('"')
    return parse_dictionaries(operation.head).get("call_target_name", "").strip('"')


def read_mesh(text: str) -> str:
    """Convert the axes of a Shardy mesh, `<["x"=2, "y"=4], device_ids=[1, 0]>`, to HLO text.

    The result is `mesh['x'=2,'y'=4], device_ids=(1,0)`; without device ids it is only
    `mesh['x'=2,'y'=4]`. Text without axes gives `mesh[]`. The number of devices is not
    checked.
    """
    devices = _SHARDY_DEVICES.search(text)
    return _format_mesh(_SHARDY_AXIS.findall(text), devices[1].split(",") if devices else [])


def parse_dense(text: str) -> tuple[list[int], tuple[int, ...]]:
    """Return the elements and the dimensions of a `dense<...>` attribute of integers.

    `dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>` gives ([1, 2, 3, 4], (2, 2)). The dimensions are
    those of the type, () for one element without dimensions. Elements are in row-major order.
    Forms:

    - Nested lists of decimal integers, possibly negative. Their nesting is not compared.
    - A single value without brackets, which is repeated for all elements of the type.
    - Hexadecimal text in quotes, `"0x..."`: little-endian signed integers of 8, 16, 32 or 64 bits,
      as in the type. A single one is repeated too.

    Raises `ValueError` for any other text (also `true`, and types of other elements than integers),
    more than 18 digits, damaged hexadecimal text, types with more than 2^20 elements, and another
    number of elements than that of the type.
    """
    match = _DENSE.match(text.strip())
    if not match:
        raise ValueError(f"{text.strip()[:60]!r} is no dense attribute of integers")
    sizes = tuple(int(size[:9]) for size in match[2].replace(" ", "").split("x")[:-1])
    count = int(np.prod(sizes, dtype=object)) if sizes else 1
    if count > _MAX_IDS:
        raise ValueError(f"{count} ids; at most {_MAX_IDS} are read")
    values = match[1].strip()
    if values.startswith('"'):
        digits, bits = values.strip('"'), int(match[4][:4])
        if not re.fullmatch(r"0x(?:[0-9A-Fa-f]{2})*", digits) or bits not in (8, 16, 32, 64):
            raise ValueError("the hexadecimal elements are damaged")
        content = bytes.fromhex(digits[2:])
        if len(content) * 8 % bits:
            raise ValueError("the hexadecimal elements are cut")
        elements = [int(value) for value in np.frombuffer(content, f"<i{bits // 8}")]
    elif _DENSE_VALUES.match(values):
        texts = re.findall(r"-?\d+", values)
        if any(len(digits.removeprefix("-")) > _MAX_DIGITS for digits in texts):
            raise ValueError(f"an element has more than {_MAX_DIGITS} digits")
        elements = list(map(int, texts))
    else:
        raise ValueError(f"{values[:40]!r} are no integers")
    if len(elements) == 1 and "[" not in values:
        elements *= count
    if len(elements) != count:
        raise ValueError(f"{len(elements)} ids, but the type has {count}")
    return elements, sizes


def _contracted(operation: MlirOperation) -> str:
    """Return the contracted dimensions of a product's left operand as a text, such as `0, 1`.

    The first of these that the text of the operation has is used; the dimensions are numbered from
    0:

    1. `contracting_dims = [1] x [0]` (pretty form): the text in the first pair of brackets,
       unchanged.
    2. `lhs_contracting_dimensions` (generic form): the text of its list.
    3. The older operation `dot` without both: `1` if the type of the left operand has more than one
       dimension, as `tensor<2x3xf32>`, otherwise `0`.

    The result is "" for all other operations.
    """
    match = _PAIR_OF_LISTS.search(operation.head) or _LHS_CONTRACTING.search(operation.head)
    if match:
        return match[1]
    if operation.name.endswith(".dot"):
        operand = operation.types.partition("->")[0]
        dimensions = _DIMENSIONS.search(operand)
        return "1" if dimensions and dimensions[0].count("x") > 1 else "0"
    return ""


def _collective_attributes(
    operation: MlirOperation, opcode: str, meshes: Mapping[str, str]
) -> dict[str, str]:
    entries = parse_dictionaries(operation.head)
    if opcode == "ragged-all-to-all" and "backend_config" in entries:
        entries |= parse_dictionaries(entries["backend_config"])
    attributes = {}
    channel = _HANDLE.search(entries.get("channel_handle", ""))
    channel = channel or _INTEGER.match(entries.get("channel_id", ""))
    if channel and int(channel[1]) > 0:
        attributes["channel_id"] = channel[1]
    is_flag = entries.get("use_global_device_ids", "false")
    if is_flag in ("", "true", "unit"):
        attributes["use_global_device_ids"] = "true"
    if "replica_groups" in entries:
        attributes["replica_groups"] = _groups(entries["replica_groups"], meshes)
    pairs = ""
    if "source_target_pairs" in entries:
        elements, sizes = parse_dense(entries["source_target_pairs"])
        if elements and (len(sizes) != 2 or sizes[1] != 2):
            raise ValueError("source_target_pairs is no list of pairs")
        ranks = zip(elements[::2], elements[1::2], strict=True)
        pairs = "{" + ",".join(f"{{{source},{target}}}" for source, target in ranks) + "}"
    if pairs and opcode in ("send", "recv"):
        text = f'{{_xla_send_recv_source_target_pairs="{pairs}"}}'
        attributes["frontend_attributes"] = text
    elif pairs:
        attributes["source_target_pairs"] = pairs
    if entries.get("is_host_transfer", "").startswith("true"):
        attributes["is_host_transfer"] = "true"
    return attributes


def _groups(text: str, meshes: Mapping[str, str]) -> str:
    """Return the groups of a collective as HLO text: `{{0,1},{2,3}}`, or axes of a mesh.

    Lists of ids are a dense attribute of two dimensions; -1 fills shorter groups, empty ones are
    left out. Groups along mesh
    axes (`replica_group_mesh_axes`) give `mesh['x'=2,'y'=4] {'x'}`: the mesh, `meshes[NAME]` if the
    text names it (`mesh = @NAME`), otherwise built from its axes (`mesh_axis<name = "x", size =
    2>`) and its device ids, if given, as `mesh['x'=2], device_ids=(1,0)`. In braces are the axes
    of the groups (`axis_ref`), in the order of the text. A sub-axis follows its axis name after a
    colon, as written: `{'x':(1)2}`. No axes give `{}`.

    Raises `ValueError` for ids that are not dense, have other than two dimensions or are below -1;
    for a mesh that is not in `meshes`, unreadable device ids, and a list `axes` that is not empty
    but has no readable axis.
    """
    if "replica_group_mesh_axes" not in text:
        elements, sizes = parse_dense(text)
        if len(sizes) != 2:
            raise ValueError(f"replica_groups has {len(sizes)} dimensions, not 2")
        width = sizes[1]
        rows = [elements[first : first + width] for first in range(0, len(elements), width or 1)]
        if any(value < -1 for value in elements):
            raise ValueError(f"replica_groups contains the id {min(elements)}")
        groups = [",".join(str(value) for value in row if value >= 0) for row in rows]
        return "{" + ",".join(f"{{{group}}}" for group in groups if group) + "}"
    if symbol := _MESH_OF_GROUPS.search(text):
        name = symbol[1] or symbol[2]
        if name not in meshes:
            raise ValueError(f"mesh @{name} is not defined")
        mesh = meshes[name]
    else:
        devices = _MESH_DEVICES.search(text)
        ids = [str(value) for value in parse_dense(devices[1])[0]] if devices else []
        mesh = _format_mesh(_MESH_AXIS.findall(text), ids)
    axes = [f"'{name}'" + (f":{part}" if part else "") for name, part in _AXIS.findall(text)]
    if not axes and re.search(r"\baxes\s*=\s*\[\s*[^\s\]]", text.partition("mesh_axis")[0]):
        raise ValueError(f"the axes of {text[:60]!r} cannot be read")
    return mesh + " {" + ",".join(axes) + "}"


def _format_mesh(axes: Iterable[tuple[str, str]], devices: list[str]) -> str:
    mesh = "mesh[" + ",".join(f"'{name}'={size}" for name, size in axes) + "]"
    ids = ",".join(device.strip() for device in devices)
    return f"{mesh}, device_ids=({ids})" if ids else mesh
