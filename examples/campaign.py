"""Upload a list, run a campaign, pause and resume it: `SENDLOOM_CLIENT__API_KEY=… python examples/campaign.py`."""

import json
import os
import time
import uuid
from collections.abc import Mapping

from schemas.api import CampaignRequest, CategoryRequest, TemplateVersionRequest
from schemas.kinds import CampaignPhase, RecipientState
from sendloom.client import SendloomClient

URL = os.environ.get("SENDLOOM_CLIENT__URL", "http://127.0.0.1:8080")
PEOPLE = 500


def people() -> bytes:
    consent = {
        "source": "sign-up form",
        "at": "2026-01-15T10:00:00Z",
        "wording": "Yes, write to me.",
        "categories": ["offers.weekly"],
    }
    return b"".join(
        json.dumps(
            {
                "recipient_id": f"e{n:04d}",
                "email": f"e{n}@example.com",
                "locale": "en",
                "consent": consent,
                "variables": {"name": f"Reader {n}"},
            }
        ).encode()
        + b"\n"
        for n in range(PEOPLE)
    )


def shown(counts: Mapping[RecipientState, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "nobody yet"


def main() -> None:
    run = uuid.uuid4().hex[:6]
    with SendloomClient(URL, os.environ["SENDLOOM_CLIENT__API_KEY"]) as sendloom:
        sendloom.put_category(
            "offers.weekly",
            CategoryRequest.model_validate(
                {"message_class": "marketing", "ladder": ["email"], "ttl_seconds": 86_400}
            ),
        )
        sendloom.create_template_version(
            "letter",
            TemplateVersionRequest.model_validate(
                {
                    "parts": [
                        {
                            "channel": "email",
                            "locale": "en",
                            "subject": "Hello {{name}}",
                            "text": "Hello {{name}}, here is your letter.",
                        }
                    ],
                    "variables": {"name": {"default": "reader"}},
                    "publish": True,
                }
            ),
            key=f"letter-{run}",
        )
        sendloom.put_list("readers", "Readers")
        version = sendloom.start_upload("readers", key=f"readers-{run}")
        sendloom.put_chunk("readers", version.version_id, 0, people())
        sendloom.make_ready("readers", version.version_id)
        campaign = sendloom.create_campaign(
            CampaignRequest(
                name=f"Example {run}",
                category="offers.weekly",
                template_id="letter",
                list_id="readers",
                rate_per_second=100,
            ),
            key=f"campaign-{run}",
        )
        time.sleep(2)
        sendloom.pause_campaign(campaign.id, "to show it")
        print("paused at", shown(sendloom.campaign(campaign.id).counts))
        sendloom.resume_campaign(campaign.id)
        while (status := sendloom.campaign(campaign.id)).phase is not CampaignPhase.COMPLETED:
            print(status.phase, shown(status.counts))
            time.sleep(1)
        print("done", shown(status.counts), status.reasons)


if __name__ == "__main__":
    main()
