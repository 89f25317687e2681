"""Display of models in notebooks, for classes that inherit it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class View(Protocol):
        """A page that a notebook shows in a frame."""

        def _repr_html_(self) -> str: ...


# The display uses plugins, which packages below the registry may not import: it is loaded by name
# when a notebook asks for it.
_DISPLAY = "hub_core.pipeline.notebooks"


class NotebookDisplay:
    """Base of classes that notebooks such as Jupyter display: facts with a picture, and a page."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return facts about the object and a picture of it as HTML; notebooks call this.

        The module that describes objects is imported at the first call. Without a plugin that draws
        the object, there are only facts.
        """
        html: str = importlib.import_module(_DISPLAY).describe(self)
        return html

    def view(self, **options: Any) -> View:
        """Return the interactive page of the object, which a notebook shows in a frame.

        The options depend on the object. Raises `HubError` if no plugin writes pages or the
        simulation fails, and `TypeError` for a missing option. The options are:

        - for an algorithm or a workload, which is simulated: `topology` (a text such as `ring:8`,
          or a `Topology`), and `size` in bytes
        - for a `SimulationResult`: the `algorithm`, `topology` and `size` of its run, or its
          `workload`
        - for all objects: `height` in pixels
        """
        view: View = importlib.import_module(_DISPLAY).create_view(self, **options)
        return view
