"""Categories: what kinds of messages a tenant has, and how each is treated."""

from typing import Annotated

from fastapi import APIRouter, Path

from api.auditing import audited
from api.deps import Admin, PartsDep, Reader
from api.timing import timely
from schemas.api import NAME, CapAnswer, CategoryAnswer, CategoryRequest, Page
from schemas.kinds import MessageClass, UnknownPolicy
from sendloom.domain.frequency import describe, read_caps
from sendloom.domain.ladder import read_ladder
from sendloom.errors import Refusal
from sendloom.ports import Category

router = APIRouter(prefix="/v1/categories", tags=["categories"])

Name = Annotated[str, Path(pattern=NAME)]


@router.put("/{category}")
@timely
async def put(
    category: Name, body: CategoryRequest, caller: Admin, parts: PartsDep
) -> CategoryAnswer:
    """Create one, or change it. Its class is fixed: running messages wait in the lanes of it."""
    read_ladder(body.ladder)
    caps = [cap.model_dump() for cap in body.caps]
    read_caps(category, caps)
    marketing = body.message_class is MessageClass.MARKETING
    security = body.message_class is MessageClass.SECURITY
    if marketing and body.unknown_policy is UnknownPolicy.RESEND:
        raise Refusal(
            "bad_policy",
            "marketing never sends again what may have arrived",
            field="unknown_policy",
        )
    row = Category(
        tenant=caller.id,
        category=category,
        message_class=body.message_class,
        ladder=tuple(body.ladder),
        ttl_seconds=body.ttl_seconds,
        quiet_hours=marketing if body.quiet_hours is None else body.quiet_hours,
        consent_required=marketing if body.consent_required is None else body.consent_required,
        unknown_policy=body.unknown_policy
        or (UnknownPolicy.RESEND if security else UnknownPolicy.STOP),
        priority=body.priority,
        caps=tuple(caps),
        over_cap=body.over_cap,
    )
    await parts.catalog.put_category(row)
    await audited(parts, caller, "category.put", category)
    return _shown(row)


@router.get("/{category}")
@timely
async def show(category: Name, caller: Reader, parts: PartsDep) -> CategoryAnswer:
    """One category."""
    row = await parts.catalog.category(caller.id, category)
    if row is None:
        raise Refusal("not_found", f"there is no category {category}", status=404)
    return _shown(row)


@router.get("")
@timely
async def every(caller: Reader, parts: PartsDep) -> Page[CategoryAnswer]:
    """All categories, by name."""
    return Page(items=[_shown(row) for row in await parts.catalog.categories(caller.id)])


def _shown(row: Category) -> CategoryAnswer:
    return CategoryAnswer(
        category=row.category,
        message_class=row.message_class,
        ladder=list(row.ladder),
        ttl_seconds=row.ttl_seconds,
        quiet_hours=row.quiet_hours,
        consent_required=row.consent_required,
        unknown_policy=row.unknown_policy,
        priority=row.priority,
        caps=[
            CapAnswer(
                scope=cap["scope"],
                per=cap["per"],
                limit=cap.get("limit"),
                means=describe(cap.get("limit"), cap["per"]),
            )
            for cap in row.caps
        ],
        over_cap=row.over_cap,
    )
