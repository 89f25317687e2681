"""Capture the program of one rank in a user's script: forward, backward, and optimizer step.

`make_fx` of PyTorch traces the program with fake tensors: nothing is computed or sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collhub_captured_graphs.fx_graphs import convert_fx
from collhub_captured_graphs.graph import (
    CapturedGraph,
    GraphInput,
    GraphOutput,
    InputRole,
    OutputRole,
    Tensor,
    graph_to_json,
)
from hub_core.model import InputError, UsageError

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def capture(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    mesh: DeviceMesh | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_norm: float | None = None,
    data_parallel: str | None = None,
    local: Collection[str] = (),
    path: str | os.PathLike[str] | None = None,
) -> CapturedGraph:
    """Capture one step of a module on this rank as a graph, and write the graph to a JSON file.

    `inputs`: the tensors of this rank; their values differ between ranks. Parameters may be
    DTensors, whose collectives are captured. The steps after the forward pass depend on the
    options:

    - `loss`: function of the output that returns the scalar to minimize. It adds the
      backward pass. Without an optimizer the gradients are outputs. Without `loss` only the
      forward pass is captured.
    - `optimizer`: an SGD, Adam or AdamW, whose update is added. It requires `loss`.
    - `max_norm`: clips the gradients by their global 2-norm before the update; it has no
      effect without an optimizer.
    - `data_parallel`: mesh dimension over which gradients are averaged, with one all-reduce
      per parameter. Any name is accepted for a mesh of one dimension. Default: the only
      dimension of the mesh if no parameter is a DTensor, else no average.
    - `local`: names of parameters and buffers whose values differ between ranks, such as
      experts. Their gradients are not averaged.

    The rank with the lowest number in the mesh (every process without a mesh) writes the
    file, to `path` or by default to `MODULE.graph.json` in the current folder; an existing
    file is replaced. Every rank returns the graph. The parameters of the module are not
    changed.

    Raise `InputError` (`graph-break`) for branches and sizes that depend on data, and
    `InputError` for operators that write to their operands. Raise `UsageError` for an
    optimizer without a loss, for unsupported optimizers and placements, and for a trained
    parameter that is not in the optimizer.
    """
    step = _Step(module, tuple(inputs), mesh, loss, optimizer, max_norm, data_parallel, local)
    graph = step.trace()
    rank = 0 if mesh is None else mesh.get_rank() - int(mesh.mesh.min())
    if rank == 0:
        target = Path(path) if path is not None else Path(f"{type(module).__name__}.graph.json")
        target.write_text(graph_to_json(graph), encoding="ascii")
    return graph


@dataclass(slots=True)
class _Step:
    """One step of a module: arguments of `capture`, and the descriptions of inputs and outputs."""

    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    mesh: DeviceMesh | None
    loss: Callable[..., torch.Tensor] | None
    optimizer: torch.optim.Optimizer | None
    max_norm: float | None
    data_parallel: str | None
    local: Collection[str]
    outputs: list[GraphOutput] = field(default_factory=list)

    @property
    def axes(self) -> Mapping[str, int]:
        """Return the number of ranks by axis name, for a mesh with at least two dimensions.

        The mesh is the one with most dimensions among the mesh of the step and those of DTensor
        parameters; the first of equal ones is taken. Unnamed dimensions are `axis_0`, `axis_1`, and
        so on. Empty without a mesh, and for a mesh of one dimension.
        """
        from torch.distributed.tensor import DTensor

        meshes = [] if self.mesh is None else [self.mesh]
        meshes += [one.device_mesh for one in self.module.parameters() if isinstance(one, DTensor)]
        largest = max(meshes, key=lambda mesh: mesh.ndim, default=None)
        if largest is None or largest.ndim < 2:
            return {}
        names = largest.mesh_dim_names or [f"axis_{number}" for number in range(largest.ndim)]
        return {name: largest.size(number) for number, name in enumerate(names)}

    @property
    def has_step_number(self) -> bool:
        """Whether the update depends on the number of the step, which all parameters share."""
        return type(self.optimizer).__name__ in ("Adam", "AdamW")

    def trace(self) -> CapturedGraph:
        """Return the graph of the step, traced once with fake tensors; nodes without effect are
        removed.

        The inputs of the graph are in this order: parameters, buffers, optimizer states of the
        trained parameters (by parameter, only with an optimizer, traced as zeros), the step number
        (Adam and AdamW only), inputs of the module (`input_0`, `input_1` and so on). A parameter is
        trained if it requires a gradient. DTensors are traced as local tensors. The outputs are the
        results of `_run`, which replaces `self.outputs` by their descriptions.

        Raises `UsageError` for the first of: an optimizer without a loss; an unsupported optimizer;
        a DTensor with a sharded dimension that its ranks do not divide; a trained parameter that is
        not in the optimizer. Raises `InputError` (`graph-break`) if tracing raises `RuntimeError`
        or PyTorch's `TraceError`, e.g. for a branch that depends on data. Other errors propagate,
        also those of `convert_fx`.
        """
        # Imported here: the hub reads documents without PyTorch.
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        if self.optimizer is not None and self.loss is None:
            raise UsageError("an optimizer needs gradients", cure="name the loss: loss=...")
        parameters = dict(self.module.named_parameters())
        buffers = dict(self.module.named_buffers())
        names = _find_states(self.optimizer)
        described: list[GraphInput] = []
        tensors: list[torch.Tensor] = []
        for role, entries in ((InputRole.PARAMETER, parameters), (InputRole.BUFFER, buffers)):
            for name, tensor in entries.items():
                described.append(self._describe(name, tensor, role))
                tensors.append(_get_local(tensor))
        trained = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
        for name, tensor in trained.items() if self.optimizer is not None else ():
            for state in names:
                entry = self._describe(name, tensor, InputRole.STATE)
                described.append(replace(entry, target=f"{name}.{state}"))
                tensors.append(torch.zeros_like(_get_local(tensor)))
        if self.has_step_number:
            described.append(GraphInput(_UNKNOWN, InputRole.STATE, STEP, "R"))
            tensors.append(torch.zeros((), dtype=torch.float32))
        for position, tensor in enumerate(self.inputs):
            described.append(self._describe(f"input_{position}", tensor, InputRole.INPUT))
            tensors.append(_get_local(tensor))

        def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self._run(parameters, buffers, names, values)

        detached = [tensor.detach() for tensor in tensors]
        try:
            graph = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*detached)
        except (RuntimeError, torch.fx.proxy.TraceError) as error:
            message = f"{type(self.module).__name__} cannot be captured: {error}"
            first_line = message.splitlines()[0][:300]
            cure = "remove branches, .item() and sizes that depend on data"
            if "dynamo" in first_line:
                cure = "capture the module without torch.compile"
            elif "got mixed" in first_line:
                cure = "distribute all parameters and inputs, or none"
            raise InputError(first_line, cure=cure, code="graph-break") from error
        graph.graph.eliminate_dead_code()
        return convert_fx(graph, described, self.outputs, type(self.module).__name__, self.axes)

    def _run(
        self,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        states: Sequence[str],
        values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the values of the graph outputs of one step as local tensors.

        Called once, by the tracer. `values`: of all graph inputs, in the order given in `trace`.
        `states`: names of the optimizer states that each parameter has. The results are:

        - without a loss: all leaves of the module's output, in the order of `tree_leaves`
        - with a loss only: the loss, then the gradients of the parameters that require one
        - with an optimizer: the loss, then each of these parameters' new value and new states, then
          the step number + 1 (Adam and AdamW only). With `max_norm`, gradients are clipped first.

        Parameters are in the order of the module. `_reduce` averages gradients over data-parallel
        ranks. `self.outputs` is replaced by descriptions of the results. Raises `UsageError` if the
        optimizer lacks a parameter that requires a gradient. Errors of the module propagate.
        """
        import torch

        remaining = iter(values)
        self.outputs.clear()
        local = {name: next(remaining) for name in parameters}
        local_buffers = {name: next(remaining) for name in buffers}
        trained = [name for name, original in parameters.items() if original.requires_grad]
        state = {name: {key: next(remaining) for key in states} for name in trained}
        step = next(remaining) + 1 if self.has_step_number else None
        corrections: dict[tuple[float, float], tuple[torch.Tensor, torch.Tensor]] = {}
        if self.optimizer is not None and step is not None:
            # Computed once, since all parameters of a group share them.
            for group in self.optimizer.param_groups:
                corrections[tuple(group["betas"])] = _compute_corrections(step, *group["betas"])
        inputs = [
            _restore(next(remaining), original, requires_grad=False) for original in self.inputs
        ]
        restored = {
            name: _restore(local[name], original, requires_grad=self.loss is not None)
            for name, original in parameters.items()
        }
        output = torch.func.functional_call(
            self.module, {**restored, **local_buffers}, tuple(inputs)
        )
        if self.loss is None:
            leaves = [_get_local(leaf) for leaf in torch.utils._pytree.tree_leaves(output)]
            self.outputs += [GraphOutput("", OutputRole.OUTPUT) for _ in leaves]
            return tuple(leaves)
        value = self.loss(output)
        weights = [restored[name] for name in trained]
        gradients = dict(zip(trained, torch.autograd.grad(value, weights), strict=True))
        self.outputs.append(GraphOutput("", OutputRole.LOSS))
        reduced = {
            name: self._reduce(name, gradient, parameters[name])
            for name, gradient in gradients.items()
        }
        results = [_get_local(value).detach()]
        if self.optimizer is None:
            self.outputs += [GraphOutput("", OutputRole.GRADIENT, name) for name in reduced]
            return (*results, *reduced.values())
        if self.max_norm is not None:
            reduced = _clip(reduced, parameters, self.max_norm)
        for name, gradient in reduced.items():
            options = _find_group(self.optimizer, parameters[name])
            update = _UPDATES[type(self.optimizer).__name__]
            new = update(local[name], gradient, state[name], options, corrections)
            self.outputs.append(GraphOutput("", OutputRole.MUTATION, name))
            self.outputs += [
                GraphOutput("", OutputRole.MUTATION, f"{name}.{key}") for key in list(new)[1:]
            ]
            results += new.values()
        if step is not None:
            self.outputs.append(GraphOutput("", OutputRole.MUTATION, STEP))
            results.append(step)
        return tuple(results)

    def _describe(self, name: str, tensor: torch.Tensor, role: InputRole) -> GraphInput:
        """Describe an input of the graph by role, name and placement.

        A tensor that is no DTensor is local (`L`) if it is an input of the module or its name is in
        `self.local`, and replicated (`R`) otherwise. Name, type and shape of the value are a
        placeholder, which the conversion of the graph replaces. Raises `UsageError` for a DTensor
        whose sharded dimension is not divisible by the ranks.
        """
        is_local = role is InputRole.INPUT or name in self.local
        placement = _find_placement(name, tensor, "L" if is_local else "R", [*self.axes])
        return GraphInput(_UNKNOWN, role, name, placement)

    def _reduce(self, name: str, gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Average the gradient of a parameter over its data-parallel ranks by an all-reduce.

        If both are DTensors, the gradient is first redistributed to the placements of the
        parameter. The result is the local tensor: each rank divides it by the number of ranks, then
        all add them. The argument is not changed. The first rule that applies:

        1. No mesh, or the parameter is in `self.local`: the local gradient is not averaged.
        2. `self.data_parallel` is given: the ranks are those along this dimension of the mesh, or
           all ranks of a mesh of one dimension, whatever its name. PyTorch raises an error for an
           unknown name in a mesh of several dimensions.
        3. The mesh has one dimension, and no parameter of the module is a DTensor: all its ranks.
        4. Otherwise it is not averaged.
        """
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.tensor import DTensor

        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
        local = _get_local(gradient)
        if self.mesh is None or name in self.local:
            return local
        dimension = self.data_parallel
        if dimension is None:
            has_placements = any(isinstance(one, DTensor) for one in self.module.parameters())
            if self.mesh.ndim != 1 or has_placements:
                return local
        mesh = self.mesh if dimension is None or self.mesh.ndim == 1 else self.mesh[dimension]
        # As DDP: divide, then add, so that every backend can do it.
        return _wait(functional.all_reduce(local / mesh.size(), "sum", mesh))


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    """Wait for the result of a functional collective of PyTorch; return the complete tensor."""
    from torch.distributed import _functional_collectives

    # PyTorch declares no types for it.
    wait: Callable[[torch.Tensor], torch.Tensor] = _functional_collectives.wait_tensor
    return wait(tensor)


def _get_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local tensor of a DTensor (a distributed tensor), and any other tensor itself."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _restore(value: torch.Tensor, original: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
    """Convert a traced local tensor to a DTensor if the original tensor is one.

    The DTensor has the mesh, placements, shape and stride of the original. If both `requires_grad`
    and that of the original are set, the result is a detached tensor that requires a gradient;
    otherwise it is `value` or the DTensor made from it, not detached.
    """
    from torch.distributed.tensor import DTensor

    if isinstance(original, DTensor):
        value = DTensor.from_local(
            value,
            original.device_mesh,
            original.placements,
            run_check=False,
            shape=original.shape,
            stride=original.stride(),
        )
    return value.detach().requires_grad_() if requires_grad and original.requires_grad else value


def _find_placement(name: str, tensor: torch.Tensor, default: str, axes: Sequence[str]) -> str:
    """Return the placement of a DTensor as text; `default` for any other tensor.

    The placement on one mesh dimension is `R` (replicated), `S(d)` (sharded in dimension d) or `L`
    (local: partial sums and others). `axes`: names of mesh dimensions. The first rule that applies:

    1. A dimension has a strided shard: `L`.
    2. `axes` is empty: the placement if the mesh has one dimension, otherwise `L`.
    3. The mesh has a dimension that is not in `axes`, or numbers of names and dimensions differ:
       `L`. A mesh without names has the names `axes`.
    4. Otherwise one placement per axis, in the order of `axes`, such as `(S(0), R)`. Axes that are
       no dimension of the mesh are `R`.

    Raises `UsageError`, with `name`, if the global size of a sharded dimension is not a multiple of
    the ranks. Mesh dimensions after a strided shard are not checked.
    """
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, DTensor):
        return default
    found = []
    for dimension, placement in enumerate(tensor.placements):
        if type(placement) is Shard:
            size, ranks = tensor.shape[placement.dim], tensor.device_mesh.size(dimension)
            if size % ranks:
                message = f"{name}: {placement} of size {size} does not fit {ranks} ranks"
                raise UsageError(message, cure=f"pad the dimension to a multiple of {ranks}")
            found.append(f"S({placement.dim})")
        elif placement.is_shard():
            # Blocks of a strided shard are not those of the language on any axis.
            return "L"
        else:
            found.append("R" if placement.is_replicate() else "L")
    if not axes:
        return found[0] if len(found) == 1 else "L"
    names = tensor.device_mesh.mesh_dim_names or axes
    if not set(names) <= set(axes) or len(names) != len(found):
        return "L"
    by_name = dict(zip(names, found, strict=True))
    return f"({', '.join(by_name.get(axis, 'R') for axis in axes)})"


_UNKNOWN = Tensor("", "float32", ())
"""Stands for the tensor of an input until the tracer names it."""


def _clip(
    gradients: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
    max_norm: float,
) -> dict[str, torch.Tensor]:
    """Return all gradients, scaled so that their global 2-norm is at most `max_norm`.

    `gradients`: local tensors by parameter name; the result has the same names in the same
    order. All are multiplied by the factor `min(1, max_norm / (norm + 1e-6))`. If a parameter
    is a DTensor, the sum of squares of its gradient is all-reduced over each mesh dimension
    that shards the parameter. The given tensors are unchanged. Raises `IndexError` for no
    gradients.
    """
    import torch
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import DTensor

    squares = []
    for name, gradient in gradients.items():
        square = (gradient * gradient).sum()
        parameter = parameters[name]
        if isinstance(parameter, DTensor):
            for dimension, placement in enumerate(parameter.placements):
                if placement.is_shard():
                    group = parameter.device_mesh, dimension
                    square = _wait(functional.all_reduce(square, "sum", group))
        squares.append(square)
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    scale = torch.clamp(max_norm / (torch.sqrt(total) + 1e-6), max=1.0)
    return {name: gradient * scale for name, gradient in gradients.items()}


STEP = "step"
"""Target of the input with the number of steps before this one, as float32."""

_STATES = {"SGD": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq")}
_STATES["AdamW"] = _STATES["Adam"]

Corrections = Mapping[tuple[float, float], tuple["torch.Tensor", "torch.Tensor"]]
"""Divisors of the first and (as a root) second moments, by the betas of a parameter group."""

State = Mapping[str, Any]
"""Tensors that an optimizer stores for a parameter, or the options of a parameter group."""


def _find_states(optimizer: torch.optim.Optimizer | None) -> tuple[str, ...]:
    """Return the names of the tensors that an optimizer stores for each parameter.

    SGD with momentum in any group has `momentum_buffer`; Adam and AdamW have `exp_avg` and
    `exp_avg_sq`. Empty for no optimizer, and for SGD without momentum. Raises `UsageError` for
    other optimizers (by the name of the class), and if a group sets one of the options
    `amsgrad`, `nesterov`, `maximize` and `dampening`.
    """
    if optimizer is None:
        return ()
    name = type(optimizer).__name__
    if name not in _STATES:
        message = f"optimizer {name} is not supported"
        raise UsageError(message, cure=f"use one of {', '.join(_STATES)}")
    for group in optimizer.param_groups:
        active = [key for key in ("amsgrad", "nesterov", "maximize") if group.get(key)]
        if active or group.get("dampening"):
            message = f"{name} with {active[0] if active else 'dampening'} is not supported"
            raise UsageError(message, cure="leave the option out")
    has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return () if name == "SGD" and not has_momentum else _STATES[name]


def _find_group(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> State:
    """Return the options of the first optimizer group that contains a parameter.

    The parameter is compared by identity; the group itself is returned. Raises `UsageError` if
    no group contains it.
    """
    groups: list[State] = optimizer.param_groups
    for group in groups:
        if any(member is parameter for member in group["params"]):
            return group
    raise UsageError("a parameter of the module is not in the optimizer", cure="add it")


def _update_sgd(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    options: State,
    corrections: Corrections,
) -> dict[str, torch.Tensor]:
    """Return parameter and momentum after a step of SGD, with L2 decay of the weights.

    `weight_decay` times the parameter is added to the gradient first. The new momentum is
    `momentum` times the old one plus the gradient; the parameter is reduced by `lr` times the
    new momentum. Without momentum (`state` is empty), the gradient takes its place, and only
    the parameter is returned. The keys are `""` for the parameter and `momentum_buffer`.
    `options`: of the optimizer group; `corrections` is not used. The arguments are not modified.
    """
    if options["weight_decay"]:
        gradient = gradient + options["weight_decay"] * parameter
    if not state:
        return {"": parameter - options["lr"] * gradient}
    momentum = options["momentum"] * state["momentum_buffer"] + gradient
    return {"": parameter - options["lr"] * momentum, "momentum_buffer": momentum}


def _update_adam(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    options: State,
    corrections: Corrections,
) -> dict[str, torch.Tensor]:
    """Return parameter and moments after a step of Adam, with L2 decay of the weights.

    `weight_decay` times the parameter is added to the gradient first. `options`: of the optimizer
    group; `corrections`: bias corrections by `(beta1, beta2)`. The parameter has the key `""`, the
    moments the keys `exp_avg` and `exp_avg_sq`. The arguments are not modified.
    """
    if options["weight_decay"]:
        gradient = gradient + options["weight_decay"] * parameter
    return _update_moments(parameter, gradient, state, options, corrections)


def _update_adamw(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    options: State,
    corrections: Corrections,
) -> dict[str, torch.Tensor]:
    """Return parameter and moments after a step of AdamW, with decoupled decay of the weights.

    The parameter is multiplied by 1 - lr x `weight_decay` before Adam's update; the gradient is not
    changed. `options`: of the optimizer group; `corrections`: bias corrections by `(beta1, beta2)`.
    The parameter has the key `""`, the moments the keys `exp_avg` and `exp_avg_sq`.
    """
    decayed = parameter * (1 - options["lr"] * options["weight_decay"])
    return _update_moments(decayed, gradient, state, options, corrections)


def _compute_corrections(
    step: torch.Tensor, beta1: float, beta2: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the divisors that correct the bias of Adam's moments after `step` steps.

    Returns `1 - beta1**step` for the first moment, and `sqrt(1 - beta2**step)` for the square root
    of the second.
    """
    import torch

    return 1 - torch.pow(beta1, step), torch.sqrt(1 - torch.pow(beta2, step))


def _update_moments(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    options: State,
    corrections: Corrections,
) -> dict[str, torch.Tensor]:
    """Return parameter and moments after Adam's update without weight decay.

    The rule is algorithm 1 of Kingma and Ba, as in PyTorch. `state` has `exp_avg` and
    `exp_avg_sq`, `options` has `betas`, `lr` and `eps`. `corrections`: the divisors of
    `_compute_corrections` by `(beta1, beta2)`. The parameter has the key `""`, the moments
    the keys `exp_avg` and `exp_avg_sq`. The arguments are not modified.
    """
    import torch

    beta1, beta2 = options["betas"]
    correction1, correction2 = corrections[beta1, beta2]
    first = state["exp_avg"] * beta1 + gradient * (1 - beta1)
    second = state["exp_avg_sq"] * beta2 + gradient * gradient * (1 - beta2)
    denominator = torch.sqrt(second) / correction2 + options["eps"]
    updated = parameter - options["lr"] * ((first / correction1) / denominator)
    return {"": updated, "exp_avg": first, "exp_avg_sq": second}


_UPDATES: dict[str, Callable[..., dict[str, torch.Tensor]]] = {
    "SGD": _update_sgd,
    "Adam": _update_adam,
    "AdamW": _update_adamw,
}
