"""The API over real stores, with Temporal faked, and two tenants that must not know of each other."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from api.app import create_app
from api.auth import KeyKind, Scope, bearer, hash_secret, new_credential
from api.deps import Parts
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.ports import ApiKey, Tenant
from sendloom.settings import Settings
from tests.api.fakes import FakeWorkflows
from tests.conftest import MakeSettings

ALL = (Scope.SEND, Scope.CAMPAIGNS, Scope.SUPPORT, Scope.OPS, Scope.ADMIN)


@dataclass
class Account:
    """One tenant's way to the API."""

    parts: Parts
    http: httpx.AsyncClient
    tenant: str
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **params: Any) -> httpx.Response:
        return await self.http.get(path, headers=self.headers, params=params)

    async def put(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return await self.http.put(path, json=body, headers=self.headers, **more)

    async def delete(self, path: str) -> httpx.Response:
        return await self.http.delete(path, headers=self.headers)

    async def post(
        self, path: str, body: Any = None, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = self.headers if key is None else {**self.headers, "Idempotency-Key": key}
        return await self.http.post(path, json=body, headers=headers, **more)

    async def raw(self, method: str, path: str, content: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(
            method, path, content=content, headers={**self.headers, **named}
        )

    async def key(
        self,
        kind: KeyKind = KeyKind.LIVE,
        scopes: Iterable[str] = ALL,
        categories: Iterable[str] | None = None,
        expires_at: datetime | None = None,
    ) -> "Account":
        """The same tenant through another key."""
        credential = new_credential(kind, self.tenant)
        await self.parts.catalog.add_key(  # type: ignore[attr-defined]
            ApiKey(
                self.tenant,
                credential.key_id,
                kind,
                frozenset(scopes),
                None if categories is None else frozenset(categories),
            ),
            hash_secret(credential.secret),
            expires_at=expires_at,
        )
        return dataclasses.replace(self, headers={"Authorization": f"Bearer {bearer(credential)}"})

    async def set_up(self) -> None:
        """Categories, templates and the recipient `r-1` (email and phone, verified)."""
        made = await asyncio.gather(
            *(self.put(f"/v1/categories/{name}", body) for name, body in CATEGORIES.items()),
            *(
                self.post(f"/v1/templates/{name}/versions", body, key=name)
                for name, body in TEMPLATES.items()
            ),
            self.put("/v1/recipients/r-1", RECIPIENT),
        )
        assert all(answer.is_success for answer in made), [answer.text for answer in made]


CATEGORIES: dict[str, dict[str, Any]] = {
    "security.otp": {"message_class": "security", "ladder": ["sms", "email"], "ttl_seconds": 300},
    "orders": {"message_class": "transactional", "ladder": ["email", "sms"], "ttl_seconds": 3600},
    "offers": {"message_class": "marketing", "ladder": ["email"], "ttl_seconds": 86400},
}

TEMPLATES: dict[str, dict[str, Any]] = {
    "otp": {
        "variables": {"code": {}},
        "parts": [
            {"channel": "sms", "locale": "en", "text": "Your code is {{code}}"},
            {"channel": "email", "locale": "en", "subject": "Code", "text": "Code {{code}}"},
        ],
        "publish": True,
    },
    "placed": {
        "variables": {"order": {}, "name": {"default": "there"}},
        "parts": [
            {
                "channel": "email",
                "locale": "en",
                "subject": "Order {{order}}",
                "text": "Hello {{name}}, we have order {{order}}.",
                "html": "<p>Hello {{name}}, we have order {{order}}.</p>",
            },
        ],
        "publish": True,
    },
}

RECIPIENT = {
    "locale": "en",
    "zone": "Europe/Berlin",
    "email": {"address": "ada@example.com", "verified": True},
    "phone": {"address": "+12025550143", "verified": True},
}


def notification(**changes: Any) -> dict[str, Any]:
    return {
        "recipient_id": "r-1",
        "category": "orders",
        "template_id": "placed",
        "variables": {"order": "17"},
        **changes,
    }


ON_A_BUSY_MACHINE = 30.0
"""Seconds. What a request may take is measured where nothing else runs; here only `test_outages` is about time."""

# One loop, application and pool a module: what a test needs of its own is a tenant.
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


HERE = Path(__file__).parent


@shared
async def faked() -> FakeWorkflows:
    return FakeWorkflows()


@pytest.fixture
def workflows(faked: FakeWorkflows) -> FakeWorkflows:
    """Temporal for this test: nothing has been started yet."""
    faked.forget()
    return faked


@pytest.fixture(scope="module")
def api_settings(
    make_settings: MakeSettings, database: str, valkey_server: EmbeddedValkey
) -> Settings:
    return make_settings(postgres=database, redis=valkey_server.url)


@shared
async def app(api_settings: Settings, faked: FakeWorkflows) -> AsyncIterator[FastAPI]:
    app = create_app(api_settings, faked, answer_within=ON_A_BUSY_MACHINE)
    async with app.router.lifespan_context(app):
        yield app


@shared
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://api.test", timeout=ON_A_BUSY_MACHINE
    ) as client:
        yield client


@shared
async def parts(app: FastAPI) -> Parts:
    found: Parts = app.state.parts
    return found


@shared
async def new_account(parts: Parts, http: httpx.AsyncClient) -> Callable[..., Any]:
    """A fresh tenant with one all-powerful live key."""

    async def make(tenant: str | None = None, **settings: Any) -> Account:
        name = tenant or f"t-{uuid4().hex[:12]}"
        await parts.catalog.put_tenant(  # type: ignore[attr-defined]
            Tenant(
                tenant=name,
                name="Example",
                default_zone="UTC",
                default_locale="en",
                default_region="US",
                email_from="news@example.com",
                email_from_name="Example",
                sms_from="+12025550100",
                quiet_start=time(22),
                quiet_end=time(8),
                settings=settings,
                disabled=False,
            )
        )
        return await Account(parts, http, name).key()

    return make


@pytest_asyncio.fixture(loop_scope="module")
async def account(new_account: Callable[..., Any], faked: FakeWorkflows) -> Account:
    faked.forget()
    made: Account = await new_account()
    await made.set_up()
    return made


def code_of(response: httpx.Response) -> tuple[int, str]:
    """What a refusal is told by."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


def in_the_past() -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC)
