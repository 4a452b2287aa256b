"""X-Twilio-Signature: made by the simulator, checked by our callback endpoint.

HMAC over the URL exactly as Twilio called it, followed by the form's names and values. Nothing in it is dated, so whoever
verifies must also be indifferent to repeats.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs, urlsplit

SIGNATURE_HEADER = "X-Twilio-Signature"
SETTINGS_HEADER = "X-Twilio-Webhooks-Signature-Settings"

Pairs = Iterable[tuple[str, str]]

_ALGORITHMS = {"HMAC_SHA1": hashlib.sha1, "HMAC_SHA256": hashlib.sha256}
_AUTHORITY = re.compile(
    r"^(?P<scheme>https?)://(?P<user>[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)(?::\d+)?(?P<rest>.*)$",
    re.S,
)
_STANDARD_PORT = {"http": ":80", "https": ":443"}


def sign(token: str, url: str, form: Pairs = (), *, algorithm: str = "HMAC_SHA1") -> str:
    """The header's value. `form` is decoded and untrimmed; of a repeated name each distinct value counts once."""
    signed = url + "".join(name + value for name, value in sorted(set(form)))
    digest = hmac.new(token.encode(), signed.encode(), _ALGORITHMS[algorithm]).digest()
    return base64.b64encode(digest).decode()


def verify(
    token: str,
    signature: str | None,
    url: str,
    *,
    form: Pairs | None = None,
    body: bytes = b"",
    settings: str | None = None,
    shared_keys: Mapping[str, str] | None = None,
) -> bool:
    """Whether Twilio sent this to `url`, our own configured public URL with path and query, never what a proxy says.

    `form` is the decoded form when the content type says form, else None: then the raw `body` must match the URL's
    `bodySHA256`, because nothing else protects it. `settings` is the value of `X-Twilio-Webhooks-Signature-Settings`;
    a key or an algorithm we do not know is refused, never replaced by the default.
    """
    url = url.split("#", 1)[0]
    algorithm = "HMAC_SHA1"
    if settings is not None:
        named = dict(part.strip().partition("=")[::2] for part in settings.split(","))
        algorithm = named.get("algorithm", "")
        token = (shared_keys or {}).get(named.get("key", ""), "")
        if not token or algorithm != "HMAC_SHA256":
            return False
    if not signature or not token:
        return False

    promised = parse_qs(urlsplit(url).query).get("bodySHA256", [])
    pairs = None if form is None else list(form)
    if pairs is None:
        actual = hashlib.sha256(body).hexdigest()
        # A request without a body has nothing to protect; any other must be promised exactly once.
        if promised != [actual] and (promised or body):
            return False
    elif promised:
        return False

    given = signature.encode()
    matches = [
        hmac.compare_digest(sign(token, variant, pairs or (), algorithm=algorithm).encode(), given)
        for variant in url_variants(url)
    ]
    return any(matches)


def url_variants(url: str) -> tuple[str, ...]:
    """The forms under which Twilio may have signed one URL: it is not consistent about ports and apostrophes."""
    forms = [url]
    if parts := _AUTHORITY.match(url):
        scheme, user, host, rest = (
            parts["scheme"],
            parts["user"] or "",
            parts["host"],
            parts["rest"],
        )
        forms += [f"{scheme}://{user}{host}{port}{rest}" for port in ("", _STANDARD_PORT[scheme])]
    forms += [form.replace("'", "%27") for form in forms]
    return tuple(dict.fromkeys(forms))
