"""The generator of transformers against the closed forms of the papers, and against other traces."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from collhub_models.costs import parameters
from collhub_models.plugin import TransformerOptions
from collhub_models.transformer import computations, generate, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import UsageError
from hub_core.model import JobCollective, NodeKind, Workload

SMALL = TransformerOptions(
    layers=4, hidden=64, heads=8, sequence=32, batch=16, vocabulary=128, data=2
)
# A llama-like block: grouped keys and values, three matrices.
LLAMA = TransformerOptions(
    hidden=1024, feed_forward=4096, heads=16, kv_heads=4, gated=True, vocabulary=32000,
    sequence=512, element_bytes=1, sequence_parallel=True,
)  # fmt: skip


def collectives(job: Workload, kind: JobCollective) -> tuple[int, int]:
    """(number, bytes) of the nodes of a kind."""
    sizes = job.nodes.bytes[job.nodes.collective == kind]
    return len(sizes), int(sizes.sum())


def reduced(job: Workload, rank: int, word: str = "gradients") -> int:
    """Bytes that a rank gives to all-reduces whose names begin with a word."""
    nodes = job.nodes
    rows = (nodes.rank == rank) & (nodes.collective == JobCollective.ALL_REDUCE)
    return sum(
        int(nodes.bytes[row])
        for row in np.flatnonzero(rows)
        if job.names[nodes.name[row]].startswith(word)
    )


@pytest.mark.parametrize("cut", [{}, {"tensor": 4}, {"pipeline": 4}, {"data": 4, "fsdp": True}])
def test_operations_are_those_of_the_closed_form(cut: dict[str, int]) -> None:
    # Narayanan et al. (SC 2021), appendix, without recomputation: three passes instead of four.
    options = replace(SMALL, **cut)
    b, s, h, layers, v = options.batch, options.sequence, options.hidden, options.layers, 128
    expected = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    operations = generate(options).nodes.operations
    assert int(operations[operations > 0].sum()) == round(expected)


def test_operations_are_six_a_parameter_and_token_beside_attention() -> None:
    options = replace(SMALL, sequence=1, hidden=512, data=1)
    operations = generate(options).nodes.operations.clip(0).sum()
    assert operations / (6 * parameters(options) * options.batch) == pytest.approx(1, rel=0.01)


def test_parameters_are_those_of_megatron() -> None:
    h, layers, v, s = 64, 4, 128, 32
    expected = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert parameters(SMALL) == round(expected)


def test_parameters_of_a_model_in_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="not cut"):
        parameters(replace(SMALL, tensor=2))


@pytest.mark.parametrize("overlap", [True, False])
def test_every_gradient_is_reduced_once(overlap: bool) -> None:
    options = replace(SMALL, overlap=overlap)
    job = generate(options)
    assert reduced(job, 0) == reduced(job, 1) == parameters(options) * options.element_bytes


def test_stages_reduce_the_gradients_of_the_model_together() -> None:
    options = replace(SMALL, pipeline=4)
    job = generate(options)
    copy = options.vocabulary * options.hidden * options.element_bytes
    assert sum(reduced(job, 2 * stage) for stage in range(4)) == (
        # The last stage has its own copy of the embeddings; both are summed once more.
        parameters(options) * options.element_bytes + copy + 2 * copy
    )


def test_experts_reduce_among_those_that_hold_them() -> None:
    options = replace(SMALL, data=4, expert=2, experts=4, top_k=2)
    job = generate(options)
    assert reduced(job, 0) == parameters(options) * 2 - options.layers * 2 * 2 * (
        8 * 64**2 + 5 * 64
    )
    assert collectives(job, JobCollective.ALL_TO_ALL) == (
        4 * 4 * 4 * 4,
        4 * 4 * 4 * 4 * 32 * 64 * 2 * 2,
    )


def test_tensor_parts_add_two_all_reduces_a_layer_and_direction() -> None:
    job = generate(replace(SMALL, data=1, tensor=4))
    assert collectives(job, JobCollective.ALL_REDUCE) == (
        4 * 4 * 16 * 4,
        4 * 4 * 16 * 4 * 32 * 64 * 2,
    )


def test_sharded_weights_are_gathered_twice_and_scattered_once() -> None:
    options = replace(SMALL, fsdp=True)
    job = generate(options)
    layer = (12 * 64**2 + 13 * 64) * 2
    passes = options.layers * options.batch // 2
    assert collectives(job, JobCollective.ALL_GATHER) == (2 * 2 * passes, 2 * passes * layer)
    assert collectives(job, JobCollective.REDUCE_SCATTER) == (2 * passes, 2 * passes * layer)


# Counts and bytes of index.csv of generated traces: STG (astra-sim/symbolic_tensor_graph 3a7f49c).
@pytest.mark.parametrize(
    ("cut", "gathers", "scatters", "sends"),
    [
        ({"layers": 4, "data": 2, "pipeline": 4, "microbatch": 1}, (0, 0), (0, 0), (96, 50331648)),
        ({"layers": 4, "data": 4, "tensor": 4, "pipeline": 4}, (1536, 201326592), (1024, 536870912), (384, 50331648)),
        ({"layers": 2, "data": 2, "tensor": 4, "batch": 8, "microbatch": 4}, (96, 50331648), (64, 134217728), (0, 0)),
        ({"layers": 1, "data": 8, "tensor": 8, "batch": 32, "microbatch": 4}, (384, 100663296), (256, 536870912), (0, 0)),
        ({"layers": 4, "data": 2, "tensor": 2, "pipeline": 2, "batch": 8, "microbatch": 2}, (192, 100663296), (128, 134217728), (16, 8388608)),
    ],
)  # fmt: skip
def test_traffic_within_layers_equals_that_of_symbolic_traces(
    cut: dict[str, int],
    gathers: tuple[int, int],
    scatters: tuple[int, int],
    sends: tuple[int, int],
) -> None:
    job = generate(replace(LLAMA, **cut))
    assert collectives(job, JobCollective.ALL_GATHER) == gathers
    assert collectives(job, JobCollective.REDUCE_SCATTER) == scatters
    sizes = job.nodes.bytes[job.nodes.is_kind(NodeKind.SEND)]
    assert (len(sizes), int(sizes.sum())) == sends


def test_groups_of_every_role_share_no_rank() -> None:
    job = generate(replace(SMALL, data=4, tensor=2, pipeline=2))
    tensor = [(rank, rank + 1) for rank in range(0, 16, 2)]
    data = [tuple(range(8 * stage + part, 8 * stage + 8, 2)) for stage in (0, 1) for part in (0, 1)]
    ends = [(rank, rank + 8) for rank in range(8)]
    assert [group.ranks for group in job.groups] == [*tensor, *data, *ends]


def test_ranks_of_a_stage_do_the_same() -> None:
    job = generate(replace(SMALL, data=2, tensor=2, pipeline=2))
    nodes = job.nodes
    for stage in (range(4), range(4, 8)):
        for name in ("kind", "operations", "bytes", "collective", "tag", "name"):
            columns = [getattr(nodes, name)[nodes.rank == rank] for rank in stage]
            assert all(np.array_equal(columns[0], column) for column in columns)


@given(st.integers(1, 8), st.integers(1, 12))
def test_a_stage_holds_no_more_microbatches_than_stages_follow(
    stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        order = schedule(stage, stages, microbatches)
        forward = [microbatch for is_forward, microbatch in order if is_forward]
        backward = [microbatch for is_forward, microbatch in order if not is_forward]
        assert forward == backward == list(range(microbatches))
        held = np.cumsum([1 if is_forward else -1 for is_forward, _ in order])
        assert held.max() == min(stages - stage, microbatches)
        assert held.min() == 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1, 2]),
)  # fmt: skip
def test_jobs_are_correct(
    data: int, tensor: int, pipeline: int, cut: bool, fsdp: bool, overlap: bool, experts: int
) -> None:
    check = pytest.importorskip("collhub_jobs.check")
    from hub_core.plugin_api import CheckRequest, NoOptions

    expert = experts if data % experts == 0 else 1
    options = replace(
        SMALL, data=data, tensor=tensor, pipeline=pipeline, fsdp=fsdp, overlap=overlap,
        sequence_parallel=cut or expert > 1, experts=2 * experts, expert=expert,
    )  # fmt: skip
    assert check.run(CheckRequest("job", workload=generate(options)), NoOptions()).diagnostics == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": 3, "pipeline": 2}, "layers 3 is no multiple of pipeline 2"),
        ({"batch": 3}, "batch 3 is no multiple of data x microbatch 2"),
        ({"heads": 3}, "hidden 64 is no multiple of heads 3"),
        ({"tensor": 3}, "heads 8 is no multiple of tensor 3"),
        ({"top_k": 2}, "top_k 2 is more than there are experts"),
        ({"expert": 2, "experts": 2, "tensor": 2}, "need sequence parallelism"),
        ({"layers": 10**8}, "6e+09 computations are more than the 1e+07"),
        ({"sequence": 31, "tensor": 2, "sequence_parallel": True}, "sequence 31 is no multiple of"),
    ],
)
def test_options_that_fit_no_job_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        generate(replace(SMALL, **wrong))


def test_computations_are_counted_before_they_are_made() -> None:
    options = replace(SMALL, tensor=2, pipeline=2)
    job = generate(options)
    logits = sum("logits" in job.names[name] for name in job.nodes.name)
    assert job.nodes.is_kind(NodeKind.COMPUTE).sum() - logits == computations(options)


def test_numbers_above_64_bits_are_refused() -> None:
    with pytest.raises(UsageError, match="operations of a node: a number of 77 bits is above"):
        generate(TransformerOptions(hidden=2**31 - 16, feed_forward=2**31 - 1))
