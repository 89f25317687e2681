"""Convert FX graphs of PyTorch (`make_fx`, AOTAutograd, `torch.export`) to captured graphs.

This module runs in the process of the user's script, which has PyTorch. The hub itself reads only
documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from collhub_captured_graphs.graph import (
    ELEMENT_BYTES,
    ArgumentValue,
    CapturedGraph,
    ElementName,
    GraphInput,
    GraphNode,
    GraphOutput,
    InputRole,
    Reference,
    Tensor,
)
from collhub_captured_graphs.operators import is_collective
from hub_core.model import InputError

if TYPE_CHECKING:
    import torch

_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9_]")


def convert_fx(
    module: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    outputs: Sequence[GraphOutput],
    name: str = "captured",
    mesh: Mapping[str, int] | None = None,
) -> CapturedGraph:
    """Convert an FX graph of aten operators with `meta["val"]` to a captured graph.

    `inputs` describe the placeholders and `outputs` the tensor results, one each and in order;
    types and shapes of the values are taken from the graph. Names are those of the FX nodes,
    those of inputs their targets if given. Constants of the module become further inputs. An
    operator in place is replaced by its functional form if only its result is read afterwards.
    `mesh`: number of ranks by axis name, only for a mesh of several axes.

    Raises `InputError` for:

    - an operator in place without such a replacement, unless it is a functional collective
    - collectives of c10d in place, branches, and calls that are no operator of PyTorch
    - sizes and numbers that depend on data, and element types without a size
    - arguments that a document cannot have

    Raises `ValueError` if there are more or fewer `outputs` than tensor results, and
    `StopIteration` for too few `inputs`; surplus ones are ignored.
    """
    graph = _FxReader(module).read(inputs, outputs, name)
    sizes = dict(mesh or {})
    return replace(graph, mesh=tuple(sizes), mesh_sizes=tuple(sizes.values()))


class _FxReader:
    """Conversion of one FX graph; `names`: names of the values by the names of FX nodes."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._inputs: list[GraphInput] = []
        self._nodes: list[GraphNode] = []
        self._values: dict[str, Tensor | tuple[Tensor | None, ...] | None] = {}
        self._groups: dict[str, tuple[int, ...]] = {}

    def read(
        self, inputs: Sequence[GraphInput], outputs: Sequence[GraphOutput], name: str
    ) -> CapturedGraph:
        """Convert all nodes of the FX graph in order, and return the captured graph called `name`.

        Call it once per reader, as it changes the reader. Placeholder i has role, target and
        placement of `inputs[i]`; its type and shape are those of `meta["val"]`. Surplus `inputs`
        are ignored. Constants (`get_attr`) become further inputs, in node order. Outputs that are
        None or no single tensor are dropped. Output i of the remaining ones has role and target of
        `outputs[i]`.

        Raises:
        - `StopIteration`: more placeholders than `inputs`. `KeyError`: a placeholder without `val`.
        - `ValueError`: another number of remaining outputs than `outputs`.
        - `InputError` (`capture`): a call of a module or method, or one that `_add_call` refuses.
        - `InputError` (`data-dependent`): a symbolic size or an unknown element type.
        """
        import torch

        results: list[str] = []
        described = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                entry = next(described)
                name_of_input = self._name_input(node.name, entry.target)
                tensor = self._describe(name_of_input, node.meta["val"])
                self._values[node.name] = tensor
                self._inputs.append(GraphInput(tensor, entry.role, entry.target, entry.placement))
            elif node.op == "get_attr":
                self._add_constant(node)
            elif node.op == "call_function":
                self._add_call(node)
            elif node.op == "output":
                leaves = torch.utils._pytree.tree_leaves(node.args[0])
                tensors = [self._values[value.name] for value in leaves if value is not None]
                results = [tensor.name for tensor in tensors if isinstance(tensor, Tensor)]
            else:
                self._refuse(node, "is a call of a module", "capture it with make_fx")
        graph_outputs = [
            GraphOutput(value, output.role, output.target)
            for value, output in zip(results, outputs, strict=True)
        ]
        return CapturedGraph(
            name,
            tuple(self._inputs),
            tuple(self._nodes),
            tuple(graph_outputs),
            self._groups,
            f"torch {torch.__version__}",
        )

    def _name_input(self, name: str, target: str) -> str:
        """Return the name of an input, derived from its target; `name` is that of its FX node.

        Without a target it is `name`. Otherwise all characters of the target other than
        letters, digits and underscores become `_`. Then `p_` is prepended until the name begins
        with no digit and differs from the names of all FX nodes (also the input's own one) and
        earlier inputs.
        """
        if not target:
            return name
        used = {node.name for node in self._module.graph.nodes}
        used |= {entry.tensor.name for entry in self._inputs}
        candidate = _clean(target)
        while candidate in used or candidate[0].isdigit():
            candidate = f"p_{candidate}"
        return candidate

    def _add_constant(self, node: torch.fx.Node) -> None:
        """Add a constant tensor of the module as an input of the graph, with placement `R`.

        The input has the name of the node, the role CONSTANT, and as target the path of the
        attribute in the module, such as `layer.weight`. Type and shape are those of `meta["val"]`,
        or of the attribute if the node has none. Any other object, such as a process group, adds no
        input; an operator that reads it is refused later. Raises `AttributeError` for a missing
        attribute, and `InputError` (`data-dependent`) for symbolic sizes and unknown element types.
        """
        import torch

        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        value = node.meta.get("val", value)
        if not isinstance(value, torch.Tensor):
            self._values[node.name] = ()
            return
        tensor = self._describe(node.name, value)
        self._values[node.name] = tensor
        self._inputs.append(GraphInput(tensor, InputRole.CONSTANT, str(node.target), "R"))

    def _add_call(self, node: torch.fx.Node) -> None:
        """Convert a call and append it to the nodes of the graph.

        - `getitem` adds no node: it selects a result of an earlier call.
        - An operator in place becomes its functional form if aten has one and only the result of
          the call is read afterwards (`_find_functional_form`).
        - Functional collectives are kept as they are, and the ranks of their process groups are
          recorded.

        Arguments are stored by parameter name, without parameters that the call omits. The names of
        those given by keyword are recorded. Keywords `device`, `layout`, `pin_memory` and
        `memory_format` are left out.

        Raises `InputError` (`capture`) for branches and other higher-order operators, for functions
        that are no operators of PyTorch, for c10d collectives in place, and for other operators in
        place without a functional form. It is also raised for arguments that `_convert` refuses,
        and for a result that is a number, because it depends on data.
        """
        import operator

        import torch

        if node.target is operator.getitem:
            source, position = node.args
            values = self._values[str(source)]
            assert isinstance(values, tuple)
            assert isinstance(position, int)
            self._values[node.name] = values[position]
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._refuse(node, "has branches, which depend on data", "capture it without branches")
        if not isinstance(node.target, torch._ops.OpOverload):
            self._refuse(node, "is no operator of aten", "capture it with make_fx")
        target = node.target
        if target.namespace == "c10d":
            cure = "communicate by torch.distributed._functional_collectives or DTensor"
            self._refuse(node, "is a collective in place, which a graph does not order", cure)
        if target._schema.is_mutable and not is_collective(str(target)):
            target = _find_functional_form(node)
        if target is None:
            self._refuse(
                node, "writes to an operand", "wrap the function in torch.func.functionalize"
            )
        schema = target._schema
        arguments: dict[str, ArgumentValue] = {}
        keywords = set()
        for parameter, value in zip(schema.arguments, node.args, strict=False):
            arguments[parameter.name] = self._convert(node, value)
        for parameter in schema.arguments[len(node.args) :]:
            if parameter.name in node.kwargs and parameter.name not in _PLACEMENTS:
                arguments[parameter.name] = self._convert(node, node.kwargs[parameter.name])
                keywords.add(parameter.name)
        value = node.meta.get("val")
        results = self._describe_results(node, value)
        self._values[node.name] = results if isinstance(value, (list, tuple)) else results[0]
        for name in ("group_name", "tag"):
            if isinstance(arguments.get(name), str) and is_collective(str(target)):
                self._add_group(str(arguments[name]))
        self._nodes.append(
            GraphNode(_clean(node.name), str(target), arguments, results, frozenset(keywords))
        )

    def _add_group(self, name: str) -> None:
        """Record the global ranks of a process group under its name, for the captured graph.

        The ranks are those of the group that torch.distributed has registered under this name, in
        the order of the group. Nothing happens if the name is empty or already recorded. A name
        that is not registered raises the error of torch.
        """
        import torch.distributed as dist

        if name and name not in self._groups:
            resolve: Any = dist.distributed_c10d
            group = resolve._resolve_process_group(name)
            self._groups[name] = tuple(dist.get_process_group_ranks(group))

    def _describe_results(self, node: torch.fx.Node, value: Any) -> tuple[Tensor | None, ...]:
        """Return the result tensors of a node; one entry per member of a list or tuple.

        A single tensor gives one entry, with the name of the node. A member of a list has the name
        of the node and its position from 0, as in `split_1`. A member that is no tensor gives None,
        also if it is a number; a result None gives (None,). Raises `InputError` (`capture`) for any
        other result, such as a number, since it depends on data. Raises `InputError`
        (`data-dependent`) for tensors with symbolic sizes or unknown element types.
        """
        import torch

        if isinstance(value, (list, tuple)):
            return tuple(
                self._describe(f"{node.name}_{position}", entry)
                if isinstance(entry, torch.Tensor)
                else None
                for position, entry in enumerate(value)
            )
        if isinstance(value, torch.Tensor):
            return (self._describe(node.name, value),)
        if value is not None:
            self._refuse(node, "computes a number from data", _CURE_OF_SIZES)
        return (None,)

    def _describe(self, name: str, value: torch.Tensor) -> Tensor:
        """Return name, element type and shape of a tensor.

        In the name, characters other than letters, digits and underscores are replaced. Raises
        `InputError` (`data-dependent`) for symbolic sizes, and for element types that are not in
        `ELEMENT_BYTES`.
        """
        element = str(value.dtype).removeprefix("torch.")
        is_fixed = all(type(size) is int for size in value.shape)
        if element not in ELEMENT_BYTES or not is_fixed:
            shape = ", ".join(map(str, value.shape))
            message = f"value {name} has the type {element}[{shape}]"
            raise InputError(message, cure=_CURE_OF_SIZES, code="data-dependent")
        return Tensor(_clean(name), element, tuple(value.shape))

    def _convert(self, node: torch.fx.Node, value: Any) -> ArgumentValue:
        """Convert an argument of a node; entries of lists and tuples are converted in the same way.

        - A node becomes a reference to its tensor.
        - A list or tuple becomes a tuple, a dtype an `ElementName`.
        - Numbers, booleans, texts and None are kept.
        - Devices, layouts and memory formats become None.

        Raises `InputError` for other types, and for a node whose result is no single tensor.
        """
        import torch

        if isinstance(value, torch.fx.Node):
            tensor = self._values[value.name]
            if not isinstance(tensor, Tensor):
                self._refuse(node, f"reads {value.name}, which is no tensor", _CURE_OF_SIZES)
            return Reference(tensor.name)
        if isinstance(value, (list, tuple)):
            return tuple(self._convert(node, entry) for entry in value)
        if isinstance(value, torch.dtype):
            return ElementName(str(value).removeprefix("torch."))
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        if not isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            self._refuse(node, f"has an argument of type {type(value).__name__}", _CURE_OF_SIZES)
        return None

    def _refuse(self, node: torch.fx.Node, message: str, cure: str) -> NoReturn:
        text = f"node {node.name} ({node.target}) {message}"
        raise InputError(text, cure=cure, code="capture")


def _find_functional_form(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """Return the functional operator, without `_`, that can replace an operator in place, or None.

    The replacement is correct if the value before the write is not read afterwards. All of these
    must hold, otherwise the result is None:

    - The name ends with `_`, and aten has an operator without it that has the same overload and
      writes to no operand. The first argument is a node, the operand.
    - The operand and all its other readers are operators whose results share no memory with their
      operands by their schema. So the operand is no input, no result of `getitem`, and has no view.
    - All other readers of the operand come before the node in the graph.
    """
    import torch

    operand = node.args[0] if node.args else None
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    operator = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if not isinstance(operand, torch.fx.Node) or not name.endswith("_") or operator is None:
        return None
    earlier = set[torch.fx.Node]()
    for one in node.graph.nodes:
        if one is node:
            break
        earlier.add(one)
    others = [user for user in operand.users if user is not node]
    is_new = not _has_alias(operand) and not any(map(_has_alias, others))
    if not is_new or not earlier.issuperset(others) or overload not in operator.overloads():
        return None
    form: torch._ops.OpOverload = getattr(operator, overload)
    return None if form._schema.is_mutable else form


def _has_alias(node: torch.fx.Node) -> bool:
    """Return whether the result of a node may share memory with another value.

    By the schema of the operator, it may for views and for operators in place. True also for
    any node that calls no operator of PyTorch, such as a placeholder or `getitem`.
    """
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(result.alias_info is not None for result in node.target._schema.returns)


_PLACEMENTS = frozenset({"device", "layout", "pin_memory", "memory_format"})
_CURE_OF_SIZES = "capture with fixed sizes: without .item(), nonzero and boolean indices"


def _clean(name: str) -> str:
    """Return a name of letters, digits and underscores, as documents require."""
    return _INVALID_CHARACTER.sub("_", name)
