"""How one lane's rendered chunk gets on the wire: mail in a batch over kept connections, anything else call by call."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from activities.rendering import SMS_INTENT, Senders, UnsubscribeLinks
from schemas.kinds import Channel, MessageClass
from schemas.messages import OutboundSms
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.domain import ids
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import CompiledTemplate
from sendloom.ports import BulkMailer, Category, Provider, Tenant, WireMail

_FORMS_KEPT = 512


@dataclass(frozen=True, slots=True)
class Heading:
    """What the messages of one page share."""

    tenant: Tenant
    category: Category
    message_class: MessageClass
    campaign_id: UUID
    shard: int
    page: int
    date: datetime
    validity_seconds: int


Parcel = WireMail | OutboundSms


class Writer(Protocol):
    """Dresses the messages of one page for the wire."""

    def write(
        self,
        recipient_id: str,
        send_no: int,
        address: str,
        template: CompiledTemplate,
        values: list[str],
    ) -> Parcel:
        """`values` are what `template.values` made of the recipient's.

        Raises:
            ValueError: this one cannot be put on the wire; with `code`, and `scope` when it is not the message's fault.
        """
        ...


class Carrier(Protocol):
    """One provider account on one lane, for campaigns."""

    name: str
    channel: Channel

    def writer(self, heading: Heading) -> Writer: ...

    async def carry(
        self,
        parcels: Sequence[Parcel],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        """One outcome per parcel, in order."""
        ...


class MailSkeleton(Protocol):
    """What all mails of one sender share."""

    def fill(
        self,
        *,
        to_address: str,
        message_id: str,
        date: datetime,
        reference: str,
        subject: str,
        text: str,
        html: str | None = None,
        list_unsubscribe_url: str | None = None,
    ) -> bytes: ...


class MailForm(Protocol):
    """What all mails of one template share."""

    def fill(
        self,
        skeleton: Any,
        values: list[str],
        *,
        to: str,
        message_id: str,
        date: datetime,
        reference: str,
        list_unsubscribe_url: str | None,
    ) -> bytes | None: ...


class Mime(Protocol):
    """`sendloom.providers.mime`, as it is."""

    @property
    def Skeleton(self) -> Callable[..., MailSkeleton]: ...

    def stuff(self, message: bytes) -> bytes: ...

    def mailbox(self, address: str) -> str: ...


class MailCarrier:
    """Email through a `BulkMailer`."""

    channel = Channel.EMAIL

    def __init__(
        self,
        mailer: BulkMailer,
        mime: Mime,
        form: Callable[[CompiledTemplate], MailForm],
        senders: Senders,
    ) -> None:
        """`form`: `sendloom.providers.mime_forms.Form`."""
        self.name = mailer.name
        self.mime = mime
        self.senders = senders
        self._mailer = mailer
        self._skeletons: dict[tuple[str, str], MailSkeleton] = {}
        self._form = form
        self._forms: dict[int, tuple[CompiledTemplate, MailForm]] = {}

    def writer(self, heading: Heading) -> "MailWriter":
        return MailWriter(self, heading)

    def skeleton(self, address: str, name: str) -> MailSkeleton:
        skeleton = self._skeletons.get((address, name))
        if skeleton is None:
            skeleton = self.mime.Skeleton(from_address=address, from_name=name)
            self._skeletons[address, name] = skeleton
        return skeleton

    def form(self, template: CompiledTemplate) -> MailForm:
        # By identity, which holds while the template is kept beside its form: compiled ones are, and hashing one is dear.
        known = self._forms.get(id(template))
        if known is None:
            if len(self._forms) >= _FORMS_KEPT:
                self._forms.clear()
            known = self._forms[id(template)] = (template, self._form(template))
        return known[1]

    async def carry(
        self,
        parcels: Sequence[Parcel],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        mails = [parcel for parcel in parcels if isinstance(parcel, WireMail)]
        return await self._mailer.send_batch(mails, message_class, may_call=may_call)


class MailWriter:
    """A page's mails."""

    def __init__(self, carrier: MailCarrier, heading: Heading) -> None:
        tenant = heading.tenant
        self._carrier = carrier
        self._mime = carrier.mime
        self._date = heading.date
        self._sender = tenant.email_from or carrier.senders.email
        self._name = tenant.email_from_name
        self._domain = self._sender.rpartition("@")[2]
        self._names = _names(heading, Channel.EMAIL)
        self._skeleton: MailSkeleton | None = None
        self._links = None
        if heading.message_class is MessageClass.MARKETING:
            self._links = UnsubscribeLinks(
                carrier.senders, tenant.tenant, heading.category.category, Channel.EMAIL
            )

    def write(
        self,
        recipient_id: str,
        send_no: int,
        address: str,
        template: CompiledTemplate,
        values: list[str],
    ) -> WireMail:
        names = self._names
        skeleton = self._skeleton
        if skeleton is None:
            # Here and not before, so that a sender that cannot be written stops this mail, and says so.
            skeleton = self._skeleton = self._carrier.skeleton(self._sender, self._name)
        to = self._mime.mailbox(address)
        reference = names.delivery_id(recipient_id, send_no)
        message_id = names.message_id(recipient_id, send_no, self._domain)
        link = None if self._links is None else self._links.of(recipient_id)
        data = self._carrier.form(template).fill(
            skeleton,
            values,
            to=to,
            message_id=message_id,
            date=self._date,
            reference=reference,
            list_unsubscribe_url=link,
        )
        if data is None:
            rendered = template.filled(values)
            data = self._mime.stuff(
                skeleton.fill(
                    to_address=address,
                    message_id=message_id,
                    date=self._date,
                    reference=reference,
                    subject=rendered.subject or "",
                    text=rendered.text,
                    html=rendered.html,
                    list_unsubscribe_url=link,
                )
            )
        return WireMail(reference, self._sender, to, data)


class SmsCarrier:
    """Text messages, one call each, all of a chunk at once; the chunk is bounded by the lane's budget."""

    channel = Channel.SMS

    def __init__(self, provider: Provider, senders: Senders) -> None:
        self.name = provider.name
        self._provider = provider
        self._senders = senders

    def writer(self, heading: Heading) -> "SmsWriter":
        return SmsWriter(heading, heading.tenant.sms_from or self._senders.sms)

    async def carry(
        self,
        parcels: Sequence[Parcel],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        async def call(parcel: Parcel) -> CallOutcome:
            if not may_call():
                return not_called(self.name)
            assert isinstance(parcel, OutboundSms)
            return await self._provider.send(parcel, message_class)

        return list(await asyncio.gather(*(call(parcel) for parcel in parcels)))


class SmsWriter:
    """A page's text messages."""

    def __init__(self, heading: Heading, sender: str) -> None:
        self._names = _names(heading, Channel.SMS)
        self._sender = sender
        self._validity_seconds = heading.validity_seconds
        self._intent = SMS_INTENT[heading.message_class]

    def write(
        self,
        recipient_id: str,
        send_no: int,
        address: str,
        template: CompiledTemplate,
        values: list[str],
    ) -> OutboundSms:
        return OutboundSms(
            reference=self._names.delivery_id(recipient_id, send_no),
            to=address,
            sender=self._sender,
            body=template.filled(values).text,
            validity_seconds=self._validity_seconds,
            intent=self._intent,
        )


class TestCarrier:
    """Test mode goes through everything but the provider call."""

    __test__ = False
    name = "test"

    def __init__(self, real: Carrier) -> None:
        self._real = real
        self.channel = real.channel

    def writer(self, heading: Heading) -> Writer:
        return self._real.writer(heading)

    async def carry(
        self,
        parcels: Sequence[Parcel],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        return [
            Accepted(provider=self.name, provider_message_id=parcel.reference)
            if may_call()
            else not_called(self.name)
            for parcel in parcels
        ]


def _names(heading: Heading, channel: Channel) -> ids.DeliveryNames:
    return ids.DeliveryNames(
        heading.tenant.tenant, heading.campaign_id, heading.shard, heading.page, channel
    )


def not_called(provider: str) -> Failed:
    return Failed(provider=provider, code=Reason.NOT_CALLED, counts=False)
