"""IANA zones from the pinned `tzdata` package, never from the host: two machines must agree on when 9 o'clock is."""

import zoneinfo
from zoneinfo import ZoneInfo

from sendloom.errors import Refusal

# What PYTHONTZPATH="" does, without depending on the environment. Hosts carry older data: they give Vancouver and
# Casablanca transitions that no longer exist.
zoneinfo.reset_tzpath(to=())
ZoneInfo.clear_cache()

NAMES: frozenset[str] = frozenset(zoneinfo.available_timezones()) - {"Factory", "localtime"}
_BY_FOLDED = {name.casefold(): name for name in NAMES}

# ZoneInfo keeps only eight zones strongly; a page of a campaign has more.
_LOADED: dict[str, ZoneInfo] = {}


def load(name: str) -> ZoneInfo:
    """The zone of a valid name; one object per name.

    Raises:
        Refusal: `bad_zone`.
    """
    zone = _LOADED.get(name)
    if zone is None:
        zone = _LOADED[name] = ZoneInfo(validate_zone(name))
    return zone


def validate_zone(name: str, *, field: str = "zone") -> str:
    """The name itself, if it is an IANA zone.

    Raises:
        Refusal: `bad_zone`. An offset or an abbreviation is no zone: it does not know about summer.
    """
    if name in NAMES:
        return name
    near = _BY_FOLDED.get(name.strip().casefold()) if isinstance(name, str) else None
    raise Refusal(
        "bad_zone",
        "this is not an IANA time zone name",
        field=field,
        fix=f"write it as {near}" if near else "use a name such as Europe/Paris, not an offset",
    )


def zone_or_default(name: str | None, default: str) -> tuple[ZoneInfo, bool]:
    """The recipient's zone; or the tenant's, flagged, when it is missing or bad. Never the server's, never an error.

    Raises:
        Refusal: `bad_zone`, only when the tenant's own default is bad.
    """
    if name:
        zone = _LOADED.get(name)
        if zone is not None:
            return zone, False
        if name in NAMES:
            return load(name), False
    return load(default), True
