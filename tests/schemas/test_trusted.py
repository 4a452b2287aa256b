"""What is made without validation is what validation would have made."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import ValidationError

from schemas.notifications import DecisionKey, trusted_decision_key
from schemas.outcomes import Accepted, trusted_accepted
from schemas.wire import Wire

AT = datetime(2027, 3, 1, tzinfo=UTC)
ID = UUID(int=7)


@pytest.mark.parametrize(
    ("trusted", "validated"),
    [
        (
            trusted_decision_key("t", AT, ID, 1, 2, "r"),
            DecisionKey(
                tenant="t", frozen_at=AT, campaign_id=ID, shard=1, page=2, recipient_id="r"
            ),
        ),
        (
            trusted_accepted("smtp", "queue1"),
            Accepted(provider="smtp", provider_message_id="queue1"),
        ),
    ],
    ids=["decision key", "accepted"],
)
def test_a_trusted_model_is_the_same_model(trusted: Wire, validated: Wire) -> None:
    assert trusted == validated
    assert set(trusted.__dict__) == set(type(validated).model_fields)
    assert trusted.model_dump_json() == validated.model_dump_json()
    assert trusted.model_copy() == validated
    assert trusted.model_fields_set == validated.model_fields_set
    with pytest.raises(ValidationError):
        trusted.nothing = 1  # type: ignore[attr-defined]
