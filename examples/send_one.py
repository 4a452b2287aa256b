"""Send one notification and read what became of it: `SENDLOOM_CLIENT__API_KEY=… python examples/send_one.py`."""

import os
import time
import uuid

from schemas.api import (
    AddressBody,
    CategoryRequest,
    NotificationRequest,
    RecipientRequest,
    TemplateVersionRequest,
)
from sendloom.client import SendloomClient

URL = os.environ.get("SENDLOOM_CLIENT__URL", "http://127.0.0.1:8080")


def main() -> None:
    with SendloomClient(URL, os.environ["SENDLOOM_CLIENT__API_KEY"]) as sendloom:
        sendloom.put_category(
            "orders.shipped",
            CategoryRequest.model_validate(
                {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 86_400}
            ),
        )
        sendloom.create_template_version(
            "order.shipped",
            TemplateVersionRequest.model_validate(
                {
                    "parts": [
                        {
                            "channel": "email",
                            "locale": "en",
                            "subject": "Order {{order}} is on its way",
                            "text": "Order {{order}} has left us.",
                        }
                    ],
                    "variables": {"order": {}},
                    "publish": True,
                }
            ),
            key="example-template-1",
        )
        sendloom.put_recipient(
            "ana",
            RecipientRequest(email=AddressBody(address="ana@example.com", verified=True)),
        )
        answer = sendloom.send_notification(
            NotificationRequest(
                recipient_id="ana",
                category="orders.shipped",
                template_id="order.shipped",
                variables={"order": "A-17"},
            ),
            key=f"order-A-17-shipped-{uuid.uuid4()}",
        )
        while (status := sendloom.notification(answer.id)).state == "pending":
            time.sleep(0.1)
        print(status.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
