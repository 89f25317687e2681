"""Ladders of schedules by formula, beside the values of the specification.

Parameters and formulas are those of CoCoNet's measurements on V100: matrix products at 90 TFLOP/s,
memory at 765 GB/s, links at 130.5 GB/s; no latency. `python benchmarks/coconet/ladders.py` prints
milliseconds, and whether every value agrees to the digits stated.
"""

from __future__ import annotations

from collections.abc import Sequence

_PRODUCTS = 90e12
_MEMORY = 0.85 * 900e9
_LINK = 0.87 * 150e9
_NETWORK = 0.9 * 8 * 12.5e9
_RANKS = 16
_CHUNKS = 16

# Batch, layer, MM, AR, Megatron, MM-AR-C, MM-RS-C-AG, overlapped.
_MODEL_PARALLEL = [
    (8, "attention", 0.1074, 0.7232, 1.3569, 1.0279, 0.8429, 0.7299),
    (8, "MLP", 0.4295, 0.7232, 1.6790, 1.3500, 1.1650, 0.7500),
    (16, "attention", 0.2147, 1.4463, 2.7137, 2.0558, 1.6857, 1.4597),
    (16, "MLP", 0.8590, 1.4463, 3.3580, 2.7001, 2.3300, 1.5000),
]
# Megatron, AR-C-P2P-AG, RS-C-P2P-AG, overlapped, for one element of the batch.
_PIPELINE = (10.1973, 2.1703, 1.3153, 0.6044)
# log2 N, AR, optimizer, RS-C-AG over AR-C, fused over AR-C, without latency.
_ADAM = [
    (20, 0.1393, 0.0384, 0.794, 1.078, 1.276),
    (24, 2.2282, 0.6141, 1.158, 1.238, 1.276),
    (26, 8.9129, 2.4563, 1.240, 1.265, 1.276),
    (28, 35.6516, 9.8251, 1.265, 1.273, 1.276),
    (30, 142.6063, 39.3004, 1.272, 1.275, 1.276),
]
_ADAM_RANKS, _ADAM_LINK, _LAUNCH_S = 256, 60e9, 0.35e-3


def model_parallel(batch: int, layer: str) -> tuple[float, ...]:
    """Seconds of MM, AR, Megatron, MM-AR-C, MM-RS-C-AG and the overlapped schedule."""
    rows, hidden = batch * 1024, 3072
    inner = hidden // _RANKS * (4 if layer == "MLP" else 1)
    size = 2 * rows * hidden
    product = 2 * rows * inner * hidden / _PRODUCTS
    half = (_RANKS - 1) / _RANKS * size / _LINK
    separate, fused = 8 * size / _MEMORY, 3 * size / _MEMORY
    megatron = product + 2 * half + separate
    scattered = product + 2 * half + fused / _RANKS
    longest, shortest = max(product, 2 * half), min(product, 2 * half)
    overlapped = longest + shortest / _CHUNKS
    return product, 2 * half, megatron, product + 2 * half + fused, scattered, overlapped


def pipeline() -> tuple[float, ...]:
    """Seconds of Megatron, AR-C-P2P-AG, RS-C-P2P-AG and the overlapped schedule."""
    size = 2 * 2048 * 12288
    half = (_RANKS - 1) / _RANKS * size / _LINK
    separate, network = 8 * size / _MEMORY, size / _NETWORK
    megatron = 2 * half + separate + _RANKS * network
    gathered = 2 * half + separate + network + half
    scattered = half + network + separate / _RANKS + half
    longest = max(half, network)
    overlapped = longest + (half + network + half - longest) / _CHUNKS
    return megatron, gathered, scattered, overlapped


def adam(log2_elements: int) -> tuple[float, ...]:
    """Seconds of AR and optimizer; speed-ups over AR-C of RS-C-AG, fused, and without latency."""
    elements = 2**log2_elements
    share = (_ADAM_RANKS - 1) / _ADAM_RANKS
    all_reduce = 2 * share * 4 * elements / _ADAM_LINK
    optimizer = 28 * elements / _MEMORY
    before = all_reduce + optimizer + _LAUNCH_S
    scattered = all_reduce + optimizer / _ADAM_RANKS + 1.5 * _LAUNCH_S
    # The optimizer is hidden behind the links.
    fused = all_reduce + _LAUNCH_S
    ideal = (all_reduce + optimizer) / all_reduce
    return all_reduce, optimizer, before / scattered, before / fused, ideal


def main() -> None:
    """Print all ladders."""
    wrong = 0
    for batch, layer, *expected in _MODEL_PARALLEL:
        found = [1000 * seconds for seconds in model_parallel(batch, layer)]
        wrong += _row(f"B = {batch}, {layer}", found, expected, 4)
    wrong += _row("pipeline", [1000 * seconds for seconds in pipeline()], _PIPELINE, 4)
    for size, *expected in _ADAM:
        times = adam(size)
        found = [1000 * times[0], 1000 * times[1]]
        wrong += _row(f"Adam, 2^{size}, ms", found, expected[:2], 4)
        wrong += _row(f"Adam, 2^{size}, speed-ups", times[2:], expected[2:], 3)
    print("all as specified" if not wrong else f"{wrong} rows differ")


def _row(label: str, found: Sequence[float], expected: Sequence[float], digits: int) -> int:
    """Print a row; 1 where it differs from what is expected to these digits."""
    values = [round(value, digits) for value in found]
    is_equal = values == list(expected)
    text = "  ".join(f"{value:.{digits}f}" for value in values)
    print(f"{label:24}{text}{'' if is_equal else f'  expected {expected}'}")
    return int(not is_equal)


if __name__ == "__main__":
    main()
