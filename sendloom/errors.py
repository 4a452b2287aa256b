"""Failures that mean "try again", and refusals with a stable code. Everything final about a send is an Outcome, not an exception."""

from datetime import timedelta


class Transient(Exception):
    """The same call may succeed later."""

    retry_after: timedelta | None = None


class StoreUnavailable(Transient):
    """A database did not answer. Nothing was decided on a guess."""


class Fenced(Exception):
    """A newer epoch owns this shard and channel; this attempt must end and touch nothing."""


class SchemaTooOld(Exception):
    """The database's schema is older than this build. The message says the command that fixes it."""


class ConfigurationError(Exception):
    """A setting is missing, unknown or nonsense. The message says which and how to fix it."""


class Refusal(Exception):
    """A request that cannot be honoured. Maps to a problem document (RFC 9457).

    `code` is stable and documented in `docs/errors.md`; `field` names the offending field; `fix` says what to do.
    """

    def __init__(
        self, code: str, detail: str, *, field: str | None = None, fix: str = "", status: int = 422
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.field = field
        self.fix = fix
        self.status = status
