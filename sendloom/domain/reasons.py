"""Why something was not sent, or not yet: stable codes, and one sentence each for whoever has to explain it."""

from enum import StrEnum


class Reason(StrEnum):
    """Stored with decisions and shown by the API; never renamed."""

    EXPIRED = "expired"
    KILLED = "killed"

    SUPPRESSED_COMPLAINT = "suppressed_complaint"
    SUPPRESSED_STOP = "suppressed_stop"
    SUPPRESSED_HARD_BOUNCE = "suppressed_hard_bounce"
    SUPPRESSED_MANUAL = "suppressed_manual"
    OPTED_OUT = "opted_out"
    ADDRESS_DEAD = "address_dead"
    UNVERIFIED = "unverified"
    NO_ADDRESS = "no_address"

    NO_CONSENT = "no_consent"

    SCHEDULED = "scheduled"
    WINDOW = "window"
    QUIET_HOURS = "quiet_hours"

    FREQUENCY_CAP = "frequency_cap"

    LADDER_EXHAUSTED = "ladder_exhausted"
    NO_TEMPLATE = "no_template"
    MISSING_VARIABLE = "missing_variable"
    BAD_VARIABLE = "bad_variable"
    TOO_LARGE = "too_large"
    NOT_CALLED = "not_called"
    UNKNOWN_RECIPIENT = "unknown_recipient"


EXPLANATIONS: dict[Reason, str] = {
    Reason.EXPIRED: "It could no longer help when it would have left, so it was not sent.",
    Reason.KILLED: "A kill switch for its tenant, category, campaign or lane was on.",
    Reason.SUPPRESSED_COMPLAINT: "The person reported an earlier message to this address as spam.",
    Reason.SUPPRESSED_STOP: "The person answered STOP from this number or address.",
    Reason.SUPPRESSED_HARD_BOUNCE: "The provider said that this address does not exist or takes no mail.",
    Reason.SUPPRESSED_MANUAL: "Somebody put this address on the suppression list by hand.",
    Reason.OPTED_OUT: "The person opted out of this category, or of all marketing, on this channel.",
    Reason.ADDRESS_DEAD: "The address was marked dead after an earlier final answer.",
    Reason.UNVERIFIED: "Nobody has shown that the address belongs to the person.",
    Reason.NO_ADDRESS: "The person has no address or device on any channel the category uses.",
    Reason.NO_CONSENT: "There is no recorded consent for this category on this channel, and unknown is no.",
    Reason.SCHEDULED: "It was asked for at a later moment.",
    Reason.WINDOW: "It was outside the campaign's sending window in the person's time zone.",
    Reason.QUIET_HOURS: "It was inside quiet hours in the person's time zone.",
    Reason.FREQUENCY_CAP: "The person had already received as many messages as the category's caps allow.",
    Reason.LADDER_EXHAUSTED: "Every channel of the category's ladder had been tried.",
    Reason.NO_TEMPLATE: "The template has no content for this channel.",
    Reason.MISSING_VARIABLE: "A variable that the template needs was missing or empty and has no default.",
    Reason.BAD_VARIABLE: "A variable had a value that cannot be shown as text or used as a link.",
    Reason.TOO_LARGE: "The rendered message was over the channel's size limit.",
    Reason.NOT_CALLED: "The sender was paused or ran out of time before it called the provider.",
    Reason.UNKNOWN_RECIPIENT: "The list names a person who does not exist (any more).",
}


_SUPPRESSIONS = {
    "complaint": Reason.SUPPRESSED_COMPLAINT,
    "stop": Reason.SUPPRESSED_STOP,
    "hard_bounce": Reason.SUPPRESSED_HARD_BOUNCE,
    "manual": Reason.SUPPRESSED_MANUAL,
}


def suppression_reason(stored: str) -> Reason:
    """The reason for a suppression as the ledger stores it. One it does not know is still a suppression."""
    return _SUPPRESSIONS.get(stored, Reason.SUPPRESSED_MANUAL)


def explain(code: str) -> str:
    """The sentence for a code; a provider's or a newer build's code is shown as it is."""
    try:
        return EXPLANATIONS[Reason(code)]
    except ValueError:
        return f"The provider or a newer version gave the reason {code!r}."
