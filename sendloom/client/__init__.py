"""The typed Python client. It imports `schemas` and httpx, nothing of the server.

with SendloomClient("http://127.0.0.1:8080", api_key) as sendloom:
    accepted = sendloom.send_notification(
        NotificationRequest(recipient_id="r-1", category="orders.placed", template_id="placed"), key="order-17-placed"
    )
"""

from sendloom.client.clients import AsyncSendloomClient, SendloomClient
from sendloom.client.errors import SendloomError, SendloomUnreachable
from sendloom.client.retries import Retries

__all__ = [
    "AsyncSendloomClient",
    "Retries",
    "SendloomClient",
    "SendloomError",
    "SendloomUnreachable",
]
