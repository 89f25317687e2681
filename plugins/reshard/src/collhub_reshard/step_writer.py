"""Steps of a resharding: packing, messages, turns on network cards, unpacking and sums.

A SEND waits for its box to be packed or received. For a card to carry the tasks in the order of the
schedule, it also waits for the message `_WINDOW` messages before it on the same card. If another
device sent that message, a token of one unit signals that it has been sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from collhub_shardings import UnitTasks

from collhub_reshard.layout import BoxLayout, Region
from collhub_reshard.strategies import Transfer, find_local_receivers
from hub_core.columns import Int64Array
from hub_core.model import Buffer, StepKind, StepTable, StepTableBuilder

# Messages of a card in flight: one on either link, one that waits, one spare.
_WINDOW = 4
_NO_STEPS: Mapping[int, Sequence[int]] = {}


@dataclass(frozen=True, slots=True)
class BoxPlace:
    """The location of a contiguous box: a buffer, an offset, and the steps that wrote it."""

    buffer: Buffer
    offset: int
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BoxOrigin:
    """Units `low` to `high` of a box, which `receiver` gets from the INPUT of `device`."""

    row: int
    receiver: int
    low: int
    high: int
    device: int


@dataclass(slots=True)
class StepWriter:
    """Collects the steps of all devices.

    `takes_turns`: messages on one card wait for one another; otherwise only the links order them.
    `copies`, `copied_units`: COPY and REDUCE steps and the units that they move. `tokens`: messages
    that only signal that a device may send. `origins`: the source of every part of every received
    box.
    """

    units: UnitTasks
    layout: BoxLayout
    takes_turns: bool = True
    copies: int = 0
    copied_units: int = 0
    tokens: int = 0
    origins: list[BoxOrigin] = field(default_factory=list)
    _builder: StepTableBuilder = field(init=False)
    _scratch: Int64Array = field(init=False)
    _packed: dict[tuple[int, int], BoxPlace] = field(default_factory=dict)
    # The location of a received box, and the steps that have written it so far.
    _landing: dict[tuple[int, int], BoxPlace] = field(default_factory=dict)
    _arrivals: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    # Per card out, the messages in their order: (device, SEND).
    _on_card: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _awaited: Mapping[int, Sequence[int]] = field(default_factory=dict)
    _sent: dict[int, list[int]] = field(default_factory=dict)
    _told: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._builder = StepTableBuilder(len(self.units.host_of))
        self._scratch = np.zeros(len(self.units.host_of), np.int64)

    def finish(self) -> tuple[StepTable, Int64Array]:
        """Add the last steps of every box, and return (all steps, int64[devices] SCRATCH units).

        Call it once, after all pieces are sent. For every unit task with bytes, in order, it adds
        the following (`_finish_row`), where a receiver is a device that needs the box in OUTPUT:

        - the messages to receivers on the host of a device that has the box in INPUT, if they have
          received no part of it
        - the copies or sums that bring the box to OUTPUT at each receiver, unless it is there

        For receivers that have the box in INPUT and those that get such a message, the device from
        which the box comes is added to `origins`.
        """
        for row in range(len(self.units)):
            if self.units.bytes[row]:
                self._finish_row(row)
        return self._builder.build(), self._scratch

    def send(
        self,
        row: int,
        transfers: Sequence[Transfer],
        bounds: tuple[Fraction, Fraction],
        awaited: Mapping[int, Sequence[int]] = _NO_STEPS,
    ) -> Mapping[int, Sequence[int]]:
        """Add the messages of one piece of a box; return the SENDs that read the sender's INPUT.

        A piece is a part of a box, i.e. of the block of data of unit task `row`. `bounds`: (first,
        last) of the piece as fractions 0..1 of the box; `first` and `last` of a transfer are
        fractions of the piece. Both ends of a message are rounded down to units; a message without
        units is omitted.

        A transfer without parent sends the source's box in INPUT, packed first if it is not
        contiguous. A transfer with parent p forwards the data of transfer number p of `transfers`;
        p must come earlier. `awaited`: by device, steps for which its SENDs without parent wait.
        With `takes_turns`, messages between hosts also wait for their turn on the network card.

        The result has the SENDs without parent by device, in the order of `transfers`. For every
        transfer to a device that needs the box in OUTPUT, a `BoxOrigin` is appended to `origins`,
        even if its message is empty. Its `device` is the first source of the data. Raises
        `KeyError` if the source of a message without parent has no box in INPUT.
        """
        self._awaited = awaited
        self._sent = {}
        received: list[int] = []
        roots: list[int] = []
        first, last = bounds
        total = int(self.layout.box_units[row])
        for transfer in transfers:
            # Rounded down: the next part begins at the unit where this one ends.
            low = int(total * (first + (last - first) * transfer.first))
            high = int(total * (first + (last - first) * transfer.last))
            is_forwarded = transfer.parent >= 0
            parent = received[transfer.parent] if is_forwarded else -1
            roots.append(roots[transfer.parent] if is_forwarded else transfer.source)
            # Devices that only forward a box have no region for it in OUTPUT.
            if (row, transfer.destination) in self.layout.outputs:
                self.origins.append(BoxOrigin(row, transfer.destination, low, high, roots[-1]))
            received.append(self._send_part(row, transfer, low, high - low, parent))
        return self._sent

    def _send_part(self, row: int, transfer: Transfer, low: int, count: int, parent: int) -> int:
        """Add one message, a SEND and its RECV; return the RECV, or -1 for an empty message.

        The message carries `count` units of the box of unit task `row`, from unit `low` on. If the
        transfer has a parent, its source forwards the data that it received in step `parent` (-1 if
        that part was empty). Otherwise the source sends its own box, after the copy that packs it,
        if any, and after the steps in `_awaited`. Between hosts, the message also waits for its
        turn on the card of the source host.

        Both steps are recorded: the SEND for the card and the sender, the RECV as an arrival of the
        box.
        """
        if count <= 0:
            return -1
        source, destination = transfer.source, transfer.destination
        if transfer.parent >= 0:
            box = self._get_landing(row, source)
            data = [parent] if parent >= 0 else []
        else:
            box = self._held(row, source)
            data = list(box.steps[-1:])
        control = self._turn(source, destination)
        if transfer.parent < 0:
            control += self._awaited.get(source, ())
        send = self._builder.add(
            source,
            StepKind.SEND,
            peer=destination,
            src_buffer=box.buffer,
            src_offset=box.offset + low,
            count=count,
            data=data,
            control=control,
        )
        # Messages within a host use no card.
        host = int(self.units.host_of[source])
        if host != int(self.units.host_of[destination]):
            self._on_card.setdefault(host, []).append((source, send))
        if transfer.parent < 0:
            self._sent.setdefault(source, []).append(send)
        landing = self._get_landing(row, destination)
        receive = self._builder.add(
            destination,
            StepKind.RECV,
            peer=source,
            dst_buffer=landing.buffer,
            dst_offset=landing.offset + low,
            count=count,
        )
        self._arrivals.setdefault((row, destination), []).append(receive)
        return receive

    def _turn(
        self,
        source: int,
        destination: int,
    ) -> list[int]:
        """Return the step that the next message of `source` on its host's card waits for, or [].

        The card has the messages that any device of the host has sent to other hosts, in order.
        The first rule that applies decides:

        1. [] if `takes_turns` is False, within a host, or if the card has sent fewer than
           `_WINDOW` (4) messages.
        2. If the source itself sent the message `_WINDOW` before the next one: the SEND of this
           message.
        3. If the latest message on the card is of this source, and the source already waits for a
           token: the RECV of the same token.
        4. Otherwise the device of the message `_WINDOW` before sends a token (a message that only
           signals) after this message. The result is its RECV at the source. The token is
           remembered for rule 3 until another device sends on the card.

        Rule 4 adds two steps and increases `tokens`; the message itself is not added here.
        """
        if not self.takes_turns:
            return []
        host = int(self.units.host_of[source])
        queue = self._on_card.get(host, [])
        if host == int(self.units.host_of[destination]) or not queue:
            return []
        if queue[-1][0] != source:
            # A token is valid for consecutive messages of one device.
            self._told.pop(host, None)
        if len(queue) >= _WINDOW:
            before, sent = queue[-_WINDOW]
            if before == source:
                return [sent]
            if host not in self._told:
                self._told[host] = self._token(before, sent, source)
        # All consecutive messages of a device wait for its token.
        return [self._told[host]] if host in self._told else []

    def send_token(self, row: int, device: int, sender: int) -> list[int]:
        """Return the step after which a box has almost arrived at `device`, as [step], or [].

        `sender` waits for this step. `row`: unit task of the box. Almost arrived means: all
        messages of the box so far, except the last `_WINDOW` - 1 (3), but at least the first
        one. If both devices are the same, the result is the RECV of that message. Otherwise
        `device` sends a token (a message of one unit that only signals) after this RECV, and
        the result is the RECV of the token at `sender`; this adds two steps. It is [] if
        `device` has received no message of the box.
        """
        arrived = self._arrivals.get((row, device), [])
        if not arrived:
            return []
        step = arrived[max(0, len(arrived) - _WINDOW)]
        # If meshes share devices, no token is needed.
        return [step] if device == sender else [self._token(device, step, sender)]

    def _token(self, device: int, sent: int, source: int) -> int:
        """Let `device` signal to `source` that step `sent` is done; return the RECV.

        The signal (token) is a message of one unit, whose value does not matter. `device` sends it
        after its step `sent` (a SEND or RECV). It is read from unit 0 of INPUT, or without INPUT
        from the first box that `device` received, after its first arrival. `source` receives it in
        a new unit of its SCRATCH. `tokens` is increased by 1. Raises `StopIteration` if `device`
        has no INPUT and has received no box.
        """
        # Neither INPUT nor received data are overwritten.
        unit = BoxPlace(Buffer.INPUT, 0)
        if not self.layout.input_units[device]:
            # A device that only forwards may have no INPUT.
            key = next(key for key in self._arrivals if key[1] == device)
            landing = self._landing[key]
            unit = BoxPlace(landing.buffer, landing.offset, (self._arrivals[key][0],))
        self._builder.add(
            device,
            StepKind.SEND,
            peer=source,
            src_buffer=unit.buffer,
            src_offset=unit.offset,
            count=1,
            data=list(unit.steps[:1]),
            control=[sent],
        )
        slot = self._room(source, 1)
        receive = self._builder.add(
            source, StepKind.RECV, peer=device, dst_buffer=Buffer.SCRATCH, dst_offset=slot, count=1
        )
        self.tokens += 1
        return receive

    def _held(self, row: int, device: int) -> BoxPlace:
        """Return where a device has a contiguous copy of a box from its INPUT.

        `row`: unit task of the box. If the box is contiguous in INPUT, it is there. Otherwise the
        first call adds steps that pack it into SCRATCH; every call returns that place with these
        steps.
        """
        key = row, device
        region = self.layout.inputs[key]
        if region.is_contiguous:
            return BoxPlace(Buffer.INPUT, int(region.starts[0]))
        if key not in self._packed:
            first = self._room(device, int(self.layout.box_units[row]))
            steps = self._copy_runs(device, region, BoxPlace(Buffer.SCRATCH, first), packs=True)
            self._packed[key] = BoxPlace(Buffer.SCRATCH, first, steps)
        return self._packed[key]

    def _get_landing(self, row: int, device: int) -> BoxPlace:
        """Return the place where a device receives a box; later calls return the same place.

        It is the box's region in OUTPUT if the device needs the box, this region is contiguous,
        and the box is no further summand of a sum. Otherwise, also for a device that only
        forwards the box, new units of SCRATCH are allocated. `row`: unit task.
        """
        key = row, device
        if key not in self._landing:
            region = self.layout.outputs.get(key)
            is_final = region is not None and not self.units.summand[row]
            if region is not None and is_final and region.is_contiguous:
                self._landing[key] = BoxPlace(Buffer.OUTPUT, int(region.starts[0]))
            else:
                first = self._room(device, int(self.layout.box_units[row]))
                self._landing[key] = BoxPlace(Buffer.SCRATCH, first)
        return self._landing[key]

    def _room(self, device: int, units: int) -> int:
        """Allocate new units of SCRATCH on a device; return the offset of the first one.

        They are never released.
        """
        first = int(self._scratch[device])
        self._scratch[device] += units
        return first

    def _copy_runs(
        self,
        device: int,
        region: Region,
        packed: BoxPlace,
        *,
        packs: bool,
        kind: StepKind = StepKind.COPY,
    ) -> tuple[int, ...]:
        """Add copies between the runs of a region and a contiguous box; return the steps.

        `packs`: run i of `region`, in INPUT, is copied to the box at `packed.offset` + i *
        `region.run_units`. Otherwise this part of the box is copied to run i of `region`, in
        OUTPUT. There is one step per run, of `region.run_units` units, in the order of
        `region.starts`; () for a region without runs.

        The first step waits for all steps of `packed`, every other one for the step before it.
        `kind` is COPY, or REDUCE to add to the destination. `copies` is increased by the number of
        steps, `copied_units` by their units.
        """
        steps: list[int] = []
        before = list(packed.steps)
        for index, start in enumerate(region.starts.tolist()):
            inside = packed.offset + index * region.run_units
            ends = (Buffer.INPUT, start, packed.buffer, inside)
            if not packs:
                ends = (packed.buffer, inside, Buffer.OUTPUT, start)
            step = self._builder.add(
                device,
                kind,
                src_buffer=ends[0],
                src_offset=ends[1],
                dst_buffer=ends[2],
                dst_offset=ends[3],
                count=region.run_units,
                data=before,
            )
            steps.append(step)
            before = [step]
        self.copies += len(steps)
        self.copied_units += len(steps) * region.run_units
        return tuple(steps)

    def _finish_row(self, row: int) -> None:
        """Add the messages of a box within hosts, and the steps that bring the box to OUTPUT.

        `row`: unit task that moves the box. Call it once per row, after all of its pieces. The
        steps are added in this order:

        1. A receiver on the host of a device that has the box in INPUT gets it from the first such
           device. Receivers that have the box, or got a part of it, are skipped.
        2. A receiver that has the box brings it from its INPUT to OUTPUT, and a `BoxOrigin` is
           added. A box in several runs is packed into SCRATCH before.
        3. A receiver that received the box in SCRATCH brings it to OUTPUT after all arrivals. A box
           that was received in OUTPUT remains there.

        To bring is to copy, or to add (REDUCE) if the row is a further summand of a sum
        (`units.summand`). A further summand also waits for the steps of the previous row on the
        device.
        """
        local = find_local_receivers(self.units, row)
        full = (Fraction(0), Fraction(1))
        for sender, receiver in local.served:
            # Streams may have brought the box.
            if (row, receiver) in self._arrivals:
                continue
            self.send(row, [Transfer(sender, receiver, *full)], full)
        for device in local.own:
            box = self._held(row, device)
            self.origins.append(BoxOrigin(row, device, 0, int(self.layout.box_units[row]), device))
            self._settle(row, device, box)
        for device in self.units.receivers_of(row).tolist():
            landing = self._landing.get((row, device))
            if landing is None or device in local.own:
                continue
            if landing.buffer is Buffer.SCRATCH:
                arrived = tuple(self._arrivals[row, device])
                self._settle(row, device, BoxPlace(landing.buffer, landing.offset, arrived))

    def _settle(self, row: int, device: int, box: BoxPlace) -> None:
        """Copy a box to its region in OUTPUT, or add it there if it is a further summand of a sum.

        `row`: unit task. A further summand waits for the steps of the summand before it (the
        previous row) on the same device. The added steps replace the recorded arrivals of this box,
        so that the next summand waits for them.
        """
        region = self.layout.outputs[row, device]
        is_sum = bool(self.units.summand[row])
        before = self._arrivals.get((row - 1, device), []) if is_sum else []
        kind = StepKind.REDUCE if is_sum else StepKind.COPY
        source = BoxPlace(box.buffer, box.offset, (*box.steps, *before))
        steps = self._copy_runs(device, region, source, packs=False, kind=kind)
        # The next summand waits for this one.
        self._arrivals[row, device] = list(steps)
