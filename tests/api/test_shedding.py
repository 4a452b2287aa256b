"""A process with too much to do refuses marketing and takes passcodes (LANE-4)."""

from api.deps import Parts
from api.limits import IN_FLIGHT_ROOM
from tests.api.conftest import Account, code_of, notification
from tests.api.fakes import FakeWorkflows
from tests.api.test_campaigns import campaign, with_list


async def test_marketing_is_refused_with_when_to_come_back_and_security_is_taken(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    await with_list(account)
    for _ in range(IN_FLIGHT_ROOM):
        parts.load.began()
    try:
        for path, body in (("campaigns", campaign()), ("notifications", notification())):
            answer = await account.post(f"/v1/{path}", body, key="busy")
            assert code_of(answer) == (429, "overloaded")
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.headers["RateLimit"].startswith('"load"')
        assert workflows.started == []
        passcode = {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"}
        assert (await account.post("/v1/passcodes", passcode, key="code")).status_code == 202
    finally:
        for _ in range(IN_FLIGHT_ROOM):
            parts.load.ended(200, 0.0)
    # The same key, once there is room.
    assert (await account.post("/v1/campaigns", campaign(), key="busy")).status_code == 202
