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
        """Return a table of facts about the object, followed by a picture, as HTML for notebooks.

        The picture of a topology or comparison is drawn by a plugin; it is missing if no plugin
        draws it or the drawing fails. Algorithms, workloads and results need no plugin; the picture
        of an algorithm of more than 64 ranks is missing. The module that describes objects is
        imported at the first call.
        """
        html: str = importlib.import_module(_DISPLAY).describe(self)
        return html

    def view(self, **options: Any) -> View:
        """Return the interactive page of the object, which a notebook shows in a frame.

        The options depend on the object; unused ones are ignored:

        - Algorithm, which is simulated: `topology` (a `Topology`, or a text such as `ring:8`) is
          required. `size` in bytes; by default that of the algorithm, else 1 MiB.
        - Workload, which is simulated: `topology`, if it is not to be the default of the simulator.
        - `SimulationResult`: the `algorithm` or the `workload` of its run is required; also
          `topology` and, for an algorithm, `size`.
        - All objects: `height` of the frame in pixels (640).

        Raise `HubError` if no plugin writes pages, the topology is invalid or the simulation fails,
        and TypeError for a missing or unknown option.
        """
        view: View = importlib.import_module(_DISPLAY).create_view(self, **options)
        return view
