"""Templates: versions that never change once published, and what a real recipient would get."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.auditing import audited
from api.auth import Caller
from api.deps import Admin, IdempotencyKey, Parts, PartsDep, Reader
from api.recipients import require
from api.timing import timely
from schemas.api import (
    NAME,
    PreviewAnswer,
    PreviewRequest,
    TemplatePartAnswer,
    TemplateVersionAnswer,
    TemplateVersionRequest,
)
from sendloom.domain.locales import choose_locale, validate_locale
from sendloom.domain.rendering import compile_template
from sendloom.errors import Refusal
from sendloom.ports import TemplateParts
from sendloom.rows import PartWrite, TemplateVersion

router = APIRouter(prefix="/v1/templates", tags=["templates"])

TemplateId = Annotated[str, Path(pattern=NAME)]


@router.post("/{template_id}/versions", status_code=201)
@timely
async def create_version(
    template_id: TemplateId,
    body: TemplateVersionRequest,
    caller: Admin,
    parts: PartsDep,
    key: IdempotencyKey,
) -> TemplateVersionAnswer:
    """Add a version. Everything that can go wrong when it is rendered is refused here. The same content is the same version."""
    variables = {
        name: {} if about.default is None else {"default": about.default}
        for name, about in body.variables.items()
    }
    default_locale = validate_locale(body.default_locale, field="default_locale")
    writes = []
    for n, part in enumerate(body.parts):
        try:
            compile_template(
                part.channel,
                subject=part.subject,
                text=part.text,
                html=part.html,
                variables=variables,
            )
            locale = validate_locale(part.locale)
        except Refusal as e:
            e.field = f"parts.{n}.{e.field}" if e.field else f"parts.{n}"
            raise
        writes.append(PartWrite(part.channel, locale, part.subject, part.text, part.html))
    version = await _same(parts, caller, template_id, variables, default_locale, writes)
    if version is None:
        version = await parts.catalog.add_template_version(
            caller.id, template_id, variables, default_locale, writes
        )
        await audited(parts, caller, "template.create", f"{template_id}/{version}", key=key)
    if body.publish:
        await _publish(parts, caller, template_id, version)
    return await _shown(parts, caller, template_id, version)


async def _same(
    parts: Parts,
    caller: Caller,
    template_id: str,
    variables: dict[str, dict[str, str]],
    default_locale: str,
    writes: list[PartWrite],
) -> int | None:
    """The newest version, if it says exactly this: a repeated request makes nothing new."""
    versions = await parts.catalog.template_versions(caller.id, template_id)
    newest = max(versions, key=lambda v: v.version, default=None)
    if newest is None or newest.default_locale != default_locale or newest.variables != variables:
        return None
    stored = await parts.catalog.template_parts(caller.id, template_id, newest.version)
    theirs = {PartWrite(p.channel, p.locale, p.subject, p.text, p.html) for p in stored}
    return newest.version if theirs == set(writes) and len(writes) == len(theirs) else None


@router.post("/{template_id}/versions/{version}/publish")
@timely
async def publish(
    template_id: TemplateId, version: int, caller: Admin, parts: PartsDep
) -> TemplateVersionAnswer:
    """From now on requests get this version. What was accepted before keeps its own."""
    await _publish(parts, caller, template_id, version)
    return await _shown(parts, caller, template_id, version)


async def _publish(parts: Parts, caller: Caller, template_id: str, version: int) -> None:
    if not await parts.catalog.publish(caller.id, template_id, version):
        raise _no_version(template_id, version)
    await audited(parts, caller, "template.publish", f"{template_id}/{version}")


@router.get("/{template_id}")
@timely
async def show(
    template_id: TemplateId,
    caller: Reader,
    parts: PartsDep,
    version: Annotated[int | None, Query(description="The current one when not given.")] = None,
) -> TemplateVersionAnswer:
    """One version with its parts."""
    return await _shown(parts, caller, template_id, version)


async def _shown(
    parts: Parts, caller: Caller, template_id: str, version: int | None
) -> TemplateVersionAnswer:
    about = await _version(parts, caller, template_id, version)
    stored = await parts.catalog.template_parts(caller.id, template_id, about.version)
    return TemplateVersionAnswer(
        template_id=template_id,
        version=about.version,
        published=about.published_at is not None,
        current=about.current,
        default_locale=about.default_locale,
        variables={name: dict(v) for name, v in about.variables.items()},
        parts=[
            TemplatePartAnswer(
                channel=p.channel, locale=p.locale, subject=p.subject, text=p.text, html=p.html
            )
            for p in stored
        ],
    )


async def _version(
    parts: Parts, caller: Caller, template_id: str, version: int | None
) -> TemplateVersion:
    for about in await parts.catalog.template_versions(caller.id, template_id):
        if about.current if version is None else about.version == version:
            return about
    raise _no_version(template_id, version)


def _no_version(template_id: str, version: int | None) -> Refusal:
    which = "published version" if version is None else f"version {version}"
    return Refusal("not_found", f"template {template_id} has no {which}", status=404)


@router.post("/{template_id}/preview")
@timely
async def preview(
    template_id: TemplateId, body: PreviewRequest, caller: Reader, parts: PartsDep
) -> PreviewAnswer:
    """What this recipient would get on this channel, with its size. Nothing is sent."""
    recipient = await require(parts, caller, body.recipient_id)
    about = await _version(parts, caller, template_id, body.version)
    stored = await parts.catalog.template_parts(caller.id, template_id, about.version)
    by_locale: dict[str, TemplateParts] = {
        part.locale: part for part in stored if part.channel is body.channel
    }
    wanted = recipient.locale or caller.tenant.default_locale
    locale, fallback = choose_locale(wanted, by_locale, about.default_locale)
    part = by_locale[locale]
    shown = compile_template(
        part.channel,
        subject=part.subject,
        text=part.text,
        html=part.html,
        variables=part.variables,
    ).preview(body.variables)
    return PreviewAnswer(
        channel=body.channel,
        locale=locale,
        locale_fallback=fallback,
        version=about.version,
        subject=shown.rendered.subject,
        text=shown.rendered.text,
        html=shown.rendered.html,
        bytes=shown.bytes,
        sms_segments=shown.sms.segments if shown.sms else None,
        sms_encoding=shown.sms.encoding if shown.sms else None,
    )
