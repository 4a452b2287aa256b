"""What a text message costs and how a handset receives it (3GPP TS 23.038 and 23.040), and the origin-bound passcode line."""

import re
from enum import StrEnum
from typing import NamedTuple

from sendloom.errors import Refusal

_BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = "\f^{}\\[~]|€"
"""Each is an escape and a code: two septets that must stay together."""

_GSM = re.compile(f"[{re.escape(_BASIC + _EXTENDED)}]*")
_TWO_SEPTETS = re.compile(f"[{re.escape(_EXTENDED)}]")
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")

CHARACTERS_MAX = 1600
"""The longest body the providers take, in UTF-16 code units."""


class Encoding(StrEnum):
    """The two there are. National shift tables are mostly unsupported by aggregators, so they are not counted on."""

    GSM7 = "GSM-7"
    UCS2 = "UCS-2"


SINGLE = {Encoding.GSM7: 160, Encoding.UCS2: 70}
PART = {Encoding.GSM7: 153, Encoding.UCS2: 67}


class SmsCount(NamedTuple):
    """`units` are septets or UTF-16 code units, without the headers of the parts."""

    encoding: Encoding
    units: int
    segments: int


def encoding_of(text: str) -> Encoding:
    """GSM-7 if every character has a place in its two tables; one that has not makes the whole text UCS-2."""
    return Encoding.GSM7 if _GSM.fullmatch(text) else Encoding.UCS2


def cost(text: str, encoding: Encoding) -> int:
    """Septets or UTF-16 code units."""
    wide = _TWO_SEPTETS if encoding is Encoding.GSM7 else _TWO_UNITS
    return len(text) + len(wide.findall(text))


def segments(text: str) -> list[str]:
    """Split as a handset would receive it; an escape pair or surrogate pair is never cut."""
    encoding = encoding_of(text)
    if cost(text, encoding) <= SINGLE[encoding]:
        return [text]
    room, wide = PART[encoding], _TWO_SEPTETS if encoding is Encoding.GSM7 else _TWO_UNITS
    parts: list[str] = []
    start = used = 0
    for n, character in enumerate(text):
        size = 2 if wide.match(character) else 1
        if used + size > room:
            parts.append(text[start:n])
            start, used = n, 0
        used += size
    parts.append(text[start:])
    return parts


def count(text: str) -> SmsCount:
    """Encoding, units and parts. An empty text is one part: a provider charges for it."""
    encoding = encoding_of(text)
    units = cost(text, encoding)
    if units <= SINGLE[encoding]:
        return SmsCount(encoding, units, 1)
    if units == len(text):
        return SmsCount(encoding, units, -(-units // PART[encoding]))
    return SmsCount(encoding, units, len(segments(text)))


def characters(text: str) -> int:
    """UTF-16 code units, as providers count a body."""
    return cost(text, Encoding.UCS2)


def check_length(text: str, *, field: str = "text") -> None:
    """
    Raises:
        Refusal: `too_large`.
    """
    if characters(text) > CHARACTERS_MAX:
        raise Refusal(
            "too_large",
            f"a text message has at most {CHARACTERS_MAX} characters",
            field=field,
            fix="shorten it",
        )


# --- passcodes --------------------------------------------------------------------------------------------------------


class OriginBound(NamedTuple):
    """What a browser reads out of the last line of a passcode text."""

    host: str
    code: str
    embedded_host: str | None


# ASCII white space, as the specification has it.
_TOKEN = r"[^\t\n\f\r ]+"
_LAST_LINE = re.compile(f"@({_TOKEN}) #({_TOKEN})(?: @({_TOKEN}))?")
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_CODE = re.compile(_TOKEN)


def passcode_text(human: str, host: str, code: str, *, embedded_host: str | None = None) -> str:
    """Human text above, and a last line that phones fill in only on `host`. Nothing may be appended to it, not even a newline.

    Raises:
        Refusal: `bad_host` (a host has no scheme, port or path), `bad_code`.
    """
    for name in (host, *([embedded_host] if embedded_host else [])):
        if not _HOST.fullmatch(name):
            raise Refusal(
                "bad_host",
                "an origin-bound text names a host without scheme, port or path",
                field="host",
                fix="write example.com",
            )
    if not _CODE.fullmatch(code):
        raise Refusal("bad_code", "a code has no spaces and is not empty", field="code")
    last = f"@{host} #{code}" + (f" @{embedded_host}" if embedded_host else "")
    above = human.rstrip()
    return f"{above}\n\n{last}" if above else last


def parse_passcode_text(text: str) -> OriginBound | None:
    """What a browser would read, or None (WICG sms-one-time-codes)."""
    last = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[-1]
    found = _LAST_LINE.match(last)
    return OriginBound(found[1], found[2], found[3]) if found else None
