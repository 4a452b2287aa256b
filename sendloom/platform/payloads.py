"""What Temporal stores for us, sealed: inputs, results, heartbeats, memos and failure messages."""

import dataclasses
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
)

from sendloom.platform.sealing import KeyRing

ENCODING = b"binary/sendloom-sealed"
_PURPOSE = "temporal-payload"


class SealingCodec(PayloadCodec):
    """AES-GCM around every payload. Old histories open for as long as their key is in the ring."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={"encoding": ENCODING, "sendloom-key": self._ring.current.encode()},
                # The tenant is not known here; the purpose keeps a payload from passing as a sealed column.
                data=self._ring.seal(payload.SerializeToString(), purpose=_PURPOSE, tenant=""),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decode(payload) for payload in payloads]

    def _decode(self, payload: Payload) -> Payload:
        # What Temporal's own tools wrote (a signal from the UI) is not sealed and passes as it is.
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        return Payload.FromString(self._ring.open(payload.data, purpose=_PURPOSE, tenant=""))


def data_converter(ring: KeyRing) -> DataConverter:
    """The one converter of every client, worker and replayer."""
    return dataclasses.replace(
        pydantic_data_converter,
        payload_codec=SealingCodec(ring),
        # Without this the message and stack trace of a failure stay readable in the history.
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
