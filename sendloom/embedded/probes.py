"""Whether a server answers. Blocking, quick, never raising: the supervisor asks from a thread, tests ask directly."""

import http.client
import socket
from urllib.parse import urlsplit

_SECONDS = 1.0


def tcp_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _SECONDS):
            return True
    except OSError:
        return False


def valkey_answers(host: str, port: int) -> bool:
    """False while it still loads its dump, too."""
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            connection.settimeout(_SECONDS)
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def cql_answers(host: str, port: int) -> bool:
    """Whether Cassandra says what it supports, which it does once it is part of its ring."""
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            connection.settimeout(_SECONDS)
            connection.sendall(b"\x04\x00\x00\x00\x05\x00\x00\x00\x00")  # version 4, OPTIONS
            return connection.recv(64)[4:5] == b"\x06"  # SUPPORTED
    except OSError:
        return False


def http_ok(url: str, seconds: float = _SECONDS) -> bool:
    """Whether GET answers 200 in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
