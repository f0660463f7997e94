from __future__ import annotations

import os
from pathlib import Path

import pytest

from activault.store.aws import has_credentials, s3_options


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor profiles of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def write_profiles(home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/config").write_text(
        "[default]\nregion = eu-west-1\n[profile lab]\nendpoint_url = http://lab:9000\n"
    )
    (home / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = k\naws_secret_access_key = s%1\naws_session_token = t\n"
    )


def test_nothing_set_is_anonymous() -> None:
    assert s3_options() == ({"skip_signature": True}, {})
    assert not has_credentials()


def test_whoever_asks_for_signatures_gets_the_machines_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "false")
    assert s3_options() == ({}, {})


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_credentials_in_variables_are_left_to_obstore(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    write_profiles(tmp_path)
    monkeypatch.setenv(name, "x")
    assert s3_options() == ({"region": "eu-west-1"}, {})
    assert has_credentials()


def test_the_default_profile(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    config, client = s3_options()
    assert config == {
        "region": "eu-west-1",
        "access_key_id": "k",
        "secret_access_key": "s%1",
        "session_token": "t",
    }
    assert client == {}
    assert has_credentials()


def test_another_profile_with_an_endpoint_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(tmp_path)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert s3_options() == ({"endpoint": "http://lab:9000", "skip_signature": True}, {"allow_http": True})


def test_an_http_endpoint_is_allowed_unless_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_options()[1] == {"allow_http": True}
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    assert s3_options()[1] == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://example.org")
    assert s3_options()[1] == {}


def test_a_profile_that_cannot_be_parsed_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("no section\n")
    assert s3_options() == ({"skip_signature": True}, {})
