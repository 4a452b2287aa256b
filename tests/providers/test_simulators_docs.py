"""`docs/simulators.md` shows the tables as they are. To renew it: `python tests/providers/test_simulators_docs.py`."""

import re
from pathlib import Path

from sendloom.providers.simulators import behaviour, magic

PAGE = Path(__file__).parents[2] / "docs" / "simulators.md"
SECTIONS = {"switches": behaviour.markdown, "magic": magic.markdown}
OUTCOMES = re.compile(r"accepted|rejected|failed|unknown")


def renewed(text: str) -> str:
    for name, table in SECTIONS.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert mark, f"the page has lost its {name} section"
        assert end, f"the page's {name} section has no end"
        text = f"{before}{mark}{table()}\n{end}{after}"
    return text


def test_the_page_shows_the_tables_and_switches_as_they_are():
    text = PAGE.read_text("utf-8")
    assert renewed(text) == text, "renew it: python tests/providers/test_simulators_docs.py"
    for row in magic.MAIL:
        assert f"| `{row.name}` |" in text
    for number in magic.SMS:
        assert f"| `{number.phone}` |" in text


def test_every_outcome_a_call_can_have_has_a_recipient_in_both_tables():
    for table in (magic.MAIL, magic.SMS):
        found = {word for row in table for word in OUTCOMES.findall(row.outcome)}
        assert found == {"accepted", "rejected", "failed", "unknown"}


def test_names_and_numbers_are_unique_and_numbers_are_reserved_for_examples():
    assert len(magic.MAIL_BY_NAME) == len(magic.MAIL)
    assert len(magic.SMS_BY_PHONE) == len(magic.SMS)
    assert all(re.fullmatch(r"\+120255501\d\d", phone) for phone in magic.SMS_BY_PHONE)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in magic.MAIL_BY_NAME)


def test_a_row_that_stores_nothing_never_promises_acceptance():
    for row in magic.MAIL:
        assert row.stored or not row.outcome.startswith("accepted"), row.name
        assert not row.stored or row.outcome.startswith(("accepted", "unknown")), row.name


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
