"""Tables: records whose fields are columns of equal length."""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar

import numpy as np


class ColumnTable:
    """Base of frozen dataclasses of columns; a table is as long as the first of its columns."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __len__(self) -> int:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        # What stands before the columns is no array: a number, or the network that they speak of.
        return next(len(value) for value in values if isinstance(value, np.ndarray))
