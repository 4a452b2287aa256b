"""Choose recipients by their attributes and send to them: `SENDLOOM_CLIENT__API_KEY=… python examples/segment.py`.

Needs the category and template that `examples/campaign.py` makes.
"""

import os
import time
import uuid
from collections.abc import Mapping

from schemas.api import AddressBody, AudienceOf, CampaignRequest, ConsentBody, RecipientRequest
from schemas.kinds import CampaignPhase, RecipientState
from sendloom.client import SendloomClient

URL = os.environ.get("SENDLOOM_CLIENT__URL", "http://127.0.0.1:8080")
PEOPLE = 20
PRO_IN_GERMAN = {
    "all": [
        {"attribute": "plan", "eq": "pro"},
        {"attribute": "logins", "gte": 10},
        {"locale": "de"},
        {"not": {"attribute": "churned", "eq": True}},
    ]
}


def shown(counts: Mapping[RecipientState, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "nobody yet"


def main() -> None:
    run = uuid.uuid4().hex[:6]
    with SendloomClient(URL, os.environ["SENDLOOM_CLIENT__API_KEY"]) as sendloom:
        for n in range(PEOPLE):
            sendloom.put_recipient(
                f"s{n:02d}",
                RecipientRequest(
                    locale=("de-AT", "en")[n % 2],
                    attributes={"plan": "pro", "logins": n, "churned": n == 12},
                    email=AddressBody(address=f"s{n}@example.com", verified=True),
                ),
            )
            consent = ConsentBody(
                category="offers.weekly", source="sign-up form", wording="Yes, write to me."
            )
            sendloom.record_consents(f"s{n:02d}", [consent])
        print(sendloom.preview_segment(PRO_IN_GERMAN))
        sendloom.put_segment("pro-german", PRO_IN_GERMAN, "Pro, in German")
        campaign = sendloom.create_campaign(
            CampaignRequest(
                name=f"Segment {run}",
                category="offers.weekly",
                template_id="letter",
                audience=AudienceOf(segment="pro-german"),
            ),
            key=f"segment-{run}",
        )
        ended = {CampaignPhase.COMPLETED, CampaignPhase.CANCELLED, CampaignPhase.FAILED}
        while (status := sendloom.campaign(campaign.id)).phase not in ended:
            print(status.phase, shown(status.counts))
            time.sleep(1)
        print(status.phase, status.reason, shown(status.counts), status.reasons)


if __name__ == "__main__":
    main()
