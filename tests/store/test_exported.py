from __future__ import annotations

import re
from pathlib import Path

import activault.store as room

NAMES = """
AccessDeniedError ActivationLoader ActivaultError Batch ChannelStats ConfigError CorruptStoreError
FORMAT_VERSION Fault ImageSourceError IncompleteStoreError KINDS Manifest MissingExtraError NonFiniteError
NotAStoreError Outcome PrecisionError Preprocessing RunError ShardBuffer ShardBusyError ShardRecord
ShardTakenError SourceInfo StorageError Store StoreError StoreMismatchError StoreWriter StoredDtype
TeacherInfo TokenKind TokenLayout UnreachableError VerifyReport WeightsError choose_grid create_store
hold_out_rows layer_name merge open_store parse_kinds parse_layers plan_samples publish pull split_of
split_rows verify_store
"""


def test_the_public_names_are_these() -> None:
    assert sorted(room.__all__) == sorted(NAMES.split())
    assert all(getattr(room, name) is not None for name in room.__all__)


def test_every_error_of_a_store_is_among_them() -> None:
    from activault.store import errors

    assert set(errors.__all__) <= set(room.__all__)


def test_every_file_is_on_the_map_once() -> None:
    assert room.__doc__ is not None
    assert room.__file__ is not None
    map_ = room.__doc__.partition("A map of the room")[2]
    named = re.findall(r"[a-z_]+(?=[,;]|\n| \()", re.sub(r"\([^)]*\)", "()", map_))
    files = {file.stem for file in Path(room.__file__).parent.glob("*.py")} - {"__init__"}
    assert sorted(name for name in named if name in files) == sorted(files)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(room, "Loader")
