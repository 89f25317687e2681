"""Interleaved 1F1B (Narayanan et al., SC 2021): several chunks of the model on each device."""

from __future__ import annotations

from collhub_pipeline.schedules.schedule import Operation, Pass, Schedule
from hub_core import UsageError


def interleaved(devices: int, micros: int, chunks: int) -> Schedule:
    """Device i holds stages i, i + p, ... of p devices.

    Raises `UsageError` unless the devices divide the micro-batches.
    """
    if micros % devices:
        message = f"{micros} micro-batches are no multiple of {devices} stages"
        cure = "interleaving needs one: change -O micro_batches"
        raise UsageError(message, cure=cure, code="micro-batches")
    # Chunks go round the devices.
    device_of = tuple(stage % devices for stage in range(devices * chunks))
    orders = tuple(_order(device, devices, micros, chunks) for device in range(devices))
    return Schedule("interleaved", (device_of,), orders)


def _order(device: int, devices: int, micros: int, chunks: int) -> tuple[Operation, ...]:
    units = micros * chunks
    ahead = min(units, 2 * (devices - device - 1) + (chunks - 1) * devices)
    # With as many micro-batches as devices there is no steady part.
    warmup = units if micros == devices else ahead
    steady = units - warmup
    order = [_forward(unit, device, devices, chunks) for unit in range(warmup)]
    for unit in range(steady):
        order.append(_forward(warmup + unit, device, devices, chunks))
        order.append(_backward(unit, device, devices, chunks))
    order += [_backward(unit, device, devices, chunks) for unit in range(steady, units)]
    return tuple(order)


def _forward(unit: int, device: int, devices: int, chunks: int) -> Operation:
    chunk = unit // devices % chunks
    return Operation(Pass.FORWARD, 0, chunk * devices + device, _micro(unit, devices, chunks))


def _backward(unit: int, device: int, devices: int, chunks: int) -> Operation:
    chunk = chunks - 1 - unit // devices % chunks
    return Operation(Pass.BACKWARD, 0, chunk * devices + device, _micro(unit, devices, chunks))


def _micro(unit: int, devices: int, chunks: int) -> int:
    """Micro-batches go through all chunks of a device in groups of as many as there are devices."""
    return unit // (devices * chunks) * devices + unit % devices
