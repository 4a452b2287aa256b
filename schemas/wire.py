"""The base of everything that travels between processes."""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Frozen; unknown fields are ignored so that an older process reads a newer message.

    New fields get defaults; a field that running workflows carry is never removed or retyped.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
