"""The ladders of `ladders.py` by simulation: programs, rewritten, lowered by chunks, and timed.

`python benchmarks/coconet/simulated.py` prints milliseconds and quotients to the formulas, for
GPT-2 8.3B layers with several algorithms, the pipeline boundary, Adam, and the time of lowering.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "coconet"), str(ROOT / "benchmarks" / "coconet")]

from adam import adam  # noqa: E402
from collhub_coconet import (  # noqa: E402
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    all_gather,
    all_reduce,
    as_slice,
    dropout,
    fuse,
    matmul,
    movable,
    overlap,
    reorder,
    send,
    slice_of,
    sliced,
    split,
    tanh,
)
from collhub_coconet.lowering.algorithms import Choice  # noqa: E402
from collhub_coconet.lowering.flat import flatten  # noqa: E402
from collhub_coconet.lowering.timing import Machine, makespan  # noqa: E402
from ladders import model_parallel, pipeline  # noqa: E402
from transformer_blocks import attention, pipeline_boundary  # noqa: E402

import hub_core  # noqa: E402

_PRODUCTS, _MEMORY = 90e12, 0.85 * 900e9
_RANKS = 16
_NETWORK = 0.9 * 8 * 12.5e9
_SWITCH = "switch:16?bandwidth=130.5GB/s&latency=0ns"
# The algorithms stream the units of trees themselves: one piece of each is enough.
_ALGORITHMS = [("ring", 16), ("tacos", 4), ("blink", 1), ("pat", 16)]


def scattered(program: Program, target: str, dimension: int) -> Program:
    """The program after split and reorder."""
    after = split(program, target, dimension).program
    return reorder(after, target, movable(after, target)).program


def model_parallel_ladder(registry: hub_core.Registry) -> None:
    """Megatron, MM-AR-C, MM-RS-C-AG and ol(MM, fuse(RS-C-AG)) beside the formulas."""
    print("model parallel, 16 ranks, alpha = 0: ms (quotient to the formula)")
    print(f"{'':26}Megatron         MM-AR-C          MM-RS-C-AG       ol               "
          "speed-up  hidden")  # fmt: skip
    for name, chunks in _ALGORITHMS:
        for batch, layer in ((8, "attention"), (8, "MLP"), (16, "attention"), (16, "MLP")):
            found = _model_parallel(batch, layer, Choice(name, chunks), registry)
            product, _, *expected = model_parallel(batch, layer)
            cells = "".join(_cell(one, two) for one, two in zip(found, expected, strict=False))
            hidden = (found[4] - found[3]) / product
            label = f"{name}, B = {batch}, {layer}"
            print(f"{label:26}{cells}{found[0] / found[3]:8.3f}  {hidden:6.1%}")


def _model_parallel(
    batch: int, layer: str, choice: Choice, registry: hub_core.Registry
) -> list[float]:
    """Simulated seconds of the four schedules, and of the last one without overlap."""
    inner = 3072 * (4 if layer == "MLP" else 1)
    binding = Binding(_RANKS, {"B": batch, "S": 1024, "K": inner, "H": 3072})
    machine = Machine(_PRODUCTS, _MEMORY, topology=_SWITCH)
    whole = attention()
    size = 2 * batch * 1024 * 3072
    # Kernels of their own, in all the 8 times the tensor that the formula counts.
    separate = {"_3": 2, "_4": 3, "o": 3}
    measured = {name: share * size / _MEMORY for name, share in separate.items()}
    together = fuse(whole, ["_3", "_4", "o"]).program
    # Along the sequence: a batch of 8 leaves half of 16 ranks without a block.
    moved = scattered(whole, "z", 1)
    inside = [one.name for one in moved.operations if one.name not in ("y", "z_S_1", "o")]
    pointwise = fuse(moved, inside).program
    stage = fuse(moved, [*inside, "z_S_1", "o"], "stage").program
    chained = overlap(stage, ["y", "stage"]).program
    schedules = [
        (whole, replace(machine, measured_s=measured)),
        (together, machine),
        (pointwise, machine),
        (chained, machine),
        (stage, machine),
    ]
    return [_seconds(one, binding, on, {"": choice}, registry) for one, on in schedules]


def pipeline_ladder(registry: hub_core.Registry) -> None:
    """Megatron, AR-C-P2P-AG, RS-C-P2P-AG and ol(RS, fuse(C-P2P), AG)."""
    print("\npipeline boundary, two groups of 16 ranks: ms (quotient), speed-up over Megatron")
    binding = Binding(_RANKS, {"B": 1, "S": 2048, "H": 12288})
    size = 2 * 2048 * 12288
    machine = Machine(_PRODUCTS, _MEMORY, topology=two_nodes())
    whole = pipeline_boundary()
    unfused = {"_2": 2, "_3": 3, "o": 3}
    all_of = {name: share * size / _MEMORY for name, share in unfused.items()}
    of_slices = {name: share / _RANKS for name, share in all_of.items()}
    moved = scattered(whole, "z", 1)
    inside = [one.name for one in moved.operations if one.name not in ("z_S_1", "q")]
    stage = fuse(moved, inside, "stage").program
    chained = overlap(stage, ["z_S_1", "stage", "q"]).program
    schedules = [
        (whole, all_of),
        (sent_in_slices(), all_of),
        (moved, of_slices),
        (chained, {}),
    ]
    found = []
    for program, measured in schedules:
        on = replace(machine, measured_s=measured)
        found.append(_seconds(program, binding, on, {"": Choice("ring", 16, at_once=1)}, registry))
    for label, one, expected in zip(
        ("Megatron", "AR-C-P2P-AG", "RS-C-P2P-AG", "ol"), found, pipeline(), strict=True
    ):
        print(f"{label:14}{_cell(one, expected)}{found[0] / one:8.3f}")


def sent_in_slices() -> Program:
    """AR-C-P2P-AG: all is computed by all, a slice is sent and gathered behind."""
    build = ProgramBuilder("slices", B=(1, 64), S=(1, 4096), H=(1, 16384))
    y = build.argument("y", "float16", "B", "S", "H", layout=LOCAL)
    b = build.argument("b", "float16", "H")
    r = build.argument("r", "float16", "B", "S", "H")
    z = all_reduce(y).named("z")
    o = (dropout(z + b, 0.1, 7) + r).named("o")
    q = all_gather(send(slice_of(o, 1), 1)).named("q")
    return build.program(q)


def two_nodes() -> hub_core.Topology:
    """Two rings of 16 ranks; a node sends to the other at the rate of its network in all."""
    ranks = np.arange(2 * _RANKS)
    first = np.arange(_RANKS)
    behind = ranks // _RANKS * _RANKS + (ranks + 1) % _RANKS
    source = np.concatenate([ranks, behind, first, first + _RANKS])
    target = np.concatenate([behind, ranks, first + _RANKS, first])
    inner = np.full(4 * _RANKS, 0.87 * 150e9)
    outer = np.full(2 * _RANKS, _NETWORK / _RANKS)
    latency = np.zeros(len(source))
    rate = np.concatenate([inner, outer])
    return hub_core.Topology("two nodes", 2 * _RANKS, 2 * _RANKS, source, target, rate, latency)


def adam_ladder(registry: hub_core.Registry) -> None:
    """AR-C, RS-C-AG and the fused all-reduce of Adam on 64 ranks, without latency."""
    print("\nAdam, 256 ranks, alpha = 0, no launches: speed-ups over AR-C")
    ranks, rate = 256, 60e9
    machine = Machine(_PRODUCTS, _MEMORY, topology=f"ring:{ranks}?bandwidth=60GB/s&latency=0ns")
    for log2 in (24, 28):
        elements = 2**log2
        binding = Binding(ranks, {"N": elements})
        whole = adam()
        plain = fuse(whole, [one.name for one in whole.operations if one.name != "g1"]).program
        moved = as_slice(scattered(whole, "g1", 0), ["m", "v"]).program
        gathered = [one.name for one in moved.operations if one.kind.value == "AllGather"]
        inside = [
            one.name for one in moved.operations
            if one.name not in ("w1", "g1_S_0", *gathered)
        ]  # fmt: skip
        pointwise = fuse(moved, inside).program
        stage = fuse(moved, [*inside, "g1_S_0", *gathered]).program
        choice = {"": Choice("ring", 1)}
        found = [
            _seconds(one, binding, machine, choice, registry) for one in (plain, pointwise, stage)
        ]
        all_reduce = 2 * (ranks - 1) / ranks * 4 * elements / rate
        optimizer = 28 * elements / _MEMORY
        ideal = (all_reduce + optimizer) / all_reduce
        print(
            f"2^{log2}  AR-C {1e3 * found[0]:8.4f} ms ({found[0] / (all_reduce + optimizer):.3f})"
            f"  RS-C-AG {found[0] / found[1]:.3f}  fused {found[0] / found[2]:.3f}"
            f"  formula {ideal:.3f}"
        )


def deep_ladder(registry: hub_core.Registry) -> None:
    """CPU time of lowering a transformer of 96 layers on 64 ranks, rings included."""
    ranks = 64
    binding = Binding(ranks, {"B": 1, "S": 1024, "H": 4096, "F": 16384})
    network = hub_core.parse_topology(f"ring:{ranks}", registry=registry)
    begin = time.process_time()
    flat = flatten(transformer(96), binding, network, registry=registry)
    seconds = time.process_time() - begin
    print(f"\n96 layers, 64 ranks: {len(flat.workload.nodes)} nodes in {seconds:.1f} s CPU")


def transformer(layers: int) -> Program:
    """Two products, an all-reduce, Dropout and a residual twice a layer."""
    build = ProgramBuilder("transformer", B=(1, 64), S=(1, 4096), H=(1, 16384), F=(1, 65536))
    x = build.argument("x", "float16", "B", "S", "H")
    for layer in range(layers):
        for inner in ("H", "F"):
            label = f"{layer}{inner}"
            first = build.argument(f"v{label}", "float16", "H", inner, layout=sliced(1))
            second = build.argument(f"w{label}", "float16", inner, "H", layout=sliced(0))
            bias = build.argument(f"b{label}", "float16", "H")
            total = all_reduce(matmul(tanh(matmul(x, first)), second))
            x = dropout(total + bias, 0.1, 7) + x
    return build.program(x)


def _seconds(
    program: Program,
    binding: Binding,
    machine: Machine,
    choices: dict[str, Choice],
    registry: hub_core.Registry,
) -> float:
    return makespan(program, binding, machine, choices, registry=registry).time_s


def _cell(found: float, expected: float) -> str:
    text = f"{1e3 * found:.4f} ({found / expected:.3f})"
    return f"{text:17}"


def main(arguments: Sequence[str] = ()) -> None:
    """Print all ladders."""
    registry = hub_core.discover()
    begin = time.process_time()
    ladders = [model_parallel_ladder, pipeline_ladder, adam_ladder, deep_ladder]
    for ladder in ladders:
        if not arguments or ladder.__name__.removesuffix("_ladder") in arguments:
            ladder(registry)
    print(f"\n{time.process_time() - begin:.1f} s CPU in all")


if __name__ == "__main__":
    main(sys.argv[1:])
