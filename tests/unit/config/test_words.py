import pytest

from steelrail.config.words import show, without_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:CANARY@127.0.0.1:1/", "http://...@127.0.0.1:1/"),
        ("http://CANARY@host", "http://...@host"),
        ("http://u:CAN/AR@Y@host/a", "http://...@host/a"),
        ("u:CANARY@host", "...@host"),
        ("https://host/x?X-Amz-Signature=CANARY", "https://host/x?..."),
        ("export HF_TOKEN=CANARY\nx", "export HF_TOKEN=...\nx"),
        ("nvcr.io#nvidia/pytorch:25.10", "nvcr.io#nvidia/pytorch:25.10"),
        ("name@example", "name@example"),
    ],
)
def test_what_can_be_a_secret_is_not_shown(text: str, shown: str) -> None:
    assert shown == without_secret(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "empty"),
        (True, "true"),
        ([], "an empty list"),
        ({"a": "CANARY"}, "a mapping"),
        (1.5, "1.5"),
        ("a", "'a'"),
    ],
)
def test_a_value_is_shown_in_the_words_of_the_file(value: object, shown: str) -> None:
    assert shown == show(value)
