"""The decorators of kernels and of their parts, and the choice between Python and machine code.

Plain Python runs on views of numpy arrays that it reads and writes fast, with its own numbers: a
field of a record costs 0.03 us in a dictionary and 0.3 us in numpy. Python's integers have no
width, so that a sum of two narrow fields cannot overflow, as it cannot in machine code, where all
integers have 64 bits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.model import InputError

_Function = TypeVar("_Function", bound=Callable[..., object])

# Number of events that are interpreted (15 us each) before stored machine code is loaded (0.1 s)
# and, without stored code, before the kernel is compiled (10 to 50 s, once). Both limits count all
# calls of the process.
MAX_EVENTS_BEFORE_LOADING = 4_000
MAX_EVENTS_BEFORE_COMPILING = 60_000

# Machine code would count references to every array that is read from a state, which took 90 % of
# the run time. Kernels create no arrays, so counting is switched off.
_UNCOUNTED: dict[str, Any] = {"nogil": True, "_nrt": False}
# Types of the global constants that a kernel may use.
_CONSTANTS = (bool, int, float, np.generic, tuple)
_COMPILES_AT_ONCE: ContextVar[bool] = ContextVar("compiles_at_once", default=False)
_PARTS: dict[Callable[..., object], dict[str, Any]] = {}


@contextmanager
def compile_at_once() -> Iterator[None]:
    """Compile every kernel that is called in the block before it runs (context manager).

    Otherwise kernels run in plain Python as long as few events are expected.
    """
    token = _COMPILES_AT_ONCE.set(True)
    try:
        yield
    finally:
        _COMPILES_AT_ONCE.reset(token)


def compiled(function: _Function) -> _Function:
    """Mark a function as a part of kernels that is inlined in machine code; return it (decorator).

    The function itself is unchanged and can be called in plain Python. A call that is not inlined
    would copy the hundred words of the state.
    """
    _PARTS[function] = {**_UNCOUNTED, "forceinline": True}
    return function


def outlined(function: _Function) -> _Function:
    """Mark a function as a part of kernels, and return it unchanged (decorator).

    In compiled code the compiler decides whether to inline it.
    """
    _PARTS[function] = dict(_UNCOUNTED)
    return function


class Kernel:
    """A function of states: arrays, structured arrays, or named tuples of these and of numbers.

    It returns an integer or a truth value.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self._events = 0
        # By the types of the states; None if no code is stored.
        self._native: dict[object, Callable[..., int] | None] = {}

    def __call__(self, *states: Any, events: int) -> int:
        """Run the kernel in plain Python or machine code, with equal results; return its integer.

        `states`: arguments, whose arrays are modified in place. `events`: estimated number of
        events. Their sum over all calls decides between both, because compilation takes long
        (`_find_machine_code`). Raises `InputError` (`too-large`) if a number in plain Python needs
        more than 64 bits; arrays may then be changed in part. Machine code does not detect this.
        """
        native = self._find_machine_code(states, events)
        if native is not None:
            return native(*states)
        records: list[LazyRecords] = []
        try:
            result: Any = self.function(*(interpreted(state, records) for state in states))
            # An error of a later record leaves the earlier ones written.
            for view in records:
                view.write_back()
        except OverflowError:
            message = "a time or a size of the simulation does not fit into 64 bits"
            cure = "use shorter times, smaller sizes or faster links"
            raise InputError(message, cure=cure, code="too-large") from None
        return int(result)

    def _find_machine_code(self, states: Sequence[Any], events: int) -> Callable[..., int] | None:
        """Return the machine code for states of these types; None if plain Python is to be used.

        `events` are added to those of all earlier calls. The first rule that applies to the sum:

        - Up to `MAX_EVENTS_BEFORE_LOADING` events: None.
        - `NUMBA_DISABLE_JIT` is neither empty nor "0": None.
        - Code for these types that was loaded before, or is stored on disk.
        - Above `MAX_EVENTS_BEFORE_COMPILING` events the kernel is compiled, otherwise None.

        In a `compile_at_once` block the number of events does not matter.
        """
        self._events += events
        if self._events <= MAX_EVENTS_BEFORE_LOADING and not _COMPILES_AT_ONCE.get():
            return None
        # NUMBA_DISABLE_JIT is numba's own variable.
        if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
            return None
        from collhub_kernels.machine_code import load, types_of

        types = types_of(states)
        compiles = self._events > MAX_EVENTS_BEFORE_COMPILING or _COMPILES_AT_ONCE.get()
        if self._native.get(types) is None and (compiles or types not in self._native):
            parts, digest = self.sources()
            options = {part: _PARTS[part] for part in parts}
            self._native[types] = load(self.function, options, digest, states, compiles)
        return self._native[types]

    def sources(self) -> tuple[list[Callable[..., object]], str]:
        """Return (all functions that the kernel calls even indirectly, a digest of their code).

        Only global functions that are marked as parts (`compiled`, `outlined`) count, each once,
        in the order in which they are found; the kernel itself is not in the list. The digest
        (SHA-256, hexadecimal) also covers the kernel itself, the global constants that the code
        uses, and the names and options of the parts.
        """
        functions: list[Any] = [self.function]
        content: list[object] = []
        # The list grows during the iteration.
        for function in functions:
            code = function.__code__
            content.append((code.co_code, code.co_consts, code.co_varnames))
            for name in code.co_names:
                value = function.__globals__.get(name)
                if isinstance(value, _CONSTANTS):
                    content.append((name, value))
                elif callable(value) and value in _PARTS:
                    options = sorted(_PARTS[value].items())
                    content.append((name, value.__module__, value.__qualname__, options))
                    if value not in functions:
                        functions.append(value)
        return functions[1:], hashlib.sha256(repr(content).encode()).hexdigest()


class LazyRecords(dict[Any, dict[str, Any]]):
    """A structured array as dictionaries by index, which are created when they are first read."""

    def __init__(self, array: npt.NDArray[np.void]) -> None:
        super().__init__()
        self.array = array
        self._names = array.dtype.names or ()
        self._length = len(array)

    def __missing__(self, index: Any) -> dict[str, Any]:
        record = dict(zip(self._names, self.array[index].item(), strict=True))
        self[index] = record
        return record

    def __len__(self) -> int:
        return self._length

    def write_back(self) -> None:
        """Write all records that were read back to the array, including unchanged ones.

        The view (a dictionary from index to record) remains valid. Fields are written one after the
        other, each for all records. Raises `OverflowError` for an integer that its field cannot
        contain; earlier fields are then already written. Without records the array is unchanged.
        """
        indices = list(self)
        if not indices:
            return
        # A tuple of lists selects elements of an array of several dimensions.
        selection: Any = tuple(zip(*indices, strict=True)) if self.array.ndim > 1 else indices
        for name in self._names:
            column = self.array[name]
            values: Any = [record[name] for record in self.values()]
            if column.dtype.kind in "iu":
                # numpy before version 2 would keep the lowest bits of an integer that is too large.
                limits = np.iinfo(column.dtype)
                if min(values) < limits.min or max(values) > limits.max:
                    raise OverflowError(f"a value of {name} does not fit into {column.dtype}")
            column[selection] = values


def interpreted(value: Any, records: list[LazyRecords]) -> Any:
    """Convert an argument of a kernel for its execution in plain Python.

    A structured array becomes a `LazyRecords` view, which copies the records that are read; it is
    appended to `records`, so that the caller can write changes back (`write_back`). Any other array
    becomes a memoryview, whose changes are those of the array. A named tuple is converted entry by
    entry, a numpy number becomes a Python number, and other values are returned unchanged.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.names is None:
            numbers: Any = value
            return memoryview(numbers)
        view = LazyRecords(value)
        records.append(view)
        return view
    if isinstance(value, tuple):
        return type(value)(*(interpreted(item, records) for item in value))
    return value.item() if isinstance(value, np.generic) else value
