"""Templates compiled once a process: a version never changes, so what was compiled for it stays true."""

from collections import OrderedDict

from schemas.kinds import Channel
from sendloom.domain.rendering import CompiledTemplate, compile_template
from sendloom.ports import TemplateParts

_Key = tuple[str, str, int, Channel, str]


class CompiledTemplates:
    """The most recently used ones."""

    def __init__(self, kept: int = 2_000) -> None:
        self._kept = kept
        self._compiled: OrderedDict[_Key, CompiledTemplate] = OrderedDict()

    def of(self, tenant: str, part: TemplateParts) -> CompiledTemplate:
        key = (tenant, part.template_id, part.version, part.channel, part.locale)
        known = self._compiled.get(key)
        if known is not None:
            self._compiled.move_to_end(key)
            return known
        compiled = self._compiled[key] = compile_template(
            part.channel,
            subject=part.subject,
            text=part.text,
            html=part.html,
            variables=part.variables,
        )
        if len(self._compiled) > self._kept:
            self._compiled.popitem(last=False)
        return compiled
