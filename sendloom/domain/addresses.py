"""Addresses in two forms: the deliverable one, which goes to a provider, and the lookup one, which is all that two spellings
of one address have in common. Only the lookup form is hashed, so a suppression holds however it was typed.

No refusal quotes the address: refusals end up in logs and error lists.
"""

import re
import unicodedata
from dataclasses import dataclass

import idna
import phonenumbers
from phonenumbers import PhoneNumberType, ValidationResult

from schemas.kinds import Channel
from sendloom.errors import Refusal

# Invisible characters that come along with copy and paste: zero-width space, word joiner, BOM, soft hyphen, bidi marks.
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u00ad\u180e\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# These two mean something in some scripts, so they go only where the rest is ASCII.
_JOINERS = re.compile("[\u200c\u200d]")

_PLAIN_EMAIL = re.compile(
    # The common case in one look: an ASCII dot-atom at lower- or upper-case host labels with a dot among them.
    r"(?=.{3,254}\Z)(?P<local>[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*)"
    r"@(?P<domain>(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9])",
    re.ASCII,
)
_LOCAL = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+)*"
)
LOCAL_MAX = 64
EMAIL_MAX = 254

BLOCKED_TYPES = {
    # Expensive to the sender, not a handset, or a favourite of toll fraud.
    PhoneNumberType.PREMIUM_RATE: "a premium-rate number",
    PhoneNumberType.TOLL_FREE: "a toll-free number",
    PhoneNumberType.SHARED_COST: "a shared-cost number",
    PhoneNumberType.VOIP: "an internet telephony number",
    PhoneNumberType.UAN: "a company-wide access number",
    PhoneNumberType.PERSONAL_NUMBER: "a personal (forwarding) number",
    PhoneNumberType.PAGER: "a pager",
    PhoneNumberType.VOICEMAIL: "a voicemail access number",
}
_NO_COUNTRY = "001"
"""libphonenumber's region of satellite and other numbers that belong to no country."""


@dataclass(frozen=True, slots=True)
class NormalAddress:
    """One address, normalised."""

    channel: Channel
    deliverable: str
    lookup: str
    region: str | None = None
    """ISO region of a phone number, by its own range, not by calling code; None when no range is known for it."""


def normalise(
    channel: Channel, raw: str, *, default_region: str | None = None, field: str | None = None
) -> NormalAddress:
    """The two forms of an address as somebody typed it.

    Raises:
        Refusal: `bad_address`; for numbers also `blocked_number`.
    """
    match channel:
        case Channel.EMAIL:
            return normalise_email(raw, field=field or "email")
        case Channel.SMS:
            return normalise_phone(raw, default_region, field=field or "phone")
        case Channel.APNS | Channel.FCM:
            token = raw.strip()
            if not token or not token.isascii() or any(c.isspace() for c in token):
                raise _bad("this is not a device token", field or "token", "send it as it came")
            return NormalAddress(channel, token, _token_lookup(channel, token))


def lookup_form(channel: Channel, address: str, *, default_region: str | None = None) -> str:
    """What two spellings of one address have in common; this gets hashed. Idempotent: its own result looks up the same.

    Raises:
        Refusal: `bad_address`. A number of a blocked kind still has a lookup form: it may need suppressing.
    """
    match channel:
        case Channel.EMAIL:
            return normalise_email(address).lookup
        case Channel.SMS:
            number = _parse(address, default_region, "phone")
            return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
        case Channel.APNS | Channel.FCM:
            return _token_lookup(channel, address.strip())


def _token_lookup(channel: Channel, token: str) -> str:
    # APNs tokens are hexadecimal; FCM's are case-sensitive.
    return token.lower() if channel is Channel.APNS else token


def _bad(why: str, field: str, fix: str) -> Refusal:
    return Refusal("bad_address", why, field=field, fix=fix)


def _visible(raw: str) -> str:
    """Without invisible characters, and without any white space at the ends."""
    if raw.isascii():
        return raw.strip()
    text = _INVISIBLE.sub("", raw)
    without = _JOINERS.sub("", text)
    return (without if without.strip().isascii() else text).strip()


# --- email ------------------------------------------------------------------------------------------------------------


def normalise_email(raw: str, *, field: str = "email") -> NormalAddress:
    """Deliverable: as written, with the domain in lower-case A-labels. Lookup: the local part folded as well.

    By the letter the local part is case-sensitive; no provider that matters treats it so, and an opt-out that depends on
    a capital is no opt-out (case C26). Quoted local parts and address literals are refused.

    Raises:
        Refusal: `bad_address`.
    """
    text = raw if isinstance(raw, str) else ""
    if not text.isascii() or text[:1].isspace() or text[-1:].isspace():
        text = _visible(text)
    plain = _PLAIN_EMAIL.fullmatch(text)
    if plain is not None and "xn--" not in text:
        local, domain = plain["local"], plain["domain"].lower()
        if len(local) <= LOCAL_MAX and "--" not in domain:
            return NormalAddress(Channel.EMAIL, f"{local}@{domain}", f"{local.lower()}@{domain}")
    return _unusual_email(text, field)


def _unusual_email(text: str, field: str) -> NormalAddress:
    fix = "write it as name@example.com, one address and nothing else"
    local, at, domain = text.rpartition("@")
    if len(text) > EMAIL_MAX or not at or not local or not domain:
        raise _bad("this is not an email address", field, fix)
    if any(c.isspace() or unicodedata.category(c) in ("Cc", "Cs") for c in text):
        raise _bad("an email address has no spaces or control characters in it", field, fix)
    local = unicodedata.normalize("NFC", local)
    if not _LOCAL.fullmatch(local) or len(local.encode(errors="replace")) > LOCAL_MAX:
        raise _bad("the part before the @ is not one that can be delivered to", field, fix)
    try:
        ascii_domain = idna.encode(domain, uts46=True, transitional=False).decode().lower()
    except (idna.IDNAError, UnicodeError):
        raise _bad("the part after the @ is not a domain name", field, fix) from None
    labels = ascii_domain.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or not all(labels):
        raise _bad("the part after the @ is not a full domain name", field, fix)
    if len(local.encode()) + 1 + len(ascii_domain) > EMAIL_MAX:
        raise _bad("the address is too long", field, fix)
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", local).casefold())
    return NormalAddress(Channel.EMAIL, f"{local}@{ascii_domain}", f"{folded}@{ascii_domain}")


# --- phone numbers ------------------------------------------------------------------------------------------------------


def normalise_phone(
    raw: str, default_region: str | None = None, *, field: str = "phone"
) -> NormalAddress:
    """E.164, for a number that can be sent a text.

    Possible, not valid, is what is asked of a number: the metadata lags behind new ranges.

    Raises:
        Refusal: `bad_address`, or `blocked_number` for premium, toll-free, satellite and other kinds never written to.
    """
    number = _sendable_number(raw, default_region, field=field)
    e164 = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
    return NormalAddress(Channel.SMS, e164, e164, phonenumbers.region_code_for_number(number))


def _sendable_number(
    raw: str, default_region: str | None, *, field: str = "phone"
) -> phonenumbers.PhoneNumber:
    """The number alone, without its region, which costs as much again to find.

    Raises:
        Refusal: as `normalise_phone`.
    """
    number = _parse(raw, default_region, field)
    if phonenumbers.region_code_for_country_code(number.country_code or 0) == _NO_COUNTRY:
        raise _blocked("a satellite or other number of no country", field)
    blocked = BLOCKED_TYPES.get(phonenumbers.number_type(number))
    if blocked is not None:
        raise _blocked(blocked, field)
    return number


def e164_of(raw: str, default_region: str | None, *, field: str = "phone") -> str:
    """Both forms of a number, which are one; for lists, which need no region.

    Raises:
        Refusal: as `normalise_phone`.
    """
    number = _sendable_number(raw, default_region, field=field)
    return str(phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164))


def region_of(e164: str) -> str | None:
    """The ISO region of a number's range. Calling code 1 alone is some twenty of them; None when no range is known."""
    try:
        return phonenumbers.region_code_for_number(phonenumbers.parse(e164, None))
    except phonenumbers.NumberParseException:
        return None


def _blocked(kind: str, field: str) -> Refusal:
    return Refusal(
        "blocked_number",
        f"this is {kind}; texts are not sent to those",
        field=field,
        fix="use a mobile number",
    )


def _parse(raw: str, default_region: str | None, field: str) -> phonenumbers.PhoneNumber:
    fix = "write it with + and the country code, for example +12025550143"
    text = _visible(raw) if isinstance(raw, str) else ""
    try:
        number = phonenumbers.parse(text, default_region)
    except phonenumbers.NumberParseException as e:
        if e.error_type == phonenumbers.NumberParseException.INVALID_COUNTRY_CODE:
            raise _bad("the number has no (known) country code", field, fix) from None
        raise _bad("this is not a phone number", field, fix) from None
    if number.extension:
        raise _bad("a text cannot be sent to an extension", field, "leave the extension out")
    if any(c.isalpha() for c in text):
        raise _bad("a phone number has no letters", field, fix)
    number = _without_old_mexican_one(number)
    if phonenumbers.is_possible_number_with_reason(number) != ValidationResult.IS_POSSIBLE:
        raise _bad("the number is too short or too long for its country", field, fix)
    return number


def _without_old_mexican_one(number: phonenumbers.PhoneNumber) -> phonenumbers.PhoneNumber:
    # Until 2019 Mexican mobiles were +52 1; handsets and old lists still say so. Both must be one address.
    national = str(number.national_number)
    if number.country_code == 52 and len(national) == 11 and national[0] == "1":
        return phonenumbers.PhoneNumber(country_code=52, national_number=int(national[1:]))
    return number
