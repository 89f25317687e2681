"""Declarations of the findings of the check of MSCCL++ plans."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_RULES = (
    (
        "limit-semaphores-of-operation",
        "An operation has more semaphores than the executor's table, which holds 16.",
        "It waits for many ranks.",
        "Divide the operation.",
        "one wait for all ranks of a large plan",
    ),
    (
        "limit-channels-of-operation",
        "An operation has more channels than the executor's table, which holds 8.",
        "It communicates with many ranks.",
        "Divide the operation.",
        "one signal to all ranks of a large plan",
    ),
    (
        "alignment",
        "The alignment of buffers is no multiple of 16 bytes.",
        "buffer_alignment has another value.",
        "Use a multiple of 16.",
        '"buffer_alignment": 4',
    ),
    (
        "plan-size",
        "The plan is too large for the check.",
        "It has too many ranks, operations or bytes.",
        "Check a plan for fewer ranks.",
        "a plan for thousands of ranks",
    ),
    (
        "zero-chunks",
        "A rank has no input or output chunks, by which the executor divides.",
        "input_chunks or output_chunks is 0.",
        "State at least 1.",
        '"input_chunks": 0',
    ),
    (
        "channel-to-itself",
        "A channel of a rank leads to the rank itself.",
        "The list of connected ranks contains the rank.",
        "Copy instead.",
        '"connected_to": [0] of rank 0',
    ),
    (
        "switch-order",
        "Ranks list their common switch channels differently, so that the set-up never ends.",
        "A rank lists them in another order or not at all.",
        "List every group on all of its members, in one order.",
        "groups A, B on rank 0 and B, A on rank 1",
    ),
    (
        "chunk-counts",
        "The numbers of chunks contradict the collective.",
        "They are those of another collective or number of ranks.",
        "State the numbers that the collective has.",
        "an all-gather whose output has as many chunks as its input",
    ),
    (
        "no-contract",
        "The contents are not checked, because the collective is unknown.",
        "The plan names another collective.",
        "Name a known collective.",
        '"collective": "mine"',
    ),
    (
        "unknown-operation",
        "The executor has no such operation.",
        "The plan was written for another version.",
        "Use operations that the README lists.",
        '"name": "glre"',
    ),
    (
        "switch-group",
        "A rank uses a switch channel without being in its group.",
        "The group is incomplete.",
        "List every member.",
        "rank 2 uses the group of ranks 0 and 1",
    ),
    (
        "port-channels",
        "An operation on port channels has more destinations than channels.",
        "channel_ids is too short.",
        "List one channel for each range.",
        "2 ranges in dst_buff and 1 channel",
    ),
    (
        "size-mismatch",
        "Ranges that belong together have different sizes.",
        "A size was not adapted.",
        "Give them one size.",
        "a copy of 2 chunks to 1 chunk",
    ),
    (
        "range",
        "A range exceeds its buffer.",
        "The buffer is too small, or the index is wrong.",
        "State larger buffers or other ranges.",
        "chunks 7 to 8 of 8",
    ),
    (
        "buffer-offset",
        "In place, the executor computes a wrong address.",
        "The range names the buffer that is a part of the other one.",
        "Name the range of the other buffer.",
        "a put to the input of another rank in an in-place all-gather",
    ),
    (
        "scratch-halves",
        "Ranks that write to each other's double scratch have different sizes of it.",
        "A sender adds half of its own scratch to the remote address.",
        "State the largest size on all of them.",
        "scratch_chunks 4 on rank 0 and 8 on rank 1",
    ),
    (
        "unbalanced",
        "A semaphore is raised and awaited unequally often in a launch.",
        "A signal or wait is missing, or both are in different loops.",
        "Balance them in every launch.",
        "2 signals and 1 wait",
    ),
    (
        "barrier-blocks",
        "A barrier has a wrong number of thread blocks.",
        "Thread blocks state different numbers, or another number of blocks uses it, or not equally"
        " often.",
        "State one number in all uses, and let so many thread blocks use it equally often.",
        "2 of 3 thread blocks use the barrier",
    ),
    (
        "limit-operations",
        "A thread block has more operations than the executor's table, which holds 64.",
        "Loops were unrolled.",
        "Divide the operations among thread blocks.",
        "a loop of many iterations in a program of the DSL",
    ),
    (
        "limit-ranges",
        "An operation has more sources or destinations than the executor's tables of 10 ranges.",
        "It reads from or writes to many buffers.",
        "Divide the operation.",
        "one operation with the chunks of all ranks as sources",
    ),
    (
        "limit-channels",
        "A thread block has more channels of one type than the executor's table, which holds 16.",
        "It communicates with many ranks.",
        "Divide the work among thread blocks.",
        "one thread block that puts to all ranks of a large plan",
    ),
    (
        "limit-remote-buffers",
        "A thread block uses more remote buffers by one type of channels than the executor's table,"
        " which holds 16.",
        "It accesses many ranks.",
        "Divide the work among thread blocks.",
        "one thread block that reads from all ranks of a large plan",
    ),
    (
        "limit-barriers",
        "The number of a barrier is above 15, the largest that the executor has.",
        "Barriers of a rank are not numbered from 0.",
        "Number the barriers of a rank from 0.",
        '"barrier_id": 16',
    ),
    (
        "pipeline-range",
        "A range in a pipeline is not one slice, or is divided among thread blocks by tbg_info.",
        "The executor computes sizes in a pipeline from its slices, and other sizes wrap around.",
        "Give ranges in a pipeline its num_chunks, without tbg_info.",
        "a copy of 2 chunks in a pipeline with num_chunks 1",
    ),
    (
        "packet-buffer",
        "Packets are in another buffer than scratch.",
        "The executor writes packets to scratch only.",
        "Name a scratch buffer.",
        "a ppkt to the output",
    ),
    (
        "packet-room",
        "Packets do not fit into scratch.",
        "They take twice the size of the data.",
        'State protocol "LL".',
        "packets with protocol Simple",
    ),
    (
        "overlap",
        "Source and destination of an operation overlap partially.",
        "The ranges are shifted.",
        "Use ranges that are equal or separate.",
        "a copy of chunks 0 to 3 to chunks 1 to 4",
    ),
    (
        "scratch-forms",
        "A part of scratch holds packets and plain data.",
        "Flags of packets would be overwritten.",
        "Give packets scratch of their own.",
        "a put and a ppkt to one chunk of scratch",
    ),
    (
        "missing-nop",
        "An operation reads data of another thread without synchronization.",
        "The executor synchronizes the threads of a block only at some operations.",
        "Add a nop between the two operations.",
        "copy, then a put of the same chunk",
    ),
    (
        "put-sources",
        "The executor takes the buffer of the first source for all sources of a put.",
        "Sources are in different buffers.",
        "Use one operation per buffer.",
        "a put from input and scratch",
    ),
    (
        "get-indices",
        "The executor exchanges the indices of both sides of a get.",
        "Indices differ.",
        "Use equal indices.",
        "a get of chunk 1 to chunk 0",
    ),
    (
        "memory-signal",
        "The operation does not signal on memory channels.",
        "It signals on port channels only.",
        "Write put, nop, signal.",
        "an operation that puts and signals, on memory channels",
    ),
    (
        "flush-count",
        "A flush does not wait for all its channels.",
        "The executor counts the channels by dst_buff.",
        "List one entry in dst_buff for each channel.",
        "a flush of 2 channels without dst_buff",
    ),
    (
        "relaxed-signal",
        "A relaxed signal does not order the data before it.",
        "Only signal and wait order memory.",
        "Use signal and wait.",
        "a put and a relaxed signal",
    ),
    (
        "deadlock",
        "Thread blocks wait for each other for ever.",
        "A signal comes too late.",
        "See what the partner of the named operation waits for.",
        "wait before signal on both ranks",
    ),
    (
        "race",
        "Two accesses of one place are not ordered in some launch.",
        "A signal, wait or barrier is missing.",
        "Order them by a signal, wait or barrier.",
        "two ranks that put to one chunk",
    ),
    (
        "unflushed-put",
        "The source of a put is overwritten before the transfer has finished.",
        "A put on a port channel continues after its operation.",
        "Flush before the write.",
        "put, then a copy over its source",
    ),
    (
        "wrong-output",
        "An output has wrong contents after a launch.",
        "A chunk is missing, or added twice.",
        "Follow the named chunk from its source.",
        "an all-gather without the chunk of rank 3",
    ),
)
_READING = (
    (
        "plan-schema",
        "A plan has another structure than the executor reads.",
        "A member is missing, has another type or range, or names an entry that does not exist.",
        "Correct the value at the path that the error names.",
        '"gpus": 7',
    ),
    (
        "old-plan",
        "The plan has the format of releases before July 2025.",
        "It was written by such a release.",
        "Write the plan again with the DSL of a later release.",
        '"inputChunks": 8',
    ),
    (
        "switch-operations",
        "Operations of switches are read as messages from and to every rank of the group.",
        "An algorithm of the hub has no operation of switches.",
        "None is needed.",
        '"name": "glres"',
    ),
    (
        "not-a-program",
        "A Python file is no program of MSCCL++, so that it is not executed.",
        "It does not import `mscclpp`.",
        "Give the file of the program, or name its format with `--from`.",
        "`setup.py`",
    ),
    (
        "package-defect",
        "The package mscclpp makes another plan of this program, because of a known defect.",
        "The program uses a combination of operations that the package translates wrongly.",
        "Write the program as the message says.",
        "neighbouring copies from two buffers, which the package fuses",
    ),
)
_FOLDERS = (
    (
        "not-registered",
        "The program that registers plans does not name a plan of the folder.",
        "The plan was added by hand.",
        "Tune again into this folder, or remove the plan.",
        "a second plan in the folder",
    ),
    (
        "call",
        "The executor fails for a size that is assigned to a plan.",
        "A row of the table was changed by hand.",
        "Tune again into this folder.",
        "a size that the chunks of the plan do not divide",
    ),
    (
        "calls-tried",
        "Number of calls that were tried, and of those that get a plan.",
        "The check tries calls as the runtime names them.",
        "No action is needed.",
        "8 calls tried: 6 get a plan",
    ),
    (
        "missing-file",
        "The program that registers plans is missing.",
        "The folder was copied without it.",
        "Tune again into this folder.",
        "a folder with plans only",
    ),
    (
        "collective",
        "The plan is of another collective than the table says.",
        "The file was replaced.",
        "Tune again into this folder.",
        "an all-gather registered as all-reduce",
    ),
    (
        "changed-program",
        "The program that registers plans was changed, so that its answers are not known.",
        "It was edited by hand.",
        "Tune again into this folder.",
        "another selector function",
    ),
)
_REQUESTS = tuple(
    (
        name,
        meaning,
        "Plans have no such operation, or a smaller limit.",
        "Choose another runtime, or synthesize with `--for mscclpp`.",
        example,
    )
    for name, meaning, example in (
        ("plan", "The algorithm cannot be written as a plan.", "a reduction of three operands"),
    )
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the check of plans, and of the readers of plans and programs."""
    return [
        *declare_rules("plans of MSCCL++, by `collhub verify --runtime mscclpp`", _RULES),
        *declare_rules("plans and programs of MSCCL++, when they are read", _READING),
        *declare_rules("folders of plans that `collhub tune` writes", _FOLDERS),
        *declare_rules("requests: files for runtimes and simulators", _REQUESTS),
    ]
