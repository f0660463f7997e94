"""How S3 is reached: the usual AWS_* variables, then the profile in ~/.aws, then anonymously.

obstore reads the variables itself; here is what it leaves out.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any, Final

__all__ = ["has_credentials", "s3_options"]

# Any of these set: obstore finds credentials by itself.
_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def s3_options() -> tuple[dict[str, Any], dict[str, Any]]:
    """`(config, client options)` for obstore's `S3Store`, beyond the variables that it reads."""
    config: dict[str, Any] = {}
    profile = _profile()
    if not _first("AWS_REGION", "AWS_DEFAULT_REGION") and "region" in profile:
        config["region"] = profile["region"]
    endpoint = _first(*_ENDPOINTS)
    if not endpoint and "endpoint_url" in profile:
        endpoint = config["endpoint"] = profile["endpoint_url"]
    if not _first(*_CREDENTIALS):
        if _has_key(profile):
            config["access_key_id"] = profile["aws_access_key_id"]
            config["secret_access_key"] = profile["aws_secret_access_key"]
            if "aws_session_token" in profile:
                config["session_token"] = profile["aws_session_token"]
        elif not _first("AWS_SKIP_SIGNATURE"):
            # Else obstore would look for a role of this machine, which away from AWS takes minutes to fail.
            config["skip_signature"] = True
    # Whoever names an http:// endpoint means it.
    allow = endpoint.startswith("http://") and not _first("AWS_ALLOW_HTTP")
    return config, {"allow_http": True} if allow else {}


def has_credentials() -> bool:
    """Whether requests are signed."""
    return bool(_first(*_CREDENTIALS)) or _has_key(_profile())


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _has_key(profile: dict[str, str]) -> bool:
    return "aws_access_key_id" in profile and "aws_secret_access_key" in profile


def _profile() -> dict[str, str]:
    """Settings of the chosen profile in AWS's two files; empty where there are none that can be read."""
    name = _first("AWS_PROFILE") or "default"
    home = Path("~/.aws").expanduser()
    config = Path(_first("AWS_CONFIG_FILE") or home / "config")
    credentials = Path(_first("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    found: dict[str, str] = {}
    for file, section in ((config, name if name == "default" else f"profile {name}"), (credentials, name)):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeError):
            continue
        if parser.has_section(section):
            found |= dict(parser[section])
    return found
