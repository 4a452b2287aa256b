"""Twilio's error codes as data: at request time, and later in a status callback. From twilio.com/docs/api/errors.

Twilio warns that codes may change: an unknown one never touches the number.
"""

from datetime import UTC, datetime, time, timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo

from schemas.kinds import FaultScope
from schemas.outcomes import Failed, Rejected
from sendloom.providers.verdicts import Verdict, fails, redact, rejects

PROVIDER = "twilio"

QUEUE_DELAY = timedelta(minutes=10)
"""A sender's queue is over 10 hours long."""
FRAUD_DELAY = timedelta(minutes=30)
"""Twilio: do not repeat for 15 to 30 minutes."""
RATE_DELAY = timedelta(minutes=5)
UNREACHABLE_DELAY = timedelta(minutes=15)
LATE_RETRY_DELAY = timedelta(hours=1)

_OURS = fails(FaultScope.SENDER)
_SENDER_REFUSED = rejects(FaultScope.SENDER)
_NUMBER_DEAD = rejects(FaultScope.RECIPIENT, suppress=True)
_NUMBER_REFUSED = rejects(FaultScope.RECIPIENT)
_BY_THIS_PROVIDER = rejects(FaultScope.PROVIDER)
_MESSAGE_REFUSED = rejects(FaultScope.MESSAGE)

UNKNOWN_CODE = _MESSAGE_REFUSED

REQUEST = MappingProxyType[int, Verdict](
    {
        20003: _OURS,  # authentication
        20008: _OURS,  # test credentials
        20404: _OURS,  # no such account
        20429: fails(FaultScope.PROVIDER, throttled=True),  # not processed
        21211: _NUMBER_DEAD,  # invalid
        21217: _NUMBER_DEAD,
        21614: _NUMBER_DEAD,  # not a mobile
        21635: _NUMBER_DEAD,  # landline
        21212: _SENDER_REFUSED,  # From invalid
        21606: _SENDER_REFUSED,  # From cannot send this
        21657: _SENDER_REFUSED,  # sender id
        21659: _SENDER_REFUSED,  # From is not yours
        21660: _SENDER_REFUSED,  # From is another account's
        21612: _BY_THIS_PROVIDER,  # no route from this From to this To
        21214: _BY_THIS_PROVIDER,  # To not reachable
        # Our account's setting for one country: of no use to repeat, wrong to fail over around, no reason to stop the others.
        21408: _MESSAGE_REFUSED,
        21602: _MESSAGE_REFUSED,  # body missing
        21603: _MESSAGE_REFUSED,  # From missing
        21604: _MESSAGE_REFUSED,  # To missing
        21609: _MESSAGE_REFUSED,  # bad StatusCallback
        21617: _MESSAGE_REFUSED,  # body too long
        21619: _MESSAGE_REFUSED,  # nothing to send
        21620: _MESSAGE_REFUSED,  # bad media
        21656: _MESSAGE_REFUSED,  # bad variables
        21608: _OURS,  # trial account
        21610: rejects(FaultScope.RECIPIENT, suppress=True, opted_out=True),
        21611: fails(FaultScope.PROVIDER, retry_after=QUEUE_DELAY, throttled=True),
        21703: _OURS,  # the messaging service has no sender
        21704: _OURS,  # no such messaging service
        21705: _OURS,
    }
)

# After acceptance nothing fails over, so a temporary fault here is not the provider's to route around.
DELIVERY = MappingProxyType[int, Verdict](
    {
        30001: fails(FaultScope.PROVIDER, retry_after=QUEUE_DELAY, throttled=True),  # overflow
        30002: _OURS,  # account suspended
        30003: fails(FaultScope.RECIPIENT, retry_after=UNREACHABLE_DELAY),
        # Blocked by carrier or person: a soft opt-out from this sender.
        30004: rejects(FaultScope.RECIPIENT, opted_out=True),
        30005: _NUMBER_DEAD,  # unknown handset
        30006: _NUMBER_REFUSED,  # landline or unreachable carrier
        30007: _MESSAGE_REFUSED,  # carrier filtered the content; the number stays good
        30008: fails(FaultScope.RECIPIENT, retry_after=LATE_RETRY_DELAY),
        30010: _MESSAGE_REFUSED,  # price
        30011: _MESSAGE_REFUSED,  # MMS
        30012: _MESSAGE_REFUSED,  # validity too short
        30017: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY, throttled=True),  # congestion
        30018: _OURS,
        30019: _MESSAGE_REFUSED,  # size
        30020: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY),
        30021: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY),
        30022: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY, throttled=True),  # 10DLC rate
        30023: fails(FaultScope.PROVIDER, throttled=True),  # daily cap: see `classify_delivery`
        30024: _OURS,
        30025: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY, throttled=True),
        30026: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY, throttled=True),
        30027: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY, throttled=True),
        30032: _OURS,  # toll-free not verified
        30033: _OURS,  # campaign suspended
        30034: _OURS,  # 10DLC not registered
        30035: _OURS,  # number being configured
        30410: fails(FaultScope.PROVIDER, retry_after=RATE_DELAY),  # upstream time-out
        # SMS pumping: the recipient's side is suspect, so never another provider.
        30450: fails(FaultScope.RECIPIENT, retry_after=FRAUD_DELAY),
        30610: fails(FaultScope.RECIPIENT, retry_after=LATE_RETRY_DELAY),  # quiet hours
        30640: _NUMBER_DEAD,  # reassigned number, litigator
        11200: _OURS,  # our webhook failed
        12300: _OURS,  # our webhook's content type
        57012: _OURS,  # webhook signature
    }
)

DAILY_CAP = 30023
_CAP_ZONE = ZoneInfo("America/Los_Angeles")


def verdict_of(code: int) -> Verdict:
    """For a 4xx with Twilio's own body."""
    return REQUEST.get(code, UNKNOWN_CODE)


def classify_delivery(code: int, now: datetime, detail: str = "") -> Rejected | Failed:
    """What the ErrorCode of a status callback says about a message that was accepted."""
    wait = until_next_day(now) if code == DAILY_CAP else None
    outcome = DELIVERY.get(code, UNKNOWN_CODE).outcome(
        PROVIDER, str(code), redact(detail), retry_after=wait
    )
    assert isinstance(outcome, Rejected | Failed)
    return outcome


def until_next_day(now: datetime) -> timedelta:
    """To midnight Pacific time, when daily caps are lifted."""
    day_after = now.astimezone(_CAP_ZONE).date() + timedelta(days=1)
    return datetime.combine(day_after, time(0), _CAP_ZONE).astimezone(UTC) - now
