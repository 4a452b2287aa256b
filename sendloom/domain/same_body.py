"""What an idempotency key stands for: one request, and its exact repeats."""

import hmac

from sendloom.errors import Refusal

_ANOTHER = "this idempotency key was used with another body"


def require_same_body(stored: bytes, given: bytes, otherwise: str = _ANOTHER) -> None:
    """The two HMACs are of one body.

    Raises:
        Refusal: `key_reused`.
    """
    if not hmac.compare_digest(stored, given):
        raise Refusal(
            "key_reused",
            otherwise,
            field="Idempotency-Key",
            fix="use a new key for a new request; repeat a request with the very same body",
            status=409,
        )
