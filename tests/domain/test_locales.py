"""The nearest language there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.domain.locales import canonical, choose_locale, validate_locale
from sendloom.errors import Refusal


def test_c58_a_language_nobody_wrote_for_gets_the_default_and_says_so():
    assert choose_locale("fr-CA", ["en"], "en") == ("en", True)


@pytest.mark.parametrize(
    ("wanted", "available", "chosen"),
    [
        ("pt-BR", ["pt-BR", "pt", "en"], ("pt-BR", False)),
        ("pt-BR", ["pt", "en"], ("pt", True)),
        ("pt-BR", ["en", "de"], ("en", True)),
        ("pt", ["pt-BR", "en"], ("en", True)),
        ("pt_br", ["pt-BR", "en"], ("pt-BR", False)),
        ("PT-BR", ["pt-br", "en"], ("pt-br", False)),
        ("zh-Hant-TW", ["zh-Hant", "zh", "en"], ("zh-Hant", True)),
        (None, ["en", "pt"], ("en", False)),
        ("", ["en", "pt"], ("en", False)),
        ("xx-not-a-locale", ["en", "pt"], ("en", True)),
        ("fr", ["de", "pt"], ("de", True)),
    ],
)
def test_the_chain_is_exact_then_parent_then_default_then_any(wanted, available, chosen):
    assert choose_locale(wanted, available, "en") == chosen


def test_no_content_at_all_is_refused():
    with pytest.raises(Refusal) as refused:
        choose_locale("en", [], "en")
    assert refused.value.code == "no_template"


@given(
    st.text(max_size=12) | st.none(),
    st.sets(st.sampled_from(["en", "pt", "pt-BR", "zh-Hant"]), min_size=1),
)
def test_there_is_always_an_answer_and_it_is_available(wanted, available):
    chosen, _ = choose_locale(wanted, available, "en")
    assert chosen in available


@pytest.mark.parametrize(
    ("tag", "form"),
    [("pt_br", "pt-BR"), ("ZH-hant-tw", "zh-Hant-TW"), ("EN", "en"), ("es-419", "es-419")],
)
def test_tags_have_one_spelling(tag, form):
    assert validate_locale(tag) == canonical(tag) == form


@pytest.mark.parametrize("tag", ["", "e", "english", "en-", "../en", "en US", "12"])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(Refusal, match="bad_locale"):
        validate_locale(tag)
