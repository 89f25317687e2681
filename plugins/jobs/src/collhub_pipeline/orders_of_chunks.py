"""Orders of passes with several chunks of the model per device.

Loops put stage s on device s modulo p; V shapes put stages 0 to p - 1 on the devices in order and
the next p stages in reverse. Sources: breadth-first loops (Lamy-Poirier, MLSys 2023), interleaved
1F1B (Narayanan et al., SC 2021), ZB-V (Qi et al., arXiv 2401.10241), DualPipeV (DeepSeek,
github.com/deepseek-ai/DualPipe). All have the orders of `torch.distributed.pipelining`; a test
compares them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from collhub_pipeline.timing import Pass, PipelinePass, Schedule
from hub_core import UsageError

_F, _B, _I, _W = Pass.FORWARD, Pass.BACKWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT


def place_in_loops(devices: int, chunks: int) -> tuple[int, ...]:
    """Return the device of each stage: stage s is on device s modulo the number of devices."""
    return tuple(stage % devices for stage in range(devices * chunks))


def place_in_waves(devices: int, chunks: int) -> tuple[int, ...]:
    """Return the device of each stage: every second chunk has the devices in reverse order.

    The tuple has devices * chunks entries; 3 devices and 2 chunks give (0, 1, 2, 2, 1, 0).
    """
    up = tuple(range(devices))
    return tuple(device for chunk in range(chunks) for device in (up[::-1] if chunk % 2 else up))


def looped_bfs(devices: int, micros: int, chunks: int) -> Schedule:
    """Build a schedule of all forward passes chunk by chunk, then all backward ones in reverse.

    Stage s is on device s modulo devices. A chunk runs all microbatches in order before the next
    chunk; backward passes are full ones, in exactly the reverse order.
    """
    orders = []
    for device in range(devices):
        forward = [
            PipelinePass(_F, 0, chunk * devices + device, micro)
            for chunk in range(chunks)
            for micro in range(micros)
        ]
        orders.append((*forward, *(pass_._replace(kind=_B) for pass_ in reversed(forward))))
    return Schedule("looped-bfs", (place_in_loops(devices, chunks),), tuple(orders))


def interleaved(devices: int, micros: int, chunks: int) -> Schedule:
    """Interleave forward and backward passes of stages i, i + p, ... on device i of p devices.

    Raises `UsageError` unless the rounds, which are micros // p and at least 1, divide the number
    of micro-batches.
    """
    return _build_interleaved("interleaved", devices, micros, chunks, is_split=False)


def interleaved_zero_bubble(devices: int, micros: int, chunks: int) -> Schedule:
    """Interleave chunks with delayed weight gradients: on device i, i of them are pending.

    Raises `UsageError` unless the rounds, which are micros // p and at least 1, divide the number
    of micro-batches.
    """
    return _build_interleaved("interleaved-zb", devices, micros, chunks, is_split=True)


def _build_interleaved(
    name: str, devices: int, micros: int, chunks: int, *, is_split: bool
) -> Schedule:
    """Build an interleaved schedule `name` with `chunks` stages per device (s on device s %
    `devices`).

    There are max(1, micros // devices) rounds of m microbatches each. Raises `UsageError`
    (`micro-batches`) if the rounds do not divide `micros`. Forward passes of a device are sorted by
    round, chunk (ascending), microbatch; backward passes likewise, but by descending chunk. The
    order of device d is:

    1. (chunks - 1) * m + w * (devices - 1 - d) forward passes, or all if there are fewer. w is 1
       with `is_split`, otherwise 2.
    2. One forward and one backward pass in turn, until no forward pass is left; then the other
       backward passes.
    3. With `is_split`, backward passes are input gradients. After input gradient number k >= d
       (from 0) follows the weight gradient of number k - d. The last d weight gradients (or all)
       come at the end.
    """
    rounds = max(1, micros // devices)
    if micros % rounds:
        message = f"{micros} micro-batches are no multiple of {rounds} rounds of {devices} stages"
        cure = "interleaving needs one: make -O micro_batches a multiple of -O stages"
        raise UsageError(message, cure=cure, code="micro-batches")
    each = micros // rounds
    orders = []
    for device in range(devices):
        ahead = (chunks - 1) * each + (1 if is_split else 2) * (devices - 1 - device)
        warmup = min(micros * chunks, ahead)
        forward = list(_generate_units(_F, device, devices, chunks, micros, each))
        kind = _I if is_split else _B
        backward = list(_generate_units(kind, device, devices, chunks, micros, each))
        pending = device if is_split else len(backward)
        order = forward[:warmup]
        for at, pass_ in enumerate(backward):
            order += forward[warmup + at : warmup + at + 1]
            order.append(pass_)
            if at >= pending:
                order.append(backward[at - pending]._replace(kind=_W))
        if is_split:
            order += [
                pass_._replace(kind=_W) for pass_ in backward[max(0, len(backward) - pending) :]
            ]
        orders.append(tuple(order))
    return Schedule(name, (place_in_loops(devices, chunks),), tuple(orders))


def _generate_units(
    kind: Pass, device: int, devices: int, chunks: int, micros: int, each: int
) -> Iterator[PipelinePass]:
    """Yield the passes of a device: `each` micro-batches pass all chunks, then the next ones.

    Chunks ascend in forward passes and descend in backward passes.
    """
    for first in range(0, micros, each):
        for at in range(chunks):
            chunk = chunks - 1 - at if kind.is_backward else at
            for micro in range(first, first + each):
                yield PipelinePass(kind, 0, chunk * devices + device, micro)


class _Counter:
    """Order of passes of one device with two chunks; each kind of pass counts micro-batches."""

    def __init__(self, device: int, devices: int) -> None:
        self.order: list[PipelinePass] = []
        self.pending: deque[PipelinePass] = deque()
        self.overlapped: set[PipelinePass] = set()
        self._stages = device, 2 * devices - 1 - device
        self._next: dict[tuple[Pass, int], int] = {}

    def count(self, kind: Pass, chunk: int) -> int:
        """Return how many passes of a kind a chunk has; a full backward pass counts as both."""
        return self._next.get((kind, chunk), 0)

    def add(self, kind: Pass, chunk: int) -> PipelinePass:
        """Append the next pass of a kind in a chunk of this device to the order; return it.

        The next pass is that of the next microbatch. An input gradient makes its weight gradient
        pending, so that `add_pending` can append it later. A full backward pass counts as both
        gradients.
        """
        parts = (_I, _W) if kind is _B else (kind,)
        operation = PipelinePass(kind, 0, self._stages[chunk], self.count(parts[0], chunk))
        for part in parts:
            self._next[part, chunk] = self.count(part, chunk) + 1
        self.order.append(operation)
        if kind is _I:
            self.pending.append(operation._replace(kind=_W))
        return operation

    def add_pending(self) -> None:
        """Append the oldest pending weight gradient of any chunk, if there is one."""
        if self.pending:
            self.order.append(self.pending.popleft())

    def add_overlapped(self, forward_chunk: int, backward_chunk: int) -> None:
        """Append a forward pass, then the full backward pass that runs concurrently with it.

        Both are the next ones of their chunks. The forward pass is recorded in `overlapped`, which
        marks such pairs.
        """
        self.overlapped.add(self.add(_F, forward_chunk))
        self.add(_B, backward_chunk)


def zbv(devices: int, micros: int) -> Schedule:
    """Build ZB-V: no bubble if all passes take equal times, with the memory of 1F1B.

    The order is that of at least 2 p - 1 micro-batches, without those beyond `micros`.
    """
    return Schedule(
        "zbv",
        (place_in_waves(devices, 2),),
        tuple(
            tuple(pass_ for pass_ in _order_zbv(device, devices, micros) if pass_.micro < micros)
            for device in range(devices)
        ),
    )


def _order_zbv(device: int, devices: int, micros: int) -> list[PipelinePass]:
    """Return the ordered passes of a device in ZB-V, a schedule with two chunks per device.

    With p devices, chunk 0 of device d is stage d, and chunk 1 is stage 2p - 1 - d. F, I and W are
    the forward pass, input gradient and weight gradient, followed by the chunk. Each pass is that
    of the next microbatch (from 0) of its kind and chunk. The passes are:

    1. 2(p - d) - 1 times F0
    2. d times F1 F0
    3. p - d times F1 I1 W1
    4. until both chunks have n forward passes: F0 (if chunk 0 has less than n), I0 W0 F1 I1 W1
    5. d times I0 I1
    6. p - d times I0 W0
    7. the remaining W1, then the remaining W0

    n is `micros`, but at least 2p - 1. The order thus has passes of microbatches from `micros` on
    if `micros` is smaller; the caller must remove them.
    """
    units = max(2 * devices - 1, micros)
    line = _Counter(device, devices)

    def add(*steps: tuple[Pass, int]) -> None:
        """Append passes, each a kind and a chunk."""
        for kind, chunk in steps:
            line.add(kind, chunk)

    for _ in range(2 * (devices - device) - 1):
        add((_F, 0))
    for _ in range(device):
        add((_F, 1), (_F, 0))
    for _ in range(devices - device):
        add((_F, 1), (_I, 1), (_W, 1))
    while line.count(_F, 1) < line.count(_F, 0) or line.count(_F, 0) < units:
        if line.count(_F, 0) < units:
            add((_F, 0))
        add((_I, 0), (_W, 0), (_F, 1), (_I, 1), (_W, 1))
    for _ in range(device):
        add((_I, 0), (_I, 1))
    for _ in range(devices - device):
        add((_I, 0), (_W, 0))
    for chunk in (1, 0):
        while line.count(_W, chunk) < line.count(_I, chunk):
            add((_W, chunk))
    return line.order


def dualpipe_v(devices: int, micros: int) -> Schedule:
    """Build DualPipeV, in which forward and backward passes of two chunks per device overlap.

    There are 2 x `devices` stages: device d has the stages d and 2 x `devices` - 1 - d.
    `_order_dualpipe_v` gives the order of a device. It has forward passes, full backward passes,
    and some separate input and weight gradients. `overlapped` of the schedule has the forward
    passes that run together with the backward pass that follows them. Raises `UsageError`
    (`micro-batches`) for fewer than 2 x `devices` microbatches.
    """
    if micros < 2 * devices:
        message = f"dualpipe-v needs at least {2 * devices} micro-batches, not {micros}"
        raise UsageError(
            message, cure="make -O micro_batches twice -O stages", code="micro-batches"
        )
    lines = [_order_dualpipe_v(device, devices, micros) for device in range(devices)]
    return Schedule(
        "dualpipe-v",
        (place_in_waves(devices, 2),),
        tuple(tuple(line.order) for line in lines),
        overlapped=frozenset(pass_ for line in lines for pass_ in line.overlapped),
    )


def _order_dualpipe_v(device: int, devices: int, micros: int) -> _Counter:
    """Order the passes of device d of p devices in DualPipeV; return the record of them.

    F is a forward pass, I an input gradient, B a full backward pass (I and its weight gradient).
    The digit is the chunk: 0 is stage d, 1 is stage 2p - 1 - d. Each pass has the next microbatch
    of its chunk. W is the oldest weight gradient left over by an I; without one, it is omitted.
    F+B overlap; `overlapped` has their F. With b = p - 1 - d, the phases are:
    1. 2b x (F0), then d + 1 x (F0 F1), then b x (I1 W F1)
    2. `micros` - 2p + d + 1 x (F0+B1 F1+B0); if b is 0, the first F0 B1 does not overlap
    3. b x (B1 F1+B0)
    4. d + 1 x B, then d + 1 x I; the chunks of these passes are 1, 0, 1, 0 and so on
    5. b x (W I0), then d + 1 x (W)

    `micros` must be at least 2p, which is not checked.
    """
    line = _Counter(device, devices)
    behind = devices - 1 - device
    for _ in range(2 * behind):
        line.add(_F, 0)
    for _ in range(device + 1):
        line.add(_F, 0)
        line.add(_F, 1)
    for _ in range(behind):
        line.add(_I, 1)
        line.add_pending()
        line.add(_F, 1)
    for at in range(micros - 2 * devices + device + 1):
        if at == 0 and behind == 0:
            # Without overlap, the gradient leaves the last device earlier.
            line.add(_F, 0)
            line.add(_B, 1)
        else:
            line.add_overlapped(0, 1)
        line.add_overlapped(1, 0)
    for _ in range(behind):
        line.add(_B, 1)
        line.add_overlapped(1, 0)
    # From the middle of the remaining backward passes on, weight gradients are delayed.
    for at in range(2 * (device + 1)):
        line.add(_I if at > device else _B, 1 - at % 2)
    for _ in range(behind):
        line.add_pending()
        line.add(_I, 0)
    for _ in range(device + 1):
        line.add_pending()
    return line
