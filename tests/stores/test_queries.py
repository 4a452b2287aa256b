"""The files of statements."""

import pytest

from sendloom.stores import queries
from sendloom.stores.pool import Pool, open_pool

STATEMENTS = [(file, name) for file in queries.files() for name in queries.load(file)]


@pytest.mark.parametrize(("file", "name"), STATEMENTS, ids=lambda value: value)
async def test_every_statement_is_understood_by_postgres(file: str, name: str, pool: Pool) -> None:
    async with pool.acquire() as connection:
        await connection.prepare(queries.load(file)[name])


async def test_no_statement_makes_the_driver_ask_about_its_types(database: str) -> None:
    """It asks once, when a connection is opened, and not in the middle of somebody's passcode."""
    pool = await open_pool(database, 1, "types")
    asked: list[str] = []
    async with pool.acquire() as connection:
        connection.add_query_logger(lambda record: asked.append(record.query))
        for file, name in STATEMENTS:
            await connection.prepare(queries.load(file)[name])
        await connection.fetch("SELECT $1::inet[]", [])
    await pool.close()
    about_types = [query for query in asked if "typeinfo" in query]
    assert len(about_types) == 1, "only for the one type that we do not use"


def test_a_fragment_is_repeated_where_it_is_included() -> None:
    text = "-- fragment: f\na, b\n\n-- name: q\n-- why\nSELECT\n  -- include: f\nFROM t;\n"
    assert queries.Queries("x.sql", text)["q"] == "SELECT\na, b\nFROM t"


@pytest.mark.parametrize(
    "text",
    ["-- name: q\nSELECT 1\n-- name: q\nSELECT 2\n", "-- name: q\n-- include: nothing\n"],
)
def test_a_name_twice_and_a_missing_fragment_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x\.sql"):
        queries.Queries("x.sql", text)


def test_a_statement_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="nothing"):
        queries.Queries("x.sql", "-- name: q\nSELECT 1")["nothing"]
