"""From template, variables and a person to what a provider is handed. Made once for a delivery, then only read."""

import base64
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from schemas.content import Content
from schemas.kinds import Channel, MessageClass
from schemas.messages import Outbound, OutboundEmail, OutboundSms
from schemas.notifications import DeliveryKey
from sendloom.domain import ids, locales, sms
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import CompiledTemplate, RenderError, compile_template
from sendloom.ports import CatalogStore, TemplateParts, Tenant

K = TypeVar("K")
V = TypeVar("V")

_TEMPLATES_KEPT = 512
_SMS_VALIDITY_MAX = timedelta(hours=10)
SMS_INTENT = {
    MessageClass.SECURITY: "otp",
    MessageClass.TRANSACTIONAL: "notifications",
    MessageClass.MARKETING: "marketing",
}


class NoTemplate(RenderError):
    """The version has no content for this channel."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(Reason.NO_TEMPLATE, f"the template has no content for {channel}")


@dataclass(frozen=True, slots=True)
class Senders:
    """Who a message is from when its tenant says nothing, and how the outside reaches us."""

    email: str
    sms: str
    public_url: str
    unsubscribe_key: bytes


class Templates:
    """Published versions never change, so what was read and compiled once is kept."""

    def __init__(self, catalog: CatalogStore) -> None:
        self._catalog = catalog
        self._parts: OrderedDict[tuple[str, str, int], list[TemplateParts]] = OrderedDict()
        self._compiled: OrderedDict[tuple[str, str, int, Channel, str], CompiledTemplate] = (
            OrderedDict()
        )

    async def parts(self, tenant: str, template_id: str, version: int) -> list[TemplateParts]:
        key = (tenant, template_id, version)
        if key not in self._parts:
            parts = await self._catalog.template_parts(tenant, template_id, version)
            if not parts:
                return []
            _keep(self._parts, key, parts)
        return self._parts[key]

    def compiled(
        self, parts: list[TemplateParts], channel: Channel, locale: str | None, tenant: str
    ) -> CompiledTemplate:
        """The nearest language there is.

        Raises:
            NoTemplate: nothing for this channel.
        """
        here = {part.locale: part for part in parts if part.channel is channel}
        if not here:
            raise NoTemplate(channel)
        default = next(iter(here.values())).default_locale
        chosen, _ = locales.choose_locale(locale, here, default)
        part = here[chosen]
        key = (tenant, part.template_id, part.version, channel, chosen)
        if key not in self._compiled:
            compiled = compile_template(
                channel,
                subject=part.subject,
                text=part.text,
                html=part.html,
                variables=part.variables,
            )
            _keep(self._compiled, key, compiled)
        return self._compiled[key]


def outbound(
    template: CompiledTemplate,
    content: Content,
    *,
    delivery: DeliveryKey,
    message_class: MessageClass,
    category: str,
    tenant: Tenant,
    senders: Senders,
    address: str,
    date: datetime,
    expires_at: datetime,
) -> Outbound:
    """The whole message. Message-ID and Date derive from the delivery, so they are the same whenever this is done.

    Raises:
        RenderError: this recipient's values do not fit the template.
    """
    values = dict(content.variables)
    if content.secret is not None:
        values["code"] = content.secret
    rendered = template.render(values)
    reference = ids.delivery_id(delivery)
    if delivery.channel is Channel.SMS:
        body = rendered.text
        if content.secret is not None and content.origin is not None:
            body = sms.passcode_text(body, content.origin, content.secret)
        return OutboundSms(
            reference=reference,
            to=address,
            sender=tenant.sms_from or senders.sms,
            body=body,
            validity_seconds=validity_seconds(expires_at, date),
            intent=SMS_INTENT[message_class],
        )
    if delivery.channel is Channel.EMAIL:
        sender = tenant.email_from or senders.email
        return OutboundEmail(
            reference=reference,
            message_id=ids.message_id(delivery, sender.rpartition("@")[2]),
            date=date,
            from_address=sender,
            from_name=tenant.email_from_name,
            to_address=address,
            subject=rendered.subject or "",
            text=rendered.text,
            html=rendered.html,
            envelope_from=sender,
            list_unsubscribe_url=UnsubscribeLinks(
                senders, delivery.tenant, category, delivery.channel
            ).of(delivery.recipient_id)
            if message_class is MessageClass.MARKETING
            else None,
        )
    raise NoTemplate(delivery.channel)


def validity_seconds(expires_at: datetime, now: datetime) -> int:
    """How long a carrier may go on trying to deliver a text message."""
    return int(min(_SMS_VALIDITY_MAX, max(expires_at - now, timedelta(seconds=1))).total_seconds())


class UnsubscribeLinks:
    """One click leaves this category on this channel. The token names ids only and is signed; the API checks it."""

    __slots__ = ("_after", "_before", "_key", "_url")

    def __init__(self, senders: Senders, tenant: str, category: str, channel: Channel) -> None:
        self._before = f"{len(tenant)}:{tenant}"
        self._after = f"{len(category)}:{category}{len(channel)}:{channel}"
        self._key = senders.unsubscribe_key
        self._url = f"{senders.public_url.rstrip('/')}/u/"

    def of(self, recipient_id: str) -> str:
        body = f"{self._before}{len(recipient_id)}:{recipient_id}{self._after}".encode()
        # Keyed BLAKE2b is a MAC of its own, at a third of the time of HMAC: campaigns make one a recipient.
        signature = hashlib.blake2b(body, key=self._key, digest_size=16).digest()
        token = base64.urlsafe_b64encode(signature + body).decode().rstrip("=")
        return self._url + token


def _keep(cache: "OrderedDict[K, V]", key: K, value: V) -> None:
    cache[key] = value
    if len(cache) > _TEMPLATES_KEPT:
        cache.popitem(last=False)
