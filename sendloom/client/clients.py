"""The two clients. Each operation is one line here; `calls.py` says what it does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx
from pydantic import ValidationError

from schemas.api import Problem
from sendloom.client import calls
from sendloom.client.calls import Call
from sendloom.client.errors import SendloomError, SendloomUnreachable
from sendloom.client.retries import (
    BROKEN_ON_THE_WAY,
    REFUSED_FOR_NOW,
    Retries,
    may_repeat,
    retry_after,
)

P = ParamSpec("P")
T = TypeVar("T")


class _Operation(Generic[P, T]):
    """A bound method of either client, with the signature of its call."""

    def __init__(self, call: Callable[P, Call[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    @overload
    def __get__(self, client: "SendloomClient", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncSendloomClient", owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> "_Operation[P, T]": ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def operation(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(self._call(*args, **kwargs))

        operation.__doc__ = self.__doc__
        return operation


class _Operations:
    send_notification = _Operation(calls.send_notification)
    notification = _Operation(calls.notification)
    cancel_notification = _Operation(calls.cancel_notification)
    delivery = _Operation(calls.delivery)
    send_passcode = _Operation(calls.send_passcode)
    passcode = _Operation(calls.passcode)
    check_passcode = _Operation(calls.check_passcode)
    resend_passcode = _Operation(calls.resend_passcode)
    cancel_passcode = _Operation(calls.cancel_passcode)
    send_reminder = _Operation(calls.send_reminder)
    reminder = _Operation(calls.reminder)
    reschedule_reminder = _Operation(calls.reschedule_reminder)
    send_reminder_now = _Operation(calls.send_reminder_now)
    cancel_reminder = _Operation(calls.cancel_reminder)
    cancel_reminders = _Operation(calls.cancel_reminders)

    create_schedule = _Operation(calls.create_schedule)
    schedule = _Operation(calls.schedule)
    schedules = _Operation(calls.schedules)
    change_schedule = _Operation(calls.change_schedule)
    delete_schedule = _Operation(calls.delete_schedule)
    pause_schedule = _Operation(calls.pause_schedule)
    resume_schedule = _Operation(calls.resume_schedule)
    schedule_triggers = _Operation(calls.schedule_triggers)
    triggers = _Operation(calls.triggers)
    create_series = _Operation(calls.create_series)
    series = _Operation(calls.series)
    move_series = _Operation(calls.move_series)
    cancel_series = _Operation(calls.cancel_series)

    create_campaign = _Operation(calls.create_campaign)
    preflight_campaign = _Operation(calls.preflight_campaign)
    test_campaign = _Operation(calls.test_campaign)
    approve_campaign = _Operation(calls.approve_campaign)
    campaign = _Operation(calls.campaign)
    campaigns = _Operation(calls.campaigns)
    campaign_recipients = _Operation(calls.campaign_recipients)
    pause_campaign = _Operation(calls.pause_campaign)
    resume_campaign = _Operation(calls.resume_campaign)
    cancel_campaign = _Operation(calls.cancel_campaign)
    set_campaign_rate = _Operation(calls.set_campaign_rate)
    replay_campaign = _Operation(calls.replay_campaign)

    put_list = _Operation(calls.put_list)
    get_list = _Operation(calls.get_list)
    start_upload = _Operation(calls.start_upload)
    put_chunk = _Operation(calls.put_chunk)
    make_ready = _Operation(calls.make_ready)
    list_version = _Operation(calls.list_version)

    put_segment = _Operation(calls.put_segment)
    get_segment = _Operation(calls.get_segment)
    segments = _Operation(calls.segments)
    delete_segment = _Operation(calls.delete_segment)
    preview_segment = _Operation(calls.preview_segment)

    put_recipient = _Operation(calls.put_recipient)
    recipient = _Operation(calls.recipient)
    erase_recipient = _Operation(calls.erase_recipient)
    remove_address = _Operation(calls.remove_address)
    recipient_messages = _Operation(calls.recipient_messages)
    set_preferences = _Operation(calls.set_preferences)
    preferences = _Operation(calls.preferences)
    record_consents = _Operation(calls.record_consents)
    consents = _Operation(calls.consents)
    put_device = _Operation(calls.put_device)
    remove_device = _Operation(calls.remove_device)

    create_template_version = _Operation(calls.create_template_version)
    publish_template = _Operation(calls.publish_template)
    template = _Operation(calls.template)
    preview_template = _Operation(calls.preview_template)
    put_category = _Operation(calls.put_category)
    category = _Operation(calls.category)
    categories = _Operation(calls.categories)

    suppress = _Operation(calls.suppress)
    unsuppress = _Operation(calls.unsuppress)
    suppressions = _Operation(calls.suppressions)
    dead_letters = _Operation(calls.dead_letters)
    dead_letter = _Operation(calls.dead_letter)
    replay_dead_letter = _Operation(calls.replay_dead_letter)
    discard_dead_letter = _Operation(calls.discard_dead_letter)
    audit = _Operation(calls.audit)
    health = _Operation(calls.health)


class SendloomClient(_Operations):
    """Blocking. One per process is enough; it keeps its connections."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        retries: Retries | None = None,
        timeout: float = 10.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries or Retries()
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=timeout,
            transport=transport,
        )

    def __enter__(self) -> "SendloomClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Make the call, and make it again while that is safe and useful.

        Raises:
            SendloomError: the API refused.
            SendloomUnreachable: no answer came.
        """
        began, attempt = time.monotonic(), 1
        while True:
            wait: float | None
            try:
                answer = self._http.send(_request(self._http, call))
            except httpx.TransportError as e:
                spent = time.monotonic() - began
                wait = self._retries.wait(attempt, spent, None)
                if wait is None or not may_repeat(e, call.repeatable):
                    raise SendloomUnreachable(type(e).__name__) from e
            else:
                if answer.is_success:
                    return call.read(answer.content)
                error = _error(answer)
                wait = _wait(self._retries, call, attempt, time.monotonic() - began, answer)
                if wait is None:
                    raise error
            time.sleep(wait)
            attempt += 1


class AsyncSendloomClient(_Operations):
    """For asyncio. One per process is enough; it keeps its connections."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        retries: Retries | None = None,
        timeout: float = 10.0,
        limits: httpx.Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries or Retries()
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=timeout,
            limits=limits or httpx.Limits(max_connections=100, max_keepalive_connections=100),
            transport=transport,
        )

    async def __aenter__(self) -> "AsyncSendloomClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        """Make the call, and make it again while that is safe and useful.

        Raises:
            SendloomError: the API refused.
            SendloomUnreachable: no answer came.
        """
        began, attempt = time.monotonic(), 1
        while True:
            wait: float | None
            try:
                answer = await self._http.send(_request(self._http, call))
            except httpx.TransportError as e:
                spent = time.monotonic() - began
                wait = self._retries.wait(attempt, spent, None)
                if wait is None or not may_repeat(e, call.repeatable):
                    raise SendloomUnreachable(type(e).__name__) from e
            else:
                if answer.is_success:
                    return call.read(answer.content)
                error = _error(answer)
                wait = _wait(self._retries, call, attempt, time.monotonic() - began, answer)
                if wait is None:
                    raise error
            await asyncio.sleep(wait)
            attempt += 1


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    return http.build_request(
        call.method, call.path, content=call.body, headers=call.headers, params=call.params or None
    )


def _wait(
    retries: Retries, call: Call[Any], attempt: int, spent: float, answer: httpx.Response
) -> float | None:
    """After our own 429 or 503 every call may be repeated: the answer says so. What a proxy answers is a guess."""
    refused = answer.status_code in REFUSED_FOR_NOW
    if not refused and not (answer.status_code in BROKEN_ON_THE_WAY and call.repeatable):
        return None
    return retries.wait(attempt, spent, retry_after(answer))


def _error(answer: httpx.Response) -> SendloomError:
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        # Not ours: a proxy in between.
        problem = Problem(
            type="about:blank",
            title=answer.reason_phrase,
            status=answer.status_code,
            code=f"http_{answer.status_code}",
            detail="the answer was not a problem document",
        )
    return SendloomError(problem, retry_after(answer))
