"""`capture` in a user's script: forward, backward, optimizer; needs PyTorch."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collhub_captured_graphs import CapturedGraph, graph_from_json, read_export
from collhub_pytorch import capture

from hub_core.model import InputError, UsageError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One gloo rank as a mesh."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    dist.destroy_process_group()


def words() -> Any:
    import torch

    return torch.zeros(2, 8, dtype=torch.int64)


def capture_gpt(mesh: Any, folder: Path, **options: Any) -> tuple[Any, CapturedGraph]:
    import torch
    from captured_models import Gpt

    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    graph = capture(
        model,
        (words(), words()),
        mesh,
        loss=lambda loss: loss,
        optimizer=optimizer,
        path=folder / "gpt.graph.json",
        **options,
    )
    return model, graph


def count_collectives(graph: CapturedGraph) -> Counter[str]:
    names = (node.operator.split(".")[1] for node in graph.nodes if "_c10d" in node.operator)
    return Counter(name for name in names if name != "wait_tensor")


def test_collectives_of_a_training_step_match_the_profile(mesh: Any, tmp_path: Path) -> None:
    """The step with DDP, a bucket per parameter, is profiled; 2 layers, AdamW."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, graph = capture_gpt(mesh, tmp_path)
    replica = DistributedDataParallel(model, bucket_cap_mb=1e-9)
    for _ in range(2):  # The first step arranges the buckets.
        optimizer = torch.optim.AdamW(replica.parameters(), lr=1e-3)
        with torch.profiler.profile() as profile:
            replica(words(), words()).backward()
            optimizer.step()
    calls = sum(event.name == "c10d::allreduce_" for event in profile.events())
    assert count_collectives(graph) == {"all_reduce": calls}
    assert calls == len(list(model.parameters()))


def test_written_document_is_the_graph(mesh: Any, tmp_path: Path) -> None:
    _, graph = capture_gpt(mesh, tmp_path)
    content = (tmp_path / "gpt.graph.json").read_bytes()
    written = graph_from_json(content, "")
    assert written == graph
    roles = Counter(str(entry.role) for entry in written.inputs)
    parameters = roles["parameter"]
    assert roles == {"parameter": parameters, "state": 2 * parameters + 1, "input": 2}


def test_clipping_adds_the_norm_of_all_gradients(mesh: Any, tmp_path: Path) -> None:
    _, graph = capture_gpt(mesh, tmp_path, max_norm=1.0)
    operators = Counter(node.operator for node in graph.nodes)
    assert operators["aten.clamp.default"] == 1


def test_branch_on_data_is_refused_in_one_line(tmp_path: Path) -> None:
    import torch

    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match="Branch cannot be captured") as refusal:
        capture(Branch(), (torch.zeros(4),), path=tmp_path / "x.graph.json")
    assert "\n" not in refusal.value.diagnostics[0].message
    assert list(tmp_path.iterdir()) == []


def test_collective_in_place_is_refused(mesh: Any, tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    class Reduced(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y

    with pytest.raises(InputError, match=r"allreduce_.* is a collective in place"):
        capture(Reduced(), (torch.zeros(4),), mesh, path=tmp_path / "x.graph.json")


def test_compiled_module_is_refused_with_the_remedy(tmp_path: Path) -> None:
    import torch

    with pytest.raises(InputError) as refusal:
        capture(torch.compile(torch.nn.Linear(2, 2)), (torch.zeros(4, 2),), path=tmp_path / "x")
    assert refusal.value.diagnostics[0].cure == "capture the module without torch.compile"


def test_unsupported_optimizer_is_refused(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Rprop(model.parameters())
    with pytest.raises(UsageError, match="optimizer Rprop is not supported"):
        capture(
            model,
            (torch.zeros(1, 2),),
            loss=lambda y: y.sum(),
            optimizer=optimizer,
            path=tmp_path / "x.graph.json",
        )


def test_saved_export_is_read(tmp_path: Path) -> None:
    import torch
    from captured_models import Block

    exported = torch.export.export(Block(16, 4), (torch.zeros(2, 8, 16),))
    torch.export.save(exported, tmp_path / "block.pt2")
    with (tmp_path / "block.pt2").open("rb") as stream:
        graph = read_export(stream, "block.pt2")
    assert Counter(node.operator for node in graph.nodes)["aten.linear.default"] == 4
    assert graph.tensors[graph.outputs[0].value].shape == (2, 8, 16)


def test_joint_graph_of_aotautograd_is_converted(tmp_path: Path) -> None:
    """Forward and backward pass in one graph, with the gradients as outputs."""
    import torch
    from collhub_captured_graphs import GraphInput, GraphOutput, Tensor
    from collhub_captured_graphs.fx_graphs import convert_fx
    from collhub_captured_graphs.graph import InputRole, OutputRole
    from torch._functorch.aot_autograd import aot_export_module

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.layer(x).pow(2).mean(),)

    joint, signature = aot_export_module(
        Loss(), (torch.zeros(4, 8),), trace_joint=True, output_loss_index=0
    )
    unnamed = Tensor("", "float32", ())
    inputs = [
        *(GraphInput(unnamed, InputRole.PARAMETER, name) for name in signature.parameters),
        GraphInput(unnamed, InputRole.INPUT),
    ]
    gradients = signature.backward_signature.gradients_to_parameters
    outputs = [
        GraphOutput("", OutputRole.LOSS),
        *(GraphOutput("", OutputRole.GRADIENT, name) for name in gradients.values()),
    ]
    graph = convert_fx(joint, inputs, outputs)
    assert [graph.tensors[output.value].shape for output in graph.outputs] == [(), (2, 8), (2,)]
    assert [output.target for output in graph.outputs[1:]] == ["layer.weight", "layer.bias"]
    assert {entry.tensor.name for entry in graph.inputs} >= {"layer_weight", "layer_bias"}


def test_data_dependent_shape_of_an_export_is_refused(tmp_path: Path) -> None:
    import torch

    class Select(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nonzero(x)

    exported = torch.export.export(Select(), (torch.zeros(4),))
    torch.export.save(exported, tmp_path / "select.pt2")
    stream = (tmp_path / "select.pt2").open("rb")
    with stream, pytest.raises(InputError, match="size 'u0', which is no number"):
        read_export(stream, "select.pt2")
