"""Write an algorithm as the text of an MSCCL-IR file, with the plugin's own writer."""

from __future__ import annotations

from collhub_msccl import plugin
from hub_core.model import Algorithm, parse_size
from hub_core.plugin_api import FormatWriter, Option, OptionType, WriteResult, resolve

__all__ = ["xml_text"]


def xml_text(algorithm: Algorithm) -> str:
    """The text for the writer's default runtime. Raises `HubError` for what it cannot express."""
    writers = [offer for offer in plugin.collhub_consumers() if isinstance(offer, FormatWriter)]
    (writer,) = (offer for offer in writers if offer.format.name == "msccl-xml")
    result = resolve(writer.write)(
        algorithm, {option.name: _default(option) for option in writer.options}
    )
    assert isinstance(result, WriteResult)
    return b"".join(artifact.content() for artifact in result.artifacts).decode()


def _default(option: Option) -> str | int | float | bool | None:
    is_text = option.type is OptionType.SIZE and isinstance(option.default, str)
    return parse_size(str(option.default)) if is_text else option.default
