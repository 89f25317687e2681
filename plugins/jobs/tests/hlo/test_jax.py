"""Programs that JAX compiles here, on 8 devices of the CPU, against the facts of their source.

A program is lowered to StableHLO and compiled to HLO in a process of its own, since the number of
devices is fixed when JAX starts. Its collectives, with groups and bytes, follow from the sizes of
the arrays and of the mesh, as written next to each program.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from collhub_hlo.plugin import HloOptions
from collhub_hlo.read import read, read_mlir
from collhub_hlo.samples import source_of

from hub_core.model import InputError, JobCollective, NodeKind, Workload
from hub_core.plugin_api import Source

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="jax is not installed: python -m pip install collhub-jobs[jax]",
    ),
]

PROGRAMS = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
turned = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("p", "q"))

def mapped(body, arguments, results, over=mesh):
    return jax.shard_map(body, mesh=over, in_specs=arguments, out_specs=results, check_vma=False)

def every_kind(x):
    # x: 8 x 8 floats a device, 256 bytes.
    gathered = lax.all_gather(x, "data", tiled=True)
    scattered = lax.psum_scatter(gathered, "data", tiled=True)
    exchanged = lax.all_to_all(scattered, "model", 1, 0, tiled=True)
    moved = lax.ppermute(x, "model", [(0, 1), (1, 2), (2, 3), (3, 0)])
    return lax.pmax(moved, ("data", "model")) + jnp.sum(exchanged) + lax.psum(x * x, "model")

def loop(x, w):
    # 5 iterations of a 16 x 32 by 32 x 32 product and a reduction of 16 x 32 floats.
    def step(carry, _):
        return lax.psum(jnp.tanh(carry @ w), "model"), None
    return lax.scan(step, x, None, length=5)[0]

def nested(x):
    # 3 x 4 reductions of 64 floats over "data", 3 over "model"; while counts by 2 from 1 to 7.
    def inner(carry, _):
        return lax.psum(carry * 0.5, "data"), None
    def outer(state):
        count, value = state
        value = lax.scan(inner, value, None, length=4)[0]
        return count + 2, lax.psum(value, "model")
    return lax.while_loop(lambda state: state[0] < 7, outer, (1, x))[1]

def branches(x):
    # The branch with a collective is read: a reduction of 128 bytes.
    return lax.cond(x[0, 0] > 0, lambda a: lax.psum(a, "model"), lambda a: a * 2.0, x)

def several(x, y):
    # Two reductions in one call of jax: 64 floats and 16 integers.
    a, b = lax.psum((x, y), "data")
    return a + jnp.sum(b)

def backwards(x):
    # The mesh counts devices down: axis "q" joins neighbours, {7,6}, {5,4}, ...
    return lax.psum(x, "q") + lax.pmin(x, "p")

def halves(x):
    return lax.psum(x, "model", axis_index_groups=[[0, 1], [2, 3]])

def differentiated(x, w):
    # A loss over all devices: the gradient of w is reduced over "data", forward and backward.
    def loss(weights):
        return lax.pmean(jnp.sum((x @ weights) ** 2), "data")
    return lax.psum(jax.grad(loss)(w), "data")

def unpartitioned(x, w):
    return jnp.sum((x @ w) ** 2)

f32 = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
D, M, DM = P("data"), P(None, "model"), P("data", "model")
CASES = {
    "every_kind": (mapped(every_kind, DM, DM), [f32(16, 32)]),
    "loop": (mapped(loop, (P("data", None), P()), P("data", None)), [f32(32, 32), f32(32, 32)]),
    "nested": (mapped(nested, P(("data", "model")), P(("data", "model"))), [f32(512)]),
    "branches": (mapped(branches, DM, DM), [f32(8, 32)]),
    "several": (mapped(several, (P("data"), P("data")), P()), [f32(128), jax.ShapeDtypeStruct((32,), jnp.int32)]),
    "backwards": (mapped(backwards, P(("p", "q")), P(("p", "q")), turned), [f32(256)]),
    "halves": (mapped(halves, DM, DM), [f32(16, 32)]),
    "differentiated": (mapped(differentiated, (P("data", None), P()), P()), [f32(32, 16), f32(16, 8)]),
}
texts = {}
for name, (function, arguments) in CASES.items():
    lowered = jax.jit(function).lower(*arguments)
    module = lowered.compiler_ir("stablehlo").operation
    texts[name] = {
        "stablehlo": lowered.as_text(),
        "debug": lowered.as_text(debug_info=True),
        "generic": module.get_asm(print_generic_op_form=True),
        "hlo": lowered.compile().as_text(),
    }
sharding = NamedSharding(mesh, P("data", None))
x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)
w = jax.ShapeDtypeStruct((32, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "model")))
lowered = jax.jit(unpartitioned).lower(x, w)
texts["unpartitioned"] = {"stablehlo": lowered.as_text(), "hlo": lowered.compile().as_text()}
module = lowered.compiler_ir("stablehlo").operation
module.write_bytecode(open(sys.argv[2], "wb"))
json.dump(texts, open(sys.argv[1], "w"))
"""

FOURS = ((0, 1, 2, 3), (4, 5, 6, 7))
TWOS = ((0, 4), (1, 5), (2, 6), (3, 7))
ALL = (tuple(range(8)),)
AR, AG = JobCollective.ALL_REDUCE, JobCollective.ALL_GATHER
RS, A2A = JobCollective.REDUCE_SCATTER, JobCollective.ALL_TO_ALL
# Kind, bytes of the operands of a device, groups: number of calls of a device.
Truth = Counter[tuple[JobCollective, int, tuple[tuple[int, ...], ...]]]
TRUTHS: dict[str, Truth] = {
    "every_kind": Counter({
        (AG, 256, TWOS): 1, (RS, 512, TWOS): 1, (A2A, 256, FOURS): 1, (AR, 256, ALL): 1,
        (AR, 256, FOURS): 1,
    }),
    "loop": Counter({(AR, 16 * 32 * 4, FOURS): 5}),
    "nested": Counter({(AR, 256, TWOS): 12, (AR, 256, FOURS): 3}),
    "branches": Counter({(AR, 4 * 8 * 4, FOURS): 1}),
    "several": Counter({(AR, 256, TWOS): 1, (AR, 64, TWOS): 1}),
    "backwards": Counter({
        (AR, 128, ((0, 1), (2, 3), (4, 5), (6, 7))): 1,
        (AR, 128, ((0, 2, 4, 6), (1, 3, 5, 7))): 1,
    }),
    "halves": Counter({(AR, 256, ((0, 1), (2, 3), (4, 5), (6, 7))): 1}),
}  # fmt: skip
PRODUCTS = {"loop": (5, 5 * 2 * 16 * 32 * 32), "differentiated": (2, 2 * 2 * 16 * 16 * 8)}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Texts of all programs, by name and form."""
    folder = tmp_path_factory.mktemp("jax")
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", PROGRAMS, str(folder / "texts.json"), str(folder / "code")]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    texts: dict[str, dict[str, str]] = json.loads((folder / "texts.json").read_text())
    with pytest.raises(InputError, match="MLIR bytecode"):
        read_mlir(Source.of_bytes("code", (folder / "code").read_bytes()), HloOptions())
    return texts


def load(text: str) -> Workload:
    reader = read if text.startswith("HloModule") else read_mlir
    return reader(source_of("program", text), HloOptions())


def communication(workload: Workload) -> Truth:
    """Collectives of one device, each with all groups of the devices that issue it."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
    counts: Truth = Counter()
    by_name: dict[tuple[int, int, int], list[int]] = {}
    for row in rows.tolist():
        key = int(nodes.name[row]), int(nodes.collective[row]), int(nodes.bytes[row])
        by_name.setdefault(key, []).append(row)
    for (_, kind, size), same in by_name.items():
        groups = tuple(
            sorted({tuple(sorted(workload.members(int(nodes.group[row])))) for row in same})
        )
        per_rank = Counter(nodes.rank[same].tolist())
        assert len(set(per_rank.values())) == 1
        counts[JobCollective(kind), size, groups] += per_rank[0]
    return counts


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("form", ["stablehlo", "debug", "generic"])
def test_lowered_programs_have_the_collectives_of_their_source(
    texts: dict[str, dict[str, str]], name: str, form: str
) -> None:
    assert communication(load(texts[name][form])) == TRUTHS[name]


@pytest.mark.parametrize("name", TRUTHS)
def test_compiled_programs_have_the_collectives_of_their_source(
    texts: dict[str, dict[str, str]], name: str
) -> None:
    found = communication(load(texts[name]["hlo"]))
    if name == "several":
        # XLA may combine both reductions into one call.
        assert sum(size * count for (_, size, _), count in found.items()) == 256 + 64
        assert {(kind, groups) for kind, _, groups in found} == {(AR, TWOS)}
    else:
        assert found == TRUTHS[name]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("form", ["stablehlo", "generic", "hlo"])
def test_matrix_products_count_once_per_iteration(
    texts: dict[str, dict[str, str]], name: str, form: str
) -> None:
    facts: Any = load(texts[name][form]).extensions["hlo"]
    assert (facts["products"], facts["product_operations"]) == PRODUCTS[name]


def test_permutations_have_the_pairs_of_their_source(texts: dict[str, dict[str, str]]) -> None:
    ring = {(row * 4 + one, row * 4 + (one + 1) % 4) for row in (0, 1) for one in range(4)}
    for text in texts["every_kind"].values():
        nodes = load(text).nodes
        rows = np.flatnonzero(nodes.kind == NodeKind.SEND)
        assert set(zip(nodes.rank[rows].tolist(), nodes.peer[rows].tolist(), strict=True)) == ring
        assert set(nodes.bytes[rows].tolist()) == {256}


def test_the_gradient_of_a_mean_is_reduced_as_often_as_jax_states(
    texts: dict[str, dict[str, str]],
) -> None:
    forms = [communication(load(texts["differentiated"][one])) for one in ("stablehlo", "generic")]
    assert forms[0] == forms[1]
    assert forms[0][AR, 16 * 8 * 4, TWOS] == 1


def test_partitioning_adds_collectives_that_the_lowered_program_lacks(
    texts: dict[str, dict[str, str]],
) -> None:
    reported: list[str] = []
    source = source_of("program", texts["unpartitioned"]["stablehlo"])
    source = Source(source.name, source.parts, lambda finding: reported.append(str(finding)))
    lowered = read_mlir(source, HloOptions())
    assert communication(lowered) == Counter()
    assert any("collectives that partitioning will add" in one for one in reported)
    # The sum over all devices is a reduction of one float over both axes.
    compiled = communication(load(texts["unpartitioned"]["hlo"]))
    assert {(kind, size) for kind, size, _ in compiled} == {(AR, 4)}
