"""Run written modules on four gloo ranks and compare them with PyTorch; started by a test.

Prints one line of JSON: by case the largest difference, relative to the largest value, and the
number of collectives of each kind.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collhub_captured_graphs import CapturedGraph
from collhub_captured_graphs.capture import capture
from collhub_coconet import (
    LOCAL,
    Binding,
    Kind,
    Program,
    ProgramBuilder,
    all_gather,
    all_reduce,
    as_slice,
    coalesce_by_size,
    movable,
    reduce_scatter,
    reorder,
    sliced,
    split,
)
from collhub_coconet.documents.json_document import BoundProgram
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import TorchModuleOptions
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, type_graph
from collhub_coconet.torch_programs.writing import write
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

RANKS = 4
OPTIONS: dict[str, Any] = {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1}


class Layer(nn.Module):
    """Transformer block with causal attention."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        # A tensor-parallel rank has some of the heads.
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, -1, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return y


class Block(Layer):
    """Transformer block; the output is a loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return (y * y).mean()


class Gpt(nn.Module):
    """Language model of two layers; the output is the loss."""

    def __init__(self, words: int = 32, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.positions
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(scores, labels.flatten())


def build_gpt(mesh: Any) -> Gpt:
    """Build a model with tensor parallelism along the axis `tp` of a mesh."""
    model = Gpt()
    styles = {
        **dict.fromkeys(("qkv", "up"), ColwiseParallel()),
        **dict.fromkeys(("out", "down"), RowwiseParallel()),
    }
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], styles)
    return model


class Experts(nn.Module):
    """One expert per rank with slots that mix tokens by softmax weights (Soft MoE)."""

    def __init__(self, group: str, width: int = 8, slots: int = 2) -> None:
        super().__init__()
        self.group = group
        self.slots = nn.Linear(width, RANKS * slots, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def exchange(self, x: torch.Tensor) -> torch.Tensor:
        splits = [x.shape[0] // RANKS] * RANKS
        sent = torch.ops._c10d_functional.all_to_all_single(x, splits, splits, self.group)
        received: torch.Tensor = torch.ops._c10d_functional.wait_tensor(sent)
        return received

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.slots(x)
        inputs = self.exchange(weights.softmax(0).t() @ x)
        outputs = self.exchange(self.down(functional.silu(self.up(inputs))))
        mixed: torch.Tensor = weights.softmax(1) @ outputs
        return mixed


def shard_states(program: Program) -> Program:
    """Scatter all gradients and slice the states, as ZeRO does."""
    for name in [one.name for one in program.operations if one.kind is Kind.ALL_REDUCE]:
        if program.types[name].shape and program.types[name].shape[0] != 1:
            program = split(program, name, 0).program
            program = reorder(program, name, movable(program, name)).program
    states = [name for name in program.states if "exp_avg" in name]
    return as_slice(program, states).program


def build_module(
    graph: CapturedGraph, change: Callable[[Program], Program], bucket: int | None
) -> str:
    """Text of the module of a transformed graph."""
    bound = type_graph(graph, TypingChoices())
    bound = BoundProgram(change(bound.program), bound.binding)
    workload = lower(bound.program, bound.binding)
    (artifact,) = write(workload, TorchModuleOptions(bucket_size=bucket)).artifacts
    return artifact.content().decode()


def load(text: str | None) -> Any:
    """Share a module of rank 0 with all ranks, and load it."""
    texts = [text]
    dist.broadcast_object_list(texts, src=0)
    module = type(sys)("written")
    exec(compile(str(texts[0]), "written", "exec"), vars(module))
    return module


def run_step(module: Any, model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """Run a written module once; return its complete outputs by name.

    Parameters are those of the model, complete also if the model has shards; states of the
    optimizer are 0.
    """
    parameters = {name.replace(".", "_"): value for name, value in model.named_parameters()}
    arguments = {}
    for name, (element, shape, _) in module.ARGUMENTS.items():
        arguments[name] = torch.zeros(shape, dtype=getattr(torch, element))
        if name in parameters:
            value: Any = parameters[name].detach()
            is_local = not hasattr(value, "full_tensor")
            arguments[name] = (value if is_local else value.full_tensor()).clone()
    outputs = module.step(module.shard(arguments | inputs))
    return module._complete(outputs, module.OUTPUT_LAYOUTS, module.OUTPUT_SHAPES, None)


def find_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    scale = max(float(expected.abs().max()), 1e-30)
    return float((actual - expected).abs().max()) / scale


def train(model: nn.Module, x: torch.Tensor, max_norm: float | None) -> dict[str, torch.Tensor]:
    """Parameters after one step of PyTorch's own AdamW with averaged gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    model(x).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= RANKS
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def compare_training(
    mesh: Any,
    folder: Path,
    max_norm: float | None,
    change: Callable[[Program], Program],
    bucket: int | None,
) -> tuple[float, Counter[str]]:
    """Compare a written training step with PyTorch: difference, and collectives of the module."""
    torch.manual_seed(0)
    model = Block()
    torch.manual_seed(dist.get_rank())
    x = torch.randn(2, 8, 16)
    text = None
    if dist.get_rank() == 0:
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        graph = capture(
            model,
            (x,),
            mesh,
            loss=lambda loss: loss,
            optimizer=optimizer,
            max_norm=max_norm,
            path=folder / "block.graph.json",
        )
        text = build_module(graph, change, bucket)
    module = load(text)
    outputs = run_step(module, model, {"input_0": x})
    expected = train(copy.deepcopy(model), x, max_norm)
    difference = max(
        find_difference(outputs[module.UPDATES[name.replace(".", "_")]], value)
        for name, value in expected.items()
    )
    step = "" if text is None else text[text.index("def step") :]
    return difference, Counter(
        {name: step.count(f" = {name}(") for name in ("_all_reduce", "_all_reduce_bucket", "_reduce_scatter", "_all_gather")}
    )  # fmt: skip


def compare_experts(folder: Path) -> float:
    """Compare a written mixture of experts with the module."""
    world: Any = dist.group.WORLD
    group = world.group_name
    torch.manual_seed(0)
    model = Experts(group)
    torch.manual_seed(dist.get_rank())
    for expert in (model.up, model.down):
        nn.init.normal_(expert.weight)
    x = torch.randn(6, 8)
    text = None
    if dist.get_rank() == 0:
        local = [name for name, _ in model.named_parameters() if not name.startswith("slots")]
        graph = capture(model, (x,), local=local, path=folder / "experts.graph.json")
        text = build_module(graph, lambda program: program, None)
    module = load(text)
    arguments = {name.replace(".", "_"): value for name, value in model.named_parameters()}
    (output,) = module.step(arguments | {"input_0": x}).values()
    return find_difference(output.detach(), model(x).detach())


class Layers(nn.Module):
    """Two layers, which are column- and row-parallel."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return y


def local_tensor(value: Any) -> Any:
    """Part of a DTensor on this rank; any other tensor itself."""
    return value.to_local() if hasattr(value, "to_local") else value


def compare_shards(mesh: Any, folder: Path) -> float:
    """Compare a written tensor-parallel layer with its DTensors."""
    torch.manual_seed(0)
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Layers(), mesh, styles)
    x = torch.randn(6, 8)
    text = None
    if dist.get_rank() == 0:
        graph = capture(model, (x,), mesh, path=folder / "layers.graph.json")
        placements = [entry.placement for entry in graph.inputs]
        assert placements == ["S(0)", "S(0)", "S(1)", "R", "L"], placements
        text = build_module(graph, lambda program: program, None)
    module = load(text)
    parameters = dict(model.named_parameters())
    local = {name.replace(".", "_"): local_tensor(value) for name, value in parameters.items()}
    (output,) = module.step(local | {"input_0": x}).values()
    return find_difference(output.detach(), model(x).detach())


def compare_mesh(folder: Path) -> tuple[float, list[int]]:
    """Compare a written step with tensor and data parallelism with PyTorch's; also its groups."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = build_gpt(mesh)
    torch.manual_seed(mesh["dp"].get_local_rank())
    words, labels = torch.randint(0, 32, (2, 2, 8))
    text = None
    if dist.get_rank() == 0:
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        graph = capture(
            model,
            (words, labels),
            mesh,
            loss=lambda loss: loss,
            optimizer=optimizer,
            max_norm=0.1,
            data_parallel="dp",
            path=folder / "gpt.graph.json",
        )
        placements = {"input_0": "(L, R)", "input_1": "(L, R)"}
        bound = type_graph(graph, TypingChoices(placements=placements))
        program = bound.program
        reductions = [one for one in program.operations if one.axes == ("dp",)]
        for one in [one for one in reductions if program.types[one.name].shape][:8]:
            program = split(program, one.name, 0).program
            program = reorder(program, one.name, movable(program, one.name)).program
        workload = lower(program, bound.binding)
        (artifact,) = write(workload, TorchModuleOptions(bucket_size=1 << 20)).artifacts
        text = artifact.content().decode()
    module = load(text)
    outputs = run_step(module, model, {"input_0": words, "input_1": labels})
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    model(words, labels).backward()
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    for gradient in map(local_tensor, gradients):
        dist.all_reduce(gradient, group=mesh["dp"].get_group())
        gradient /= 2
    squares = torch.zeros(())
    for gradient in gradients:
        square = (local_tensor(gradient) ** 2).sum()
        if hasattr(gradient, "to_local") and any(one.is_shard() for one in gradient.placements):
            dist.all_reduce(square, group=mesh["tp"].get_group())
        squares += square
    for gradient in gradients:
        local_tensor(gradient).mul_(torch.clamp(0.1 / (squares.sqrt() + 1e-6), max=1.0))
    optimizer.step()
    difference = 0.0
    for name, parameter in model.named_parameters():
        complete: Any = parameter.detach()
        complete = complete.full_tensor() if hasattr(complete, "full_tensor") else complete
        key = name.replace(".", "_")
        difference = max(difference, find_difference(outputs[module.UPDATES[key]], complete))
    return difference, [len(one) for one in module.GROUPS]


BUCKETS = ("_all_reduce_bucket", "_reduce_scatter_bucket", "_all_gather_bucket")


def compare_buckets() -> tuple[float, list[int]]:
    """Compare collectives in buckets with the same ones apart; also the calls of each kind."""
    build = ProgramBuilder("buckets")
    outputs = []
    # Five rows are not a multiple of the ranks.
    for index, shape in enumerate([(8, 3), (5, 4), (2, 5), (12,)]):
        for kind in ("reduce", "scatter", "gather"):
            dimension = index % len(shape)
            layout = sliced(dimension) if kind == "gather" else LOCAL
            x = build.argument(f"{kind}{index}", "float32", *shape, layout=layout)
            if kind == "reduce":
                y = all_reduce(x)
            else:
                y = all_gather(x) if kind == "gather" else reduce_scatter(x, dimension)
            outputs.append((y * 2.0).named(f"{kind}_{index}"))
    apart = build.program(*outputs)
    binding = Binding(RANKS, {})
    modules, texts = [], []
    for program in (apart, coalesce_by_size(apart, binding, 1 << 20).program):
        (artifact,) = write(lower(program, binding), TorchModuleOptions()).artifacts
        texts.append(artifact.content().decode())
        modules.append(load(texts[-1] if dist.get_rank() == 0 else None))
    torch.manual_seed(dist.get_rank())
    arguments = {name: torch.randn(shape) for name, (_, shape, _) in modules[0].ARGUMENTS.items()}
    first, second = (module.step(module.shard(arguments)) for module in modules)
    difference = max(
        find_difference(second[name], first[name]) for name in first if first[name].numel()
    )
    step = texts[1][texts[1].index("def step") :]
    return difference, [step.count(f" = {name}(") for name in BUCKETS]


def run_rank(rank: int, folder: str) -> None:
    """Run all cases on one rank; rank 0 prints the results."""
    torch.set_num_threads(1)
    distributed: Any = dist
    store = distributed.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    path = Path(folder)
    results: dict[str, Any] = {}
    cases: dict[str, tuple[float | None, Callable[[Program], Program], int | None]] = {
        "transformer block": (None, lambda program: program, 1 << 20),
        "AdamW with clipping, sharded states": (0.1, shard_states, None),
    }
    for name, (max_norm, change, bucket) in cases.items():
        difference, collectives = compare_training(mesh, path, max_norm, change, bucket)
        results[name] = {"difference": difference, "collectives": collectives}
    results["tensor parallel"] = {"difference": compare_shards(mesh, path)}
    difference, calls = compare_buckets()
    results["buckets"] = {"difference": difference, "collectives": calls}
    results["experts"] = {"difference": compare_experts(path)}
    difference, groups = compare_mesh(path)
    results["tensor and data parallel"] = {"difference": difference, "groups": groups}
    if rank == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes: Any = torch.multiprocessing
        processes.start_processes(run_rank, (folder,), nprocs=RANKS, start_method="fork")
