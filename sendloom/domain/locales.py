"""Which of the languages there are is nearest to the one asked for."""

import re
from collections.abc import Iterable

from sendloom.errors import Refusal

_TAG = re.compile(r"[a-z]{2,3}(-[a-z]{4})?(-([a-z]{2}|[0-9]{3}))?(-[a-z0-9]{5,8})*", re.ASCII)


def canonical(tag: str) -> str:
    """`pt_br` → `pt-BR`; shape only, no list of languages."""
    parts = tag.strip().replace("_", "-").split("-")
    return "-".join(
        part.lower()
        if n == 0
        else part.title()
        if len(part) == 4
        else part.upper()
        if len(part) == 2
        else part.lower()
        for n, part in enumerate(parts)
    )


def validate_locale(tag: str, *, field: str = "locale") -> str:
    """The canonical tag.

    Raises:
        Refusal: `bad_locale`.
    """
    form = canonical(tag)
    if not _TAG.fullmatch(form.lower()):
        raise Refusal(
            "bad_locale",
            "this is not a language tag",
            field=field,
            fix="use a tag such as pt, pt-BR or zh-Hant-TW",
        )
    return form


def choose_locale(wanted: str | None, available: Iterable[str], default: str) -> tuple[str, bool]:
    """The nearest available locale, and whether that is less than what was asked for.

    `pt-BR`, then `pt`, then the default, then (a default without content) the first there is: never nothing, as long as
    there is one. A bad or unknown tag is one nobody wrote for, not an error.

    Raises:
        Refusal: `no_template`: there is no content at all.
    """
    here = {canonical(tag): tag for tag in sorted(available)}
    if not here:
        raise Refusal("no_template", "the template has no content for this channel", status=422)
    asked = canonical(wanted) if wanted else ""
    tag = asked
    while tag:
        if tag in here:
            return here[tag], tag != asked
        tag = tag.rpartition("-")[0]
    return here.get(canonical(default)) or next(iter(here.values())), bool(asked)
