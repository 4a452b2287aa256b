"""Named statements from `.sql` files. A section starts with `-- name: x`; `-- fragment: x` is text that `-- include: x` repeats."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

_SECTION = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*-- include: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


class Queries(Mapping[str, str]):
    """The statements of one file, by name. Comments stay in the file."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        found = list(_SECTION.finditer(text))
        ends = [section.start() for section in found[1:]] + [len(text)]
        sections = {
            "name": dict[str, str](),
            "fragment": dict[str, str](),
        }
        for section, end in zip(found, ends, strict=True):
            kind, name = section.groups()
            if name in sections[kind]:
                raise ValueError(f"{file}: {kind} {name} is there twice")
            sections[kind][name] = text[section.end() : end].strip()

        def include(match: re.Match[str]) -> str:
            if match[1] not in sections["fragment"]:
                raise ValueError(f"{file}: no fragment called {match[1]}")
            return sections["fragment"][match[1]]

        self._statements = MappingProxyType(
            {
                name: _COMMENT.sub("", _INCLUDE.sub(include, body)).strip().rstrip(";")
                for name, body in sections["name"].items()
            }
        )

    def __getitem__(self, name: str) -> str:
        try:
            return self._statements[name]
        except KeyError:
            raise KeyError(f"{self.file} has no statement called {name}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


@cache
def load(file: str) -> Queries:
    """The statements of `sql/<file>`."""
    return Queries(file, (resources.files("sendloom.stores.sql") / file).read_text("utf-8"))


@cache
def cql(file: str) -> Queries:
    """The statements of `cql/<file>`."""
    return Queries(file, (resources.files("sendloom.stores.cql") / file).read_text("utf-8"))


def files() -> list[str]:
    """Every file of statements there is; a test prepares them all."""
    return sorted(
        entry.name
        for entry in resources.files("sendloom.stores.sql").iterdir()
        if entry.name.endswith(".sql")
    )
