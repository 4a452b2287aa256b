"""How one lane's rendered chunk gets on the wire: mail in a batch over kept connections, anything else call by call."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from activities.rendering import Senders, unsubscribe_url
from schemas.kinds import Channel, MessageClass
from schemas.messages import OutboundSms
from schemas.notifications import DeliveryKey
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.domain import ids
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import Rendered
from sendloom.ports import BulkMailer, Category, Provider, Tenant, WireMail


@dataclass(frozen=True, slots=True)
class Letter:
    """What is known of one message when it is dressed for the wire."""

    delivery: DeliveryKey
    address: str
    rendered: Rendered
    tenant: Tenant
    category: Category
    message_class: MessageClass
    date: datetime
    validity_seconds: int


Parcel = WireMail | OutboundSms


class Carrier(Protocol):
    """One provider account on one lane, for campaigns."""

    name: str
    channel: Channel

    def dress(self, letter: Letter) -> Parcel:
        """The bytes for the wire.

        Raises:
            ValueError: this one cannot be put on the wire; with `code`, and `scope` when it is not the message's fault.
        """
        ...

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


class Mime(Protocol):
    """`sendloom.providers.mime`, as it is."""

    @property
    def Skeleton(self) -> Callable[..., MailSkeleton]: ...

    def stuff(self, message: bytes) -> bytes: ...

    def mailbox(self, address: str) -> str: ...


class MailCarrier:
    """Email through a `BulkMailer`."""

    channel = Channel.EMAIL

    def __init__(self, mailer: BulkMailer, mime: Mime, senders: Senders) -> None:
        self.name = mailer.name
        self._mailer = mailer
        self._mime = mime
        self._senders = senders
        self._skeletons: dict[tuple[str, str], MailSkeleton] = {}

    def dress(self, letter: Letter) -> WireMail:
        tenant = letter.tenant
        sender = tenant.email_from or self._senders.email
        skeleton = self._skeletons.get((sender, tenant.email_from_name))
        if skeleton is None:
            skeleton = self._mime.Skeleton(from_address=sender, from_name=tenant.email_from_name)
            self._skeletons[sender, tenant.email_from_name] = skeleton
        delivery = letter.delivery
        reference = ids.delivery_id(delivery)
        url = None
        if letter.message_class is MessageClass.MARKETING:
            url = unsubscribe_url(self._senders, delivery, letter.category.category)
        message = skeleton.fill(
            to_address=letter.address,
            message_id=ids.message_id(delivery, sender.rpartition("@")[2]),
            date=letter.date,
            reference=reference,
            subject=letter.rendered.subject or "",
            text=letter.rendered.text,
            html=letter.rendered.html,
            list_unsubscribe_url=url,
        )
        return WireMail(
            reference, sender, self._mime.mailbox(letter.address), self._mime.stuff(message)
        )

    async def carry(
        self,
        parcels: Sequence[Parcel],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        mails = [parcel for parcel in parcels if isinstance(parcel, WireMail)]
        return await self._mailer.send_batch(mails, message_class, may_call=may_call)


class SmsCarrier:
    """Text messages, one call each, all of a chunk at once; the chunk is bounded by the lane's budget."""

    channel = Channel.SMS

    def __init__(self, provider: Provider, senders: Senders) -> None:
        self.name = provider.name
        self._provider = provider
        self._senders = senders

    def dress(self, letter: Letter) -> OutboundSms:
        return OutboundSms(
            reference=ids.delivery_id(letter.delivery),
            to=letter.address,
            sender=letter.tenant.sms_from or self._senders.sms,
            body=letter.rendered.text,
            validity_seconds=letter.validity_seconds,
            intent="marketing"
            if letter.message_class is MessageClass.MARKETING
            else "notifications",
        )

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


class TestCarrier:
    """Test mode goes through everything but the provider call."""

    __test__ = False
    name = "test"

    def __init__(self, real: Carrier) -> None:
        self._real = real
        self.channel = real.channel

    def dress(self, letter: Letter) -> Parcel:
        return self._real.dress(letter)

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


def not_called(provider: str) -> Failed:
    return Failed(provider=provider, code=Reason.NOT_CALLED, counts=False)
