"""Limits of a runtime for one program, and the resources of an algorithm that they limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hub_core.model.diagnostics import InputError


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that runtimes limit.

    `name`: its name in `--for RUNTIME?NAME=N`; `used`: attribute of `RuntimeFit`; `noun`: for
    messages; `bound`: text on its limit, with `{}` for the limit.
    """

    name: str
    used: str
    noun: str
    bound: str = "limit {}"

    @property
    def limit(self) -> str:
        """Attribute of `RuntimeLimits`."""
        return f"max_{self.used}"


RESOURCES = {
    each.name: each
    for each in (
        Resource("blocks", "blocks", "thread blocks of a rank", "at most {} run at once"),
        Resource("block_operations", "block_operations", "operations of a block"),
        Resource("channels", "channels", "channels"),
        Resource("operations", "operations", "operations of a rank"),
        Resource("chunks", "units", "chunks of the buffer"),
    )
}
"""Resources by name, in the order in which limits are checked."""

TOO_LARGE = "runtime-limit"
"""Code of errors for an algorithm that exceeds a limit of its runtime."""


class LimitError(InputError):
    """A program exceeds a limit (`runtime-limit`). `resource`: the name of the limited resource."""

    default_code = TOO_LARGE
    resource = ""

    def about(self, resource: str) -> LimitError:
        """Set the resource that is exceeded (a name in `RESOURCES`), and return this same error."""
        self.resource = resource
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"resource": self.resource})


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Limits of a runtime for one program; None where it has no limit.

    `unit_bytes`: every chunk is a multiple of this number of bytes, at least of one element; 0 if
    the runtime serves all sizes with every number of chunks.
    `max_units`: chunks of a buffer. `max_blocks`: thread blocks of a rank, which wait for each
    other, so that its GPU must run all of them at once. `max_block_operations`: steps or operations
    of a thread block. `max_channels`: channels of a program. `max_operations`: operations of a rank
    above which the runtime spends more time on starting operations than on data.
    `preferred_blocks`, `preferred_operations`: numbers of a rank up to which an algorithm is chosen
    although another one is up to 5 % faster.
    """

    unit_bytes: int = 4
    max_units: int | None = None
    max_blocks: int | None = None
    max_block_operations: int | None = None
    max_channels: int | None = None
    max_operations: int | None = None
    preferred_blocks: int | None = None
    preferred_operations: int | None = None

    def get_limit(self, resource: str) -> int | None:
        """Return the limit of a resource (a name in `RESOURCES`), None without a limit.

        Raises `KeyError` for an unknown resource.
        """
        limit: int | None = getattr(self, RESOURCES[resource].limit)
        return limit

    def with_limits(self, limits: Mapping[str, int | None]) -> RuntimeLimits:
        """Return a copy of these limits with other ones for the named resources.

        `limits`: by resource (a name in `RESOURCES`); None removes a limit. Raises `KeyError` for
        an unknown resource.
        """
        values = {RESOURCES[name].limit: value for name, value in limits.items()}
        return replace(self, **values)  # type: ignore[arg-type]  # Only limits are replaced.


@dataclass(frozen=True, slots=True)
class RuntimeFit:
    """Resources of an algorithm as a runtime executes it.

    `blocks`, `operations`: thread blocks, and steps or operations, of the rank with the most.
    `block_operations`: those of the longest block. `channels`: channels in use. `units`: chunks
    into which the runtime divides the full buffer. `max_bytes`: largest size that the program
    serves, None for no limit.
    """

    blocks: int
    operations: int
    block_operations: int
    channels: int
    units: int
    max_bytes: int | None = None

    def get_use(self, resource: str) -> int:
        """Return how much of a resource (a name in `RESOURCES`) the program uses.

        Raises `KeyError` for an unknown resource.
        """
        number: int = getattr(self, RESOURCES[resource].used)
        return number

    def find_excess(self, limits: RuntimeLimits) -> str:
        """Return the name of the first resource whose limit is exceeded; "" if there is none.

        The order is that of `RESOURCES`: thread blocks, operations of a block, channels, operations
        of a rank, chunks.
        """
        for name in RESOURCES:
            limit = limits.get_limit(name)
            if limit is not None and self.get_use(name) > limit:
                return name
        return ""

    def describe_excess(self, limits: RuntimeLimits) -> str:
        """Describe the first exceeded limit in the order of `find_excess`; "" if there is none.

        The text is the use of the resource, its noun and its limit, for example `80 thread
        blocks of a rank, at most 64 run at once`.
        """
        name = self.find_excess(limits)
        if not name:
            return ""
        resource = RESOURCES[name]
        bound = resource.bound.format(limits.get_limit(name))
        return f"{self.get_use(name)} {resource.noun}, {bound}"

    def compute_excess(self, limits: RuntimeLimits) -> float:
        """Return the largest ratio of thread blocks or operations to their preferred limit.

        The result is at least 1. A resource without a preferred limit does not count.
        """
        pairs = (
            (self.blocks, limits.preferred_blocks),
            (self.operations, limits.preferred_operations),
        )
        return max([1.0, *(number / limit for number, limit in pairs if limit)])
