"""Every row of the reply table and of the phase table."""

import socket
import ssl
from datetime import timedelta

import pytest

from schemas.kinds import FaultScope
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.providers.smtp_replies import (
    GREYLIST_DELAY,
    LOGIN_DELAY,
    MAILBOX_FULL_DELAY,
    ROWS,
    Phase,
    classify,
    enhanced_of,
    row_for,
    unanswered,
    unreachable,
)

P = Phase
MESSAGE, RECIPIENT, SENDER, PROVIDER = (
    FaultScope.MESSAGE,
    FaultScope.RECIPIENT,
    FaultScope.SENDER,
    FaultScope.PROVIDER,
)


def answer(phase: Phase, text: str) -> CallOutcome:
    """As a client asks: `550 5.1.1 no such user`."""
    code, _, rest = text.partition(" ")
    return classify(phase, int(code), enhanced_of(int(code), rest), rest)


@pytest.mark.parametrize(
    ("phase", "reply", "scope"),
    [
        # closing, busy, broken for now
        (P.GREETING, "421 4.7.0 too many connections", PROVIDER),
        (P.EHLO, "421 closing", PROVIDER),
        (P.MAIL, "421 4.4.2 closing", PROVIDER),
        (P.RCPT, "421 4.3.2 shutting down", PROVIDER),
        (P.DATA, "421 closing", PROVIDER),
        (P.BODY, "421 closing", PROVIDER),
        (P.DOT, "421 4.3.0 closing", PROVIDER),
        (P.MAIL, "451 4.3.0 local error", PROVIDER),
        (P.RCPT, "451 4.3.0 local error", PROVIDER),
        (P.DATA, "451 local error", PROVIDER),
        (P.DOT, "451 4.3.0 local error", PROVIDER),
        (P.RCPT, "452 4.5.3 too many recipients", PROVIDER),
        (P.RCPT, "452 too many recipients", PROVIDER),
        (P.RCPT, "552 too many recipients", PROVIDER),
        (P.RCPT, "552 5.5.3 too many recipients", PROVIDER),
        (P.DATA, "452 4.3.1 insufficient storage", PROVIDER),
        (P.DOT, "452 4.3.1 insufficient storage", PROVIDER),
        (P.STARTTLS, "454 4.7.0 TLS not available", PROVIDER),
        (P.DOT, "454 Throttling failure: Maximum sending rate exceeded", PROVIDER),
        (P.MAIL, "450 4.3.2 not now", PROVIDER),
        (P.MAIL, "499 whatever", PROVIDER),
        (P.DOT, "432 whatever", PROVIDER),
        (P.GREETING, "554 no service here", PROVIDER),
        (P.GREETING, "550 go away", PROVIDER),
        # greylisting and full mailboxes are the recipient's side
        (P.RCPT, "450 4.2.0 greylisted", RECIPIENT),
        (P.RCPT, "450 4.7.1 greylisted", RECIPIENT),
        (P.RCPT, "450 4.7.0 greylisted", RECIPIENT),
        (P.RCPT, "450 greylisted, try later", RECIPIENT),
        (P.RCPT, "451 4.7.1 greylisting in action", RECIPIENT),
        (P.DATA, "450 4.7.1 greylisted", RECIPIENT),
        (P.DOT, "450 4.2.0 greylisted", RECIPIENT),
        (P.RCPT, "452 4.2.2 mailbox full", RECIPIENT),
        (P.RCPT, "450 4.2.2 mailbox full", RECIPIENT),
        (P.DOT, "452 4.2.2 mailbox full", RECIPIENT),
        (P.RCPT, "552 5.2.2 over quota", RECIPIENT),
        (P.RCPT, "550 5.2.2 over quota", RECIPIENT),
        (P.DOT, "552 5.2.2 over quota", RECIPIENT),
        (P.DOT, "552 exceeded storage allocation", RECIPIENT),
        # our account, our settings
        (P.AUTH, "454 4.7.0 Temporary authentication failure", SENDER),
        (P.AUTH, "432 4.7.12 a password transition is needed", SENDER),
        (P.AUTH, "421 too many failed logins", SENDER),
        (P.AUTH, "504 mechanism not known", SENDER),
        (P.AUTH, "530 5.7.0 must issue STARTTLS first", SENDER),
        (P.AUTH, "534 5.7.9 too weak", SENDER),
        (P.AUTH, "535 5.7.8 bad credentials", SENDER),
        (P.AUTH, "538 5.7.11 encryption required", SENDER),
        (P.MAIL, "530 5.7.0 authentication required", SENDER),
        (P.MAIL, "553 5.7.1 sender not owned by user", SENDER),
        (P.MAIL, "553 name not allowed", SENDER),
        (P.MAIL, "550 5.1.8 bad sender domain", SENDER),
        (P.RCPT, "550 5.1.7 bad sender", SENDER),
        (P.EHLO, "501 bad host name", SENDER),
        (P.STARTTLS, "502 no such thing", SENDER),
        (P.GREETING, "521 this host takes no mail", SENDER),
    ],
)
def test_known_not_taken_and_worth_another_attempt(phase, reply, scope):
    outcome = answer(phase, reply)
    assert isinstance(outcome, Failed)
    assert outcome.scope is scope
    assert outcome.counts


@pytest.mark.parametrize(
    ("phase", "reply", "scope", "suppress"),
    [
        # the address is dead
        (P.RCPT, "550 5.1.1 no such user", RECIPIENT, True),
        (P.RCPT, "550 5.1.6 moved", RECIPIENT, True),
        (P.RCPT, "550 5.2.1 disabled", RECIPIENT, True),
        (P.RCPT, "550 no such user", RECIPIENT, True),
        (P.DOT, "550 5.1.1 no such user", RECIPIENT, True),
        (P.RCPT, "550 5.1.2 bad domain", RECIPIENT, True),
        (P.RCPT, "553 5.1.3 bad syntax", RECIPIENT, True),
        (P.RCPT, "501 5.1.3 bad syntax", RECIPIENT, True),
        (P.RCPT, "550 5.4.4 no route", RECIPIENT, True),
        (P.RCPT, "550 5.1.10 null MX", RECIPIENT, True),
        (P.RCPT, "556 5.1.10 domain takes no mail", RECIPIENT, True),
        (P.RCPT, "521 domain takes no mail", RECIPIENT, True),
        # the recipient's side says no, but not that the address is dead
        (P.RCPT, "551 user not local, try <alex@example.com>", RECIPIENT, False),
        (P.RCPT, "553 name not allowed", RECIPIENT, False),
        (P.RCPT, "550 5.4.1 recipient address rejected", RECIPIENT, False),
        (P.RCPT, "550 5.1.0 rejected", RECIPIENT, False),
        # policy: the address stays good
        (P.MAIL, "550 5.7.1 refused", MESSAGE, False),
        (P.RCPT, "550 5.7.1 relaying denied", MESSAGE, False),
        (P.RCPT, "554 5.7.1 blocked using a list", MESSAGE, False),
        (P.RCPT, "550 relay not permitted", MESSAGE, False),
        (P.RCPT, "550 blocked, see our policy", MESSAGE, False),
        (P.DOT, "550 5.7.26 unauthenticated", MESSAGE, False),
        (P.DOT, "550 5.7.515 not authenticated", MESSAGE, False),
        (P.DOT, "554 5.7.9 policy", MESSAGE, False),
        (P.DOT, "552 5.7.0 blocked for its content", MESSAGE, False),
        # size and content
        (P.MAIL, "552 message size exceeds fixed limit", MESSAGE, False),
        (P.MAIL, "552 5.3.4 message too big", MESSAGE, False),
        (P.DOT, "552 5.2.3 too long", MESSAGE, False),
        (P.DOT, "552 5.3.4 too big", MESSAGE, False),
        (P.DOT, "552 message too large", MESSAGE, False),
        (P.BODY, "552 too much", MESSAGE, False),
        (P.DOT, "554 5.6.1 media not supported", MESSAGE, False),
        (P.DOT, "550 5.6.7 needs SMTPUTF8", MESSAGE, False),
        (P.DOT, "554 transaction failed", MESSAGE, False),
        (P.RCPT, "554 refused", MESSAGE, False),
        (P.DATA, "554 no valid recipients", MESSAGE, False),
        (P.DOT, "550 refused", MESSAGE, False),
        (P.DOT, "599 whatever", MESSAGE, False),
        # parameters and protocol
        (P.MAIL, "555 parameter not known", MESSAGE, False),
        (P.RCPT, "555 parameter not known", MESSAGE, False),
        (P.MAIL, "455 parameter not now", MESSAGE, False),
        (P.MAIL, "501 bad argument", MESSAGE, False),
        (P.MAIL, "500 what?", SENDER, False),
        (P.RCPT, "502 what?", SENDER, False),
        (P.DATA, "503 out of order", SENDER, False),
        (P.MAIL, "504 not implemented", SENDER, False),
    ],
)
def test_the_same_again_would_be_refused_again(phase, reply, scope, suppress):
    outcome = answer(phase, reply)
    assert isinstance(outcome, Rejected)
    assert (outcome.scope, outcome.suppress) == (scope, suppress)
    assert not outcome.opted_out


@pytest.mark.parametrize("code", [250, 200, 251, 299])
def test_any_2yz_after_the_dot_is_success(code):
    assert isinstance(answer(P.DOT, f"{code} ok"), Accepted)


@pytest.mark.parametrize(
    ("text", "queue_id"),
    [
        ("2.0.0 Ok: queued as 4F2A1B", "4F2A1B"),
        ("OK id=1r8abc-0001Xy-2z", "1r8abc-0001Xy-2z"),
        ("", ""),
        ("2.0.0 fine", ""),
    ],
)
def test_the_queue_id_is_kept_when_the_relay_names_one(text, queue_id):
    outcome = classify(P.DOT, 250, "2.0.0", text)
    assert isinstance(outcome, Accepted)
    assert outcome.provider_message_id == queue_id


def test_c69_454_after_data_is_throttling_and_454_at_auth_is_the_senders_login():
    too_fast = answer(P.DOT, "454 Throttling failure: Maximum sending rate exceeded")
    login = answer(P.AUTH, "454 4.7.0 Temporary authentication failure")
    assert isinstance(too_fast, Failed)
    assert isinstance(login, Failed)
    assert (too_fast.scope, too_fast.throttled) == (PROVIDER, True)
    assert (login.scope, login.throttled) == (SENDER, False)
    assert login.retry_after == LOGIN_DELAY


@pytest.mark.parametrize(
    ("phase", "reply", "floor"),
    [
        (P.RCPT, "450 4.2.0 greylisted", GREYLIST_DELAY),
        (P.RCPT, "451 4.7.1 greylisted", GREYLIST_DELAY),
        (P.RCPT, "552 5.2.2 over quota", MAILBOX_FULL_DELAY),
        (P.DOT, "452 4.2.2 over quota", MAILBOX_FULL_DELAY),
    ],
)
def test_greylisting_and_full_mailboxes_wait(phase, reply, floor):
    outcome = answer(phase, reply)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == floor >= timedelta(minutes=5)
    assert not outcome.throttled


@pytest.mark.parametrize(
    "reply", ["421 4.7.28 rate", "451 4.3.0 busy", "454 slow down", "450 too many messages"]
)
def test_answers_that_mean_slower_say_so(reply):
    outcome = answer(P.MAIL, reply)
    assert isinstance(outcome, Failed)
    assert outcome.throttled


def test_a_contradicting_enhanced_code_gives_way_to_the_basic_one():
    assert enhanced_of(550, "4.2.0 what") == ""
    assert isinstance(answer(P.DOT, "450 5.1.1 what"), Failed)
    assert isinstance(answer(P.DOT, "250 5.1.1 what"), Accepted)


@pytest.mark.parametrize("text", ["5.1.1", "5.1.1 x", "5.1.1\nmore"])
def test_the_enhanced_code_is_read_from_the_start_of_the_text(text):
    assert enhanced_of(550, text) == "5.1.1"


@pytest.mark.parametrize("text", ["", "x 5.1.1", "5.1", "5.1.1.2.3", "5.1.1000 x"])
def test_what_is_not_an_enhanced_code_is_none(text):
    assert enhanced_of(550, text) == ""


def test_the_code_is_kept_and_the_address_is_not():
    outcome = answer(P.RCPT, "550 5.1.1 <alex@example.com>: no such user alex@example.com")
    assert isinstance(outcome, Rejected)
    assert outcome.code == "550 5.1.1"
    assert "alex" not in outcome.detail
    assert "no such user" in outcome.detail


def test_odd_text_is_made_plain_and_short():
    outcome = answer(P.RCPT, "550 5.1.1 \udcff\x1b[31m" + "x" * 1_000)
    assert isinstance(outcome, Rejected)
    assert outcome.detail.isascii()
    assert outcome.detail.isprintable()
    assert len(outcome.detail) <= 200


@pytest.mark.parametrize("phase", [p for p in Phase if p is not P.DOT])
def test_silence_before_the_dot_is_failed(phase):
    outcome = unanswered(phase, "connection_lost")
    assert isinstance(outcome, Failed)
    assert outcome.scope is PROVIDER


def test_silence_after_the_dot_is_unknown():
    assert isinstance(unanswered(P.DOT, "reply_timeout"), Unknown)


@pytest.mark.parametrize("code", [150, 354, 699])
def test_a_reply_that_makes_no_sense_is_no_reply(code):
    assert isinstance(classify(P.MAIL, code, "", ""), Failed)
    assert isinstance(classify(P.DOT, code, "", ""), Unknown)


def wrapped(cause: BaseException) -> BaseException:
    try:
        raise ConnectionError("wrapped") from cause
    except ConnectionError as error:
        return error


@pytest.mark.parametrize(
    ("cause", "code", "scope"),
    [
        (socket.gaierror(-2, "Name or service not known"), "host_not_found", SENDER),
        (socket.gaierror(-3, "Temporary failure"), "host_not_found", SENDER),
        (ssl.SSLCertVerificationError("bad"), "certificate_refused", SENDER),
        (ssl.SSLError(1, "handshake"), "tls_failed", PROVIDER),
        (ConnectionRefusedError(), "connection_refused", PROVIDER),
        (TimeoutError(), "connect_timeout", PROVIDER),
        (OSError("no route"), "connection_failed", PROVIDER),
    ],
)
def test_c13_why_there_is_no_session_is_said_and_is_no_recipients_fault(cause, code, scope):
    outcome = unreachable(wrapped(cause))
    assert (outcome.code, outcome.scope) == (code, scope)


def test_every_row_is_reached_by_some_reply():
    """No row hides behind another: each is the first match of one of the replies it lists."""

    codes = [421, *range(430, 435), *range(450, 456), *range(500, 505), 521, 530, 534, 535, 538]
    codes += [*range(550, 557)]
    details = ["2.0", "2.1", "2.2", "2.3", "3.4", "1.0", "1.1", "1.2", "1.7", "4.4", "5.3", "6.1"]
    details += ["7.1", "7.0"]
    texts = ["", "spam", "rate limit", "too large"]
    reached = {
        row_for(phase, code, enhanced, text)
        for phase in Phase
        for code in codes
        for enhanced in ("", *(f"{code // 100}.{d}" for d in details))
        for text in texts
    }
    assert set(ROWS) <= reached
