"""Convert an algorithm to the text of an MSCCL-IR file with the plugin's writer."""

from __future__ import annotations

from collhub_msccl.options import WriteOptions
from collhub_msccl.writing.write_xml import write
from hub_core.model import Algorithm


def xml_text(algorithm: Algorithm) -> str:
    """Text for the writer's default runtime.

    Raises `HubError` for algorithms that it cannot write.
    """
    # The function of the registered writer, so that a program's XML() and `collhub convert` agree.
    result = write(algorithm, WriteOptions())
    return b"".join(artifact.content() for artifact in result.artifacts).decode()
