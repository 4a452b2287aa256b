"""Things as tests need them: everything has a sensible value, and a test names only what it is about."""

from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from activities.accepted import AcceptedActivities
from activities.delivery import DeliveryActivities
from activities.passcodes import PasscodeActivities, passcode_row
from activities.reminders import ReminderActivities
from activities.rendering import Senders
from schemas.content import Content
from schemas.kinds import Channel, Kind, LatenessPolicy, MessageClass, Mode, UnknownPolicy
from schemas.notifications import Due, NotificationInput, PasscodeInput, ReminderInput
from schemas.wire import Wire
from sendloom.domain.ids import derived_id
from sendloom.ports import AcceptedRow, Address, Category, Person, TemplateParts, Tenant
from tests.fakes import (
    START,
    FakeAccepted,
    FakeCatalog,
    FakeClock,
    FakeDeadLetters,
    FakeDecisions,
    FakeLedger,
    FakePasscodes,
    FakePeople,
    FakeSealer,
    FakeSentCache,
    ScriptedProvider,
)

TENANT = "acme"
RECIPIENT = "ada"
EMAIL = "ada@example.com"
PHONE = "+12025550143"
CODE = "480931"

SECURITY, TRANSACTIONAL, MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)
CATEGORY = {
    SECURITY: "security.otp",
    TRANSACTIONAL: "orders.shipped",
    MARKETING: "offers.weekly",
}
TTL = {
    SECURITY: timedelta(minutes=10),
    TRANSACTIONAL: timedelta(hours=12),
    MARKETING: timedelta(hours=24),
}
SENDERS = Senders(
    email="news@example.com",
    sms="+12025550100",
    public_url="https://notify.example.com",
    unsubscribe_key=b"u" * 32,
)


def a_tenant(tenant: str = TENANT, **changes: Any) -> Tenant:
    values: dict[str, Any] = {
        "tenant": tenant,
        "name": "Acme",
        "default_zone": "UTC",
        "default_locale": "en",
        "default_region": "US",
        "email_from": "hello@example.com",
        "email_from_name": "Acme",
        "sms_from": None,
        "quiet_start": time(22),
        "quiet_end": time(8),
        "settings": {},
        "disabled": False,
    }
    return Tenant(**{**values, **changes})


def a_category(message_class: MessageClass = TRANSACTIONAL, **changes: Any) -> Category:
    ladder = (
        (Channel.SMS, Channel.EMAIL) if message_class is SECURITY else (Channel.EMAIL, Channel.SMS)
    )
    values: dict[str, Any] = {
        "tenant": TENANT,
        "category": CATEGORY[message_class],
        "message_class": message_class,
        "ladder": ladder,
        "ttl_seconds": int(TTL[message_class].total_seconds()),
        "quiet_hours": False,
        "consent_required": False,
        "unknown_policy": UnknownPolicy.RESEND if message_class is SECURITY else UnknownPolicy.STOP,
        "priority": 3,
        "caps": (),
        "over_cap": "suppress",
    }
    return Category(**{**values, **changes})


def a_person(sealer: FakeSealer, **changes: Any) -> Person:
    person = Person(
        recipient_id=RECIPIENT,
        exists=True,
        locale="en",
        zone="UTC",
        addresses={
            Channel.EMAIL: an_address(sealer, Channel.EMAIL, EMAIL),
            Channel.SMS: an_address(sealer, Channel.SMS, PHONE),
        },
    )
    for name, value in changes.items():
        setattr(person, name, value)
    return person


def an_address(
    sealer: FakeSealer,
    channel: Channel,
    address: str,
    *,
    verified: bool = True,
    dead_reason: str | None = None,
) -> Address:
    return Address(
        address_hash=sealer.address_hash(TENANT, channel, address),
        sealed=sealer.seal("address", TENANT, address.encode()),
        verified=verified,
        dead_reason=dead_reason,
    )


def template_parts(template_id: str = "t", **variables: dict[str, str]) -> list[TemplateParts]:
    about = {"name": {}, "code": {"default": "none"}, **variables}
    return [
        TemplateParts(template_id, 1, channel, locale, subject, text, None, about, "en")
        for channel, locale, subject, text in (
            (Channel.EMAIL, "en", "Hello {{name}}", "Dear {{name}}, {{code}}"),
            (Channel.EMAIL, "pt", "Olá {{name}}", "Cara {{name}}, {{code}}"),
            (Channel.SMS, "en", None, "{{name}}: {{code}}"),
        )
    ]


def an_id(key: str, kind: Kind = Kind.NOTIFICATION, mode: Mode = Mode.LIVE) -> UUID:
    return derived_id(kind, TENANT, mode, key)


_KEYS = count(1)


def a_key() -> str:
    """A key nobody else has: tests share servers."""
    return f"{uuid4()}-{next(_KEYS)}"


def a_notification(
    key: str | None = None, message_class: MessageClass = TRANSACTIONAL, **changes: Any
) -> NotificationInput:
    return NotificationInput(**_message(key or a_key(), Kind.NOTIFICATION, message_class, changes))


def a_passcode(key: str | None = None, **changes: Any) -> PasscodeInput:
    return PasscodeInput(**_message(key or a_key(), Kind.PASSCODE, SECURITY, changes))


def _message(
    key: str, kind: Kind, message_class: MessageClass, changes: dict[str, Any]
) -> dict[str, Any]:
    mode = changes.get("mode", Mode.LIVE)
    accepted_at = changes.get("accepted_at", START)
    return {
        "tenant": TENANT,
        "mode": mode,
        "notification_id": an_id(key, kind, mode),
        "recipient_id": RECIPIENT,
        "category": CATEGORY[message_class],
        "message_class": message_class,
        "accepted_at": accepted_at,
        "expires_at": accepted_at + TTL[message_class],
        **changes,
    }


def a_reminder(due: Due, key: str | None = None, **changes: Any) -> ReminderInput:
    values: dict[str, Any] = {
        "tenant": TENANT,
        "mode": Mode.LIVE,
        "reminder_id": an_id(key or a_key(), Kind.REMINDER),
        "recipient_id": RECIPIENT,
        "category": CATEGORY[TRANSACTIONAL],
        "message_class": TRANSACTIONAL,
        "accepted_at": START,
        "due": due,
        "lateness": LatenessPolicy.SEND,
    }
    return ReminderInput(**{**values, **changes})


def accepted_row(given: Wire, kind: Kind, content: Content | None = None) -> AcceptedRow:
    """The row whose workflow is started with `given`."""
    id = getattr(given, "notification_id", None) or getattr(given, "reminder_id", None)
    accepted_at: datetime = getattr(given, "accepted_at", START)
    return AcceptedRow(
        tenant=TENANT,
        id=id,  # type: ignore[arg-type]
        mode=getattr(given, "mode", Mode.LIVE),
        kind=kind,
        idempotency_key="k",
        body_hmac=b"body",
        message_class=getattr(given, "message_class", TRANSACTIONAL),
        category=getattr(given, "category", ""),
        recipient_id=RECIPIENT,
        accepted_at=accepted_at,
        expires_at=getattr(given, "expires_at", accepted_at + timedelta(days=1)),
        workflow_input=given.model_dump_json().encode(),
        content=(content or a_content()).model_dump_json().encode(),
        due_at=getattr(getattr(given, "due", None), "at", None),
    )


def a_content(**changes: Any) -> Content:
    values: dict[str, Any] = {
        "template_id": "t",
        "template_version": 1,
        "variables": {"name": "Ada"},
    }
    return Content(**{**values, **changes})


@dataclass
class World:
    """Every fake there is, wired to the activities the way `workers/wiring.py` wires the real ones."""

    clock: FakeClock = field(default_factory=FakeClock)
    sealer: FakeSealer = field(default_factory=FakeSealer)
    email: ScriptedProvider = field(default_factory=lambda: ScriptedProvider(name="smtp"))
    sms: ScriptedProvider = field(default_factory=lambda: ScriptedProvider(name="twilio"))
    test_mode: ScriptedProvider = field(default_factory=lambda: ScriptedProvider(name="test"))
    configured: frozenset[Channel] = frozenset({Channel.EMAIL, Channel.SMS})
    rng: float = 0.5

    def __post_init__(self) -> None:
        self.accepted = FakeAccepted(self.clock.now)
        self.people = FakePeople()
        self.catalog = FakeCatalog()
        self.decisions = FakeDecisions()
        self.ledger = FakeLedger(now=self.clock.now)
        self.dead_letters = FakeDeadLetters()
        self.passcodes = FakePasscodes(self.clock.now)
        self.cache = FakeSentCache()
        self.catalog.tenants[TENANT] = a_tenant()
        for message_class in MessageClass:
            category = a_category(message_class)
            self.catalog.categories[TENANT, category.category] = category
        self.catalog.parts[TENANT, "t"] = template_parts()
        self.person = a_person(self.sealer)

    @property
    def person(self) -> Person:
        return self.people.of[TENANT, RECIPIENT]

    @person.setter
    def person(self, person: Person) -> None:
        self.people.of[TENANT, person.recipient_id] = person

    def set_category(self, message_class: MessageClass = TRANSACTIONAL, **changes: Any) -> None:
        category = a_category(message_class, **changes)
        self.catalog.categories[TENANT, category.category] = category

    async def accept(
        self, given: Wire, content: Content | None = None, kind: Kind | None = None
    ) -> AcceptedRow:
        """What the API does before it starts a workflow."""
        kind = kind or _kind_of(given)
        if kind is Kind.PASSCODE:
            content = content or a_content(secret=CODE)
        row = accepted_row(given, kind, content)
        if kind is Kind.PASSCODE:
            await self.passcodes.insert(passcode_row(row, self.sealer.hashes.passcode_hash))
        stored, _ = await self.accepted.insert_or_match(row)
        return stored

    # --- activities --------------------------------------------------------------------------------------------------

    def delivery(self) -> DeliveryActivities:
        return DeliveryActivities(
            accepted=self.accepted,
            people=self.people,
            catalog=self.catalog,
            decisions=self.decisions,
            ledger=self.ledger,
            sealer=self.sealer,
            senders=SENDERS,
            configured=self.configured,
            providers={Channel.EMAIL: self.email, Channel.SMS: self.sms},
            test_provider=self.test_mode,
            cache=self.cache,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            rng=lambda: self.rng,
        )

    def closing(self) -> AcceptedActivities:
        return AcceptedActivities(
            accepted=self.accepted, decisions=self.decisions, dead_letters=self.dead_letters
        )

    def checking(self) -> PasscodeActivities:
        return PasscodeActivities(
            passcodes=self.passcodes,
            hash_code=self.sealer.hashes.passcode_hash,
            now=self.clock.now,
        )

    def reminding(self) -> ReminderActivities:
        return ReminderActivities(
            accepted=self.accepted,
            people=self.people,
            catalog=self.catalog,
            now=self.clock.now,
        )


def _kind_of(given: Wire) -> Kind:
    match given:
        case PasscodeInput():
            return Kind.PASSCODE
        case ReminderInput():
            return Kind.REMINDER
        case _:
            return Kind.NOTIFICATION
