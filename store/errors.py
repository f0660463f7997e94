"""Every error that activault raises on purpose, drawn once.

    ActivaultError
    ├── ConfigError (also ValueError)      the request itself is wrong: a bad option, recipe or argument
    ├── MissingExtraError (also ImportError)  the command needs an extra that is not installed
    ├── WeightsError                       a teacher's weights are absent, altered or do not fit
    ├── ImageSourceError                   the image source has nothing that can be read
    ├── RunError                           a training run's folder or checkpoint cannot be used
    └── StoreError
        ├── NotAStoreError                 the path exists and is not a store, or does not exist
        ├── StoreMismatchError             the store there was planned from something else
        ├── ShardBusyError                 another writer is publishing this shard
        │   └── ShardTakenError            its owner gave no sign for too long, and another has taken it over
        ├── IncompleteStoreError           rows were asked for whose shard has not been written
        ├── StorageError                   the place where the store lies cannot be read
        │   ├── AccessDeniedError          it is there and may not be read
        │   └── UnreachableError           it does not answer, or not to the end (timeouts, lost connections)
        ├── CorruptStoreError              bytes are missing or are not what was written
        ├── PrecisionError                 the dtype cannot hold these values as precisely as it promises
        └── NonFiniteError                 a NaN or an infinity would have been stored

A message states the rule, the value received and the remedy, on one line. The command line prints it
and exits 2 for `ConfigError` and `MissingExtraError`, 1 for the others.
"""

from __future__ import annotations

__all__ = [
    "ActivaultError",
    "ConfigError",
    "MissingExtraError",
    "WeightsError",
    "ImageSourceError",
    "RunError",
    "StoreError",
    "NotAStoreError",
    "StoreMismatchError",
    "ShardBusyError",
    "ShardTakenError",
    "IncompleteStoreError",
    "StorageError",
    "AccessDeniedError",
    "UnreachableError",
    "CorruptStoreError",
    "PrecisionError",
    "NonFiniteError",
]


class ActivaultError(Exception):
    """Base of everything activault raises on purpose."""


class ConfigError(ActivaultError, ValueError):
    """An option, a recipe or an argument cannot be used as given."""


class MissingExtraError(ActivaultError, ImportError):
    """A command needs an optional dependency that is not installed."""


class WeightsError(ActivaultError):
    """A teacher's weights are absent, altered or do not fit its architecture."""


class ImageSourceError(ActivaultError):
    """An image source is absent or holds nothing that can be read."""


class RunError(ActivaultError):
    """A training run's folder or checkpoint cannot be used."""


class StoreError(ActivaultError):
    """Base of everything that is wrong with a store."""


class NotAStoreError(StoreError):
    """The path does not hold an activation store."""


class StoreMismatchError(StoreError):
    """A store exists there that was planned from something else; it is never overwritten."""


class ShardBusyError(StoreError):
    """Another thread or process is publishing this shard; one owner writes a shard."""


class ShardTakenError(ShardBusyError):
    """This writer owned the shard, gave no sign of life for its lease, and another has taken it over."""


class IncompleteStoreError(StoreError):
    """Rows were asked for whose shard has not been written yet."""


class StorageError(StoreError):
    """The place where the store lies cannot be read."""


class AccessDeniedError(StorageError):
    """A file is there and may not be read."""


class UnreachableError(StorageError):
    """The place does not answer, or not to the end."""


class CorruptStoreError(StoreError):
    """Bytes of the store are missing or differ from what was written."""


class PrecisionError(StoreError):
    """The dtype cannot hold these values as precisely as it promises."""


class NonFiniteError(StoreError):
    """A value that is NaN or infinite would have been stored."""
