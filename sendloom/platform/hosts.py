"""Addresses of a cluster, as settings write them."""

CASSANDRA_PORT = 9042


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """`host[:port],…` with one port for all.

    Raises:
        ValueError: it is nothing like that.
    """
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = word.partition(":")
        if not host or (port and not port.isdecimal()):
            raise ValueError("must be host:port,host:port,…")
        found.append((host, int(port or CASSANDRA_PORT)))
    if len({port for _, port in found}) != 1:
        raise ValueError("must name at least one host, and one port for all")
    return tuple(found)
