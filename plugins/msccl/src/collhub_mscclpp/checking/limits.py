"""Check the fixed sizes of the executor's tables, which it mostly overruns unchecked."""

from __future__ import annotations

import numpy as np

from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plans.records import CHANNEL_TYPES, Plan, Role, ThreadBlock

MOST_OPERATIONS = 64
MOST_CHANNELS = 16
MOST_REMOTE_BUFFERS = 16
MOST_CHANNELS_OF_OPERATION = 8
MOST_RANGES = 10
MOST_BARRIERS = 16
MOST_SEMAPHORES_OF_OPERATION = 16
MOST_SLICES = 65_535


def check_limits(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report numbers that exceed a table of the executor (`execution_common.hpp`) as loading
    errors.

    Operations, channels and remote buffers of a thread block; ranges, channels and semaphores of an
    operation; barriers of a rank.
    """
    count = np.bincount(plan.operations.block, minlength=len(plan.blocks))
    for number, block in enumerate(plan.blocks):
        name = f"thread block {block.position}"
        if count[number] > MOST_OPERATIONS:
            message = f"{name} has {count[number]} operations, at most {MOST_OPERATIONS} fit"
            cure = "go on in another thread block behind a semaphore"
            findings.refuse_rank("limit-operations", block.rank, message, cure)
        _check_tables(block, name, findings)
    operands = plan.operands
    # Sources and destinations have separate tables.
    for side, key in ((0, "src_buff"), (1, "dst_buff")):
        rows = operands.operation[operands.is_dst == side]
        count = np.bincount(rows, minlength=len(plan.operations))
        for row in np.flatnonzero(count > MOST_RANGES).tolist():
            message = f"{count[row]} ranges in {key}, at most {MOST_RANGES} fit"
            findings.refuse_at("limit-ranges", row, message, "divide the operation")
    count = np.bincount(plan.items.operation, minlength=len(plan.operations))
    for row in np.flatnonzero(count > MOST_CHANNELS_OF_OPERATION).tolist():
        operation = plan.operation(row)
        # Semaphores and channels are in one column but have tables of different sizes.
        is_semaphore = operation is not None and operation.role in (Role.ACQUIRE, Role.RELEASE)
        resource = "semaphores" if is_semaphore else "channels"
        maximum = MOST_SEMAPHORES_OF_OPERATION if is_semaphore else MOST_CHANNELS_OF_OPERATION
        if count[row] > maximum:
            message = f"{count[row]} {resource}, at most {maximum} fit"
            code = f"limit-{resource}-of-operation"
            findings.refuse_at(code, row, message, "divide the operation")
    for row in np.flatnonzero(plan.operations.barrier >= MOST_BARRIERS).tolist():
        barrier = int(plan.operations.barrier[row])
        message = f"barrier {barrier}, but there are barriers 0..{MOST_BARRIERS - 1}"
        findings.refuse_at("limit-barriers", row, message, "number barriers of a rank from 0")


def _check_tables(
    block: ThreadBlock,
    name: str,
    findings: PlanFindings,
) -> None:
    """Report a thread block that exceeds the tables of channels or remote buffers of a channel
    type.

    `name`: of the thread block, for messages.
    """
    cure = "divide its peers among several thread blocks"
    for kind in CHANNEL_TYPES:
        # Each type has separate tables.
        channels = len(block.channels[kind])
        buffers = len(block.remote_buffers.get(kind, ()))
        if channels > MOST_CHANNELS:
            message = f"{name} has {channels} {kind} channels, at most {MOST_CHANNELS} fit"
            findings.refuse_rank("limit-channels", block.rank, message, cure)
        if buffers > MOST_REMOTE_BUFFERS:
            message = (
                f"{name} refers to {buffers} remote buffers by {kind} channels,"
                f" at most {MOST_REMOTE_BUFFERS} fit"
            )
            findings.refuse_rank("limit-remote-buffers", block.rank, message, cure)
