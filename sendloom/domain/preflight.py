"""Whether a launch can be: what a sample of rendered messages shows, and whether the numbers fit before the deadline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from schemas.kinds import Channel
from sendloom.domain.pacing import DEADLINE_RESERVE
from sendloom.domain.rendering import CompiledTemplate, RenderError, problems
from sendloom.errors import Refusal

SAMPLE = 100
"""Recipients that are rendered before launch."""
EXAMPLES = 5
"""Examples a refusal carries for each code."""

PREFLIGHT_FAILED = "preflight_failed"
DEADLINE_INFEASIBLE = "deadline_infeasible"


class Specimen(NamedTuple):
    """One recipient of the sample: an id, never an address."""

    recipient_id: str
    locale: str | None
    variables: Mapping[str, Any]
    channels: Sequence[Channel]


class Fault(NamedTuple):
    """What is wrong with one rendered message. `what` names the variable or the part, never a value."""

    code: str
    what: str
    channel: Channel
    recipient_id: str

    def __str__(self) -> str:
        what = f" {self.what}" if self.what else ""
        return f"{self.recipient_id}: {self.code}{what} ({self.channel})"


@dataclass(slots=True)
class Rehearsal:
    """What rendering the sample came to."""

    checked: int = 0
    faulty: int = 0
    """Recipients with a fault."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """A few examples for each code."""

    def add(self, faults: Sequence[Fault]) -> None:
        self.checked += 1
        self.faulty += bool(faults)
        for fault in faults:
            examples = self.faults.setdefault(fault.code, [])
            if len(examples) < EXAMPLES:
                examples.append(fault)

    @property
    def examples(self) -> list[str]:
        return [str(fault) for of_code in self.faults.values() for fault in of_code]

    def why(self) -> str:
        codes = ", ".join(sorted(self.faults))
        return f"{self.faulty} of {self.checked} recipients looked at would get no proper message: {codes}"


Lookup = Callable[[Channel, str | None], CompiledTemplate]


def rehearse(
    specimens: Iterable[Specimen], template: Lookup, shared: Mapping[str, Any]
) -> Rehearsal:
    """Render each for every channel it could get."""
    rehearsal = Rehearsal()
    for one in specimens:
        values = {**shared, **one.variables}
        rehearsal.add(
            [fault for channel in one.channels for fault in _faults(one, channel, template, values)]
        )
    return rehearsal


def _faults(
    one: Specimen, channel: Channel, template: Lookup, values: Mapping[str, Any]
) -> list[Fault]:
    try:
        rendered = template(channel, one.locale).render(values)
    except RenderError as e:
        # A field names a variable or a part; what it says of values stays here.
        what = (e.field or "").removeprefix("variables.")
        return [Fault(e.code, what, channel, one.recipient_id)]
    except Refusal as e:
        return [Fault(e.code, e.field or "", channel, one.recipient_id)]
    return [Fault(code, "", channel, one.recipient_id) for code in problems(rendered, channel)]


# --- the deadline -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for, and what providers have agreed to."""

    size: int
    start: datetime
    asked_rate: float | None = None
    agreed_rate: float | None = None
    """Recipients a second, of all channels together; None when none is agreed."""
    deadline: datetime | None = None
    expires_at: datetime | None = None
    last_wave: datetime | None = None
    """The latest local moment of the sample, for local-time waves."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When it would end. No known rate, no finish time."""

    rate_per_second: float | None = None
    finish_at: datetime | None = None
    refusal: str | None = None
    """Why the deadline cannot hold."""
    warnings: tuple[str, ...] = ()


def forecast(plan: Plan) -> Forecast:
    """Refuses what cannot hold, warns of what only just holds or was never agreed."""
    rate = min((r for r in (plan.asked_rate, plan.agreed_rate) if r is not None), default=None)
    warnings: list[str] = []
    if plan.deadline is not None and plan.deadline <= plan.start:
        return Forecast(rate, None, "the deadline is not after the start")
    finish = plan.last_wave
    if rate is not None:
        needed = timedelta(seconds=plan.size / rate)
        finish = _later_of(plan.start + needed, plan.last_wave)
        if plan.deadline is not None and plan.start + needed > plan.deadline:
            limit = "agreed with providers" if rate == plan.agreed_rate else "asked for"
            return Forecast(
                rate,
                finish,
                f"{plan.size} recipients at the {rate:g} a second {limit} take until"
                f" {finish:%Y-%m-%d %H:%M:%S} UTC, after the deadline",
            )
        if plan.deadline is not None and plan.start + needed * DEADLINE_RESERVE > plan.deadline:
            warnings.append("the deadline holds only if nothing has to be tried twice")
    elif plan.deadline is not None:
        warnings.append(
            "no rate is agreed with a provider, so whether the deadline holds is unknown"
        )
    if _after(plan.last_wave, plan.deadline):
        warnings.append("some time zones' moment is after the deadline: they get nothing")
    if _after(finish, plan.expires_at):
        warnings.append("it expires before it can be finished: the rest gets nothing")
    return Forecast(rate, None if rate is None else finish, None, tuple(warnings))


def _after(one: datetime | None, end: datetime | None) -> bool:
    return one is not None and end is not None and one > end


def _later_of(one: datetime, other: datetime | None) -> datetime:
    return one if other is None else max(one, other)


def needs_second_person(size: int, over: int | None, *, live: bool) -> bool:
    """Above the tenant's size somebody else must approve. What never leaves needs nobody."""
    return live and over is not None and size > over


def agreed_rate(rates: object, channels: Sequence[Channel]) -> float | None:
    """Recipients a second on the first rung, which carries nearly everybody; None when nothing is agreed for it.

    `rates` is as in a tenant's settings: a number a second by channel.
    """
    if not isinstance(rates, Mapping) or not channels:
        return None
    first = rates.get(channels[0])
    return float(first) if isinstance(first, int | float) and first > 0 else None
