"""Archives as `torch.export.save` writes them, from lists of nodes."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

FLOAT = 7


def tensor(name: str) -> dict[str, Any]:
    """Argument that is a value."""
    return {"as_tensor": {"name": name}}


def node(target: str, results: list[str], **arguments: Any) -> dict[str, Any]:
    """Call of an operator; arguments are in the form of the archive."""
    inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
    outputs = [tensor(name) for name in results]
    return {"target": f"torch.ops.{target}", "inputs": inputs, "outputs": outputs, "metadata": {}}


def program(
    inputs: dict[str, tuple[int, ...]],
    nodes: list[dict[str, Any]],
    values: dict[str, tuple[int, ...]],
    outputs: list[str],
) -> dict[str, Any]:
    """JSON of a program of float32 tensors; `values`: shapes of the results."""
    shapes = inputs | values
    return {
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.13.0",
        "graph_module": {
            "graph": {
                "inputs": [tensor(name) for name in inputs],
                "outputs": [tensor(name) for name in outputs],
                "nodes": nodes,
                "tensor_values": {
                    name: {"dtype": FLOAT, "sizes": [{"as_int": size} for size in shape]}
                    for name, shape in shapes.items()
                },
            },
            "signature": {
                "input_specs": [{"user_input": {"arg": tensor(name)}} for name in inputs],
                "output_specs": [{"user_output": {"arg": tensor(name)}} for name in outputs],
            },
        },
    }


def archive(document: Any, name: str = "p/models/model.json", /, **entries: bytes) -> bytes:
    """Bytes of an archive with the JSON of a program and other entries."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(name, json.dumps(document))
        for entry, data in entries.items():
            file.writestr(entry, data)
    return content.getvalue()


def matrix_product() -> dict[str, Any]:
    """Program `y = all_reduce(x w)` with x[4, 8] and w[8, 2]."""
    return program(
        {"x": (4, 8), "w": (8, 2)},
        [
            node("aten.mm.default", ["mm"], self=tensor("x"), mat2=tensor("w")),
            node(
                "_c10d_functional.all_reduce.default",
                ["y"],
                input=tensor("mm"),
                reduce_op={"as_string": "sum"},
                group_name={"as_string": "0"},
            ),
            node("_c10d_functional.wait_tensor.default", ["y1"], tensor=tensor("y")),
        ],
        {"mm": (4, 2), "y": (4, 2), "y1": (4, 2)},
        ["y1"],
    )
