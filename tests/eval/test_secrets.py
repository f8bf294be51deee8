"""What is hidden, and what only looks like a secret."""

import pytest

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.secrets import HIDDEN, hide, hide_in_flags, is_secret, without_secrets


@pytest.mark.parametrize(
    "key",
    [
        *("token", "hub_token", "HF_TOKEN", "use_auth_token", "api_key", "OPENAI_API_KEY", "apikey", "db_password"),
        *("secret_key", "private_key", "credentials", "Authorization", "X-Api-Key", "bearer_token"),
    ],
)
def test_keys_of_secrets_are_known(key):
    assert is_secret(key)


@pytest.mark.parametrize("key", ["pad_token", "eos_token", "max_tokens", "tokenizer", "monkey", "seed", "key"])
def test_tokens_of_a_vocabulary_are_no_secrets(key):
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://me:pass@host/v1", f"at http://{HIDDEN}@host/v1"),
        ("at http://tokenonly@host", f"at http://{HIDDEN}@host"),
        ("http://u:p@ss@host:80/a@b and c@d", f"http://{HIDDEN}@host:80/a@b and c@d"),
        ("abfs://box@account.net/a, abfss://box@b", "abfs://box@account.net/a, abfss://box@b"),
        ("abfs://box:secret@account.net/a", f"abfs://{HIDDEN}@account.net/a"),
        ("http://host/a@b, someone@example.org", "http://host/a@b, someone@example.org"),
        ("https://h/f?a=1&api_key=xyz&b=2", f"https://h/f?a=1&api_key={HIDDEN}&b=2"),
        ("https://h/f?X-Amz-Signature=xyz", f"https://h/f?X-Amz-Signature={HIDDEN}"),
        ("https://h/f?page=2&q=a", "https://h/f?page=2&q=a"),
    ],
)
def test_a_password_in_a_url_is_hidden(text, shown):
    assert hide(text) == shown


def test_secrets_of_the_environment_are_hidden_wherever_they_appear(monkeypatch, capsys):
    monkeypatch.setenv("SOME_API_KEY", "sk-planted-0")
    assert hide("401 for sk-planted-0") == f"401 for {HIDDEN}"
    say("401 for sk-planted-0 at http://a:b@c")
    assert capsys.readouterr().out == f"401 for {HIDDEN} at http://{HIDDEN}@c\n"
    assert str(ConfigError("no http://a:b@c")) == f"no http://{HIDDEN}@c"


def test_nested_values_keep_everything_but_their_secrets():
    given = {"a": [{"api_key": "x", "n": 1}, ("http://u:p@h",)], "token": None, "use_auth_token": True, "password": ""}
    assert without_secrets(given) == {**given, "a": [{"api_key": HIDDEN, "n": 1}, (f"http://{HIDDEN}@h",)]}


def test_flags_keep_everything_but_their_secrets():
    words = ["--hub_token", "x", "--hub-token=x", "--explorer.api_key", "x", "--seed", "1", "--resume", "--beta", "0.1"]
    shown = ["--hub_token", HIDDEN, f"--hub-token={HIDDEN}", "--explorer.api_key", HIDDEN, *words[5:]]
    assert hide_in_flags(words) == shown
    given = ["--train_args", '{"api_key": "x", "n": 1}', '--probe_args={"n":2}', "--model_init_kwargs", "{not json"]
    assert hide_in_flags(given) == ["--train_args", '{"api_key": "<hidden>", "n": 1}', *given[2:]]
