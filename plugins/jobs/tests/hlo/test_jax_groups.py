"""Groups of collectives as XLA executes them on 8 devices of the CPU.

Every device contributes its rank, replica x partitions + partition, so the value that it receives
lists its group in order. The reader gets the StableHLO text of each module, and the HLO text that
XLA compiles it to.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_hlo.plugin import HloOptions
from collhub_hlo.read import read, read_mlir
from collhub_hlo.samples import source_of

from hub_core.model import NodeKind, Workload

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="jax is not installed: python -m pip install collhub-jobs[jax]",
    ),
]

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "
GLOBAL = ", use_global_device_ids"
AXES = '#stablehlo.mesh_axis<name = "x", size = 2>, #stablehlo.mesh_axis<name = "y", size = 4>'
TURNED = ", device_ids = dense<[7, 6, 5, 4, 3, 2, 1, 0]> : tensor<8xi64>"
STRIDED = ", device_ids = dense<[0, 2, 4, 6, 1, 3, 5, 7]> : tensor<8xi64>"


def along(*axes: str, devices: str = "", mesh: str = "") -> str:
    """Groups along axes of a mesh, named as `x` or `y:(1)2`."""
    named = []
    for axis in axes:
        name, _, part = axis.partition(":")
        named.append(
            f'#stablehlo.axis_ref<name = "{name}"' + (f", sub_axis_info = {part}>" if part else ">")
        )
    mesh = mesh or f"#stablehlo.mesh<axes = [{AXES}]{devices}>"
    return f"#stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{', '.join(named)}]>"


# Replicas, partitions, attributes before and after the groups, groups, size of a group.
GATHERS = {
    "global ids": (2, 4, CHANNEL, GLOBAL, "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>", 4),
    "global ids across": (2, 4, CHANNEL, GLOBAL, "dense<[[6, 1], [0, 7], [5, 2], [3, 4]]> : tensor<4x2xi64>", 2),
    "replicas": (2, 4, "", "", "dense<[[1, 0]]> : tensor<1x2xi64>", 2),
    "all replicas": (8, 1, "", "", "dense<> : tensor<0x0xi64>", 8),
    "replicas with partitions": (2, 4, CHANNEL, "", "dense<[[1, 0]]> : tensor<1x2xi64>", 8),
    "partitions of a replica": (2, 4, CHANNEL, "", "dense<[[0], [1]]> : tensor<2x1xi64>", 4),
    "axis": (1, 8, CHANNEL, GLOBAL, along("x"), 2),
    "axes in order": (1, 8, CHANNEL, GLOBAL, along("y", "x"), 8),
    "major sub-axis": (1, 8, CHANNEL, GLOBAL, along("y:(1)2"), 2),
    "minor sub-axis": (1, 8, CHANNEL, GLOBAL, along("y:(2)2", "x"), 4),
    "two sub-axes": (1, 8, CHANNEL, GLOBAL, along("z:(1)2", "z:(4)2", mesh="@mesh"), 4),
    "devices backwards": (1, 8, CHANNEL, GLOBAL, along("x", devices=TURNED), 2),
    "devices with a stride": (1, 8, CHANNEL, GLOBAL, along("y", devices=STRIDED), 4),
}  # fmt: skip

EXECUTE = """
import json, sys
import jax, numpy as np
from jaxlib import _jax
results = {}
for name, (replicas, partitions, text) in json.load(open(sys.argv[1])).items():
    options = _jax.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = replicas
    options.num_partitions = build.num_partitions = partitions
    build.use_spmd_partitioning = build.use_shardy_partitioner = partitions > 1
    grid = np.arange(replicas * partitions).reshape(replicas, partitions)
    build.device_assignment = _jax.DeviceAssignment.create(grid)
    devices = _jax.DeviceList(tuple(jax.devices()))
    program = jax.devices()[0].client.compile_and_load(text, devices, options)
    (arrays,) = program.execute_sharded([]).disassemble_into_single_device_arrays()
    results[name] = [np.asarray(one).tolist() for one in arrays], program.hlo_modules()[0].to_string()
json.dump(results, open(sys.argv[2], "w"))
"""


def program(replicas: int, partitions: int, body: str, size: int) -> str:
    """A module whose devices contribute their rank as %v and return %g."""
    return f"""module @t attributes {{mhlo.num_partitions = {partitions} : i32,\
 mhlo.num_replicas = {replicas} : i32}} {{
  sdy.mesh @mesh = <["z"={partitions}]>
  func.func public @main() -> tensor<{size}xi32> {{
    %0 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, [{{}}]>]\
 manual_axes={{"z"}} () {{
      %p = stablehlo.partition_id : tensor<ui32>
      %r = stablehlo.replica_id : tensor<ui32>
      %k = stablehlo.constant dense<{partitions}> : tensor<ui32>
      %m = stablehlo.multiply %r, %k : tensor<ui32>
      %s = stablehlo.add %m, %p : tensor<ui32>
      %c = stablehlo.convert %s : (tensor<ui32>) -> tensor<i32>
      %v = stablehlo.reshape %c : (tensor<i32>) -> tensor<1xi32>
      {body}
      sdy.return %g : tensor<{size}xi32>
    }} : () -> tensor<{size}xi32>
    return %0 : tensor<{size}xi32>
  }}
}}
"""


def gather(before: str, after: str, groups: str, size: int) -> str:
    return (
        f'%g = "stablehlo.all_gather"(%v) <{{all_gather_dim = 0 : i64, {before}replica_groups ='
        f" {groups}{after}}}> : (tensor<1xi32>) -> tensor<{size}xi32>"
    )


PAIRS = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
EXCHANGE = (
    "%w = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2xi32>\n"
    f'      %g = "stablehlo.all_to_all"(%w) <{{{CHANNEL}concat_dimension = 0 : i64, split_dimension ='
    " 0 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>}>"
    " : (tensor<2xi32>) -> tensor<2xi32>"
)
PROGRAMS = {
    name: (case[0], case[1], program(*case[:2], gather(*case[2:]), case[5]))
    for name, case in GATHERS.items()
} | {
    "exchange between partitions": (2, 4, program(2, 4, EXCHANGE, 2)),
    **{
        f"permutation of {noun}": (
            2, 4,
            program(2, 4, f'%g = "stablehlo.collective_permute"(%v) <{{{channel}{PAIRS}}}> :'
                    " (tensor<1xi32>) -> tensor<1xi32>", 1),
        )
        for noun, channel in (("partitions", CHANNEL), ("replicas", ""))
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[list[int]], str]]:
    """Values of all devices, and compiled text, by name of the program."""
    folder: Path = tmp_path_factory.mktemp("jax")
    (folder / "programs.json").write_text(json.dumps(PROGRAMS))
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    files = [str(folder / "programs.json"), str(folder / "results.json")]
    result = subprocess.run(
        [sys.executable, "-c", EXECUTE, *files],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if result.returncode and "AttributeError" in result.stderr:
        pytest.skip(f"jaxlib has another interface: {result.stderr.splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    values: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return values


def groups_by_rank(workload: Workload) -> list[tuple[int, ...]]:
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
    assert nodes.rank[rows].tolist() == list(range(workload.num_ranks))
    return [workload.members(int(nodes.group[row])) for row in rows]


@pytest.mark.parametrize("name", GATHERS)
def test_groups_are_those_that_xla_executes(
    executed: dict[str, tuple[list[list[int]], str]], name: str
) -> None:
    values, compiled = executed[name]
    assert values == [list(group) for group in groups_by_rank(load_hlo(compiled))]
    # XLA of jaxlib 0.10.2 drops the devices of a mesh when it translates StableHLO. The reader
    # follows `flattenReplicaGroupMeshAxes`, the reference in openxla/stablehlo.
    if not name.startswith("devices"):
        assert values == [list(group) for group in groups_by_rank(lowered(name))]


def test_an_exchange_with_a_channel_is_between_partitions(
    executed: dict[str, tuple[list[list[int]], str]],
) -> None:
    values, compiled = executed["exchange between partitions"]
    for workload in (lowered("exchange between partitions"), load_hlo(compiled)):
        assert values == [list(group) for group in groups_by_rank(workload)]


@pytest.mark.parametrize("noun", ["partitions", "replicas"])
def test_pairs_are_those_that_xla_executes(
    executed: dict[str, tuple[list[list[int]], str]], noun: str
) -> None:
    values, compiled = executed[f"permutation of {noun}"]
    for workload in (lowered(f"permutation of {noun}"), load_hlo(compiled)):
        nodes = workload.nodes
        rows = np.flatnonzero(nodes.kind == NodeKind.RECV)
        sources = dict(zip(nodes.rank[rows].tolist(), nodes.peer[rows].tolist(), strict=True))
        # A device that receives nothing gets zero; rank 0 is also a source.
        assert values == [[sources.get(rank, 0)] for rank in range(8)]


def lowered(name: str) -> Workload:
    return read_mlir(source_of("program.mlir", PROGRAMS[name][2]), HloOptions())


def load_hlo(text: str) -> Workload:
    return read(source_of("program.hlo", text), HloOptions())
