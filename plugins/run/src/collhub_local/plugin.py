"""The offers of this plugin: two executors and the command `run`; rules of executions."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Command,
    Executor,
    Rule,
    RuleSet,
    declare_rules,
    declare_similar_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

NUMPY = Executor(
    "numpy",
    "all ranks in one process, on numpy arrays",
    "collhub_local.numpy_executor:execute",
)

SHARED_MEMORY = Executor(
    "shared-memory",
    "one process per rank, on shared memory of this host",
    "collhub_local.shared_memory:execute",
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executors."""
    return [NUMPY, SHARED_MEMORY]


RUN = Command(
    "run",
    "Run the algorithm in IN on real data and check the result of every rank.",
    "collhub_local.run_command:run",
)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [RUN]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of executions."""
    return [
        RuleSet("execution", "findings in runs on real data", "collhub_local.plugin:list_rules")
    ]


_RUNS = (
    (
        "mode-not-claimed",
        "The algorithm runs in a mode that it does not claim.",
        "`--in-place` or its default does not fit the claim of the file.",
        "Run it in the claimed mode.",
        "an in-place algorithm that runs out of place",
    ),
    (
        "order-changed",
        "The bits differ from those of the order of reduction of the schedule.",
        "The executor adds contributions in another order, which changes rounding.",
        "No action is needed unless results must be reproducible bit by bit.",
        "a float32 sum on GPUs",
    ),
    (
        "size-rounded",
        "Another size is run, because chunks of the given one would have a part of an element.",
        "The size is not divisible by chunks and element size.",
        "Choose a multiple.",
        "1000 bytes of float32 in 8 chunks",
    ),
    (
        "rank-died",
        "The process of a rank failed.",
        "It raised an exception, or the system stopped it.",
        "Correct the cause that the message states.",
        "a rank without memory",
    ),
    (
        "timeout",
        "A rank has not finished in time.",
        "It waits for a message, or the data are large.",
        "Allow more time with `-O timeout`, or verify the algorithm.",
        "`-O timeout=1` and 1 GiB",
    ),
)

_REQUESTS: tuple[tuple[str, str, str], ...] = (
    ("unknown-op", "There is no reduction of this name.", "`--op median`"),
    ("no-space", "The ranks have no folder in which they can meet.", "a full `/dev/shm`"),
    ("other-ranks", "Another number of processes was started.", "`mpiexec -n 4` for 8 ranks"),
    ("no-messages", "The job has no messages, so that it cannot be run.", "a job of computations"),
    ("collective", "The collective cannot be run here.", "a job with collectives without steps"),
    ("too-many-pairs", "More pairs of ranks exchange messages than are served.", "4096 ranks"),
    ("no-mpi4py", "The package mpi4py is not installed.", "`--executor mpi`"),
    ("no-mpiexec", "mpiexec is not on the path, or fails.", "`--executor mpi`"),
    ("other-mpi", "mpiexec and mpi4py belong to different MPI libraries.", "two installations"),
    ("no-torch", "PyTorch is not installed.", "`--executor torch`"),
    ("old-torch", "PyTorch lacks a function of process groups.", "an old release"),
    (
        "no-torchrun",
        "The script is one rank of several, and was started without the other ones.",
        "without torchrun",
    ),
    ("no-group", "The process group does not exist.", "a call before `init_process_group`"),
    ("group-size", "The group has another number of ranks.", "8 ranks for an algorithm of 4"),
    ("op", "The reduction is not one of the library.", '`op="median"`'),
    ("tensor", "The tensor does not fit the algorithm.", "a tensor that is not contiguous"),
    ("device", "The device is not one of the library.", '`device="tpu"`'),
    ("name-taken", "Another algorithm is loaded under this name.", "two folders of one name"),
    ("nccl", "A function of NCCL failed.", "a communicator that was aborted"),
    ("not-built", "The library of the folder is not built.", "a folder without `make`"),
    ("not-loadable", "The library of the folder cannot be loaded.", "a library of another host"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("runs on real data, by `collhub run`", _RUNS),
        *declare_similar_rules(
            "requests: executors and loaded algorithms",
            _REQUESTS,
            cause="Ranks, tensors, or the libraries of this environment do not fit the algorithm.",
            cure="Change the one that the message names, or use the executor numpy.",
        ),
    ]
