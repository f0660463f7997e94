"""What may be written where: a store in a folder or in a bucket, planned or gone on with.

A path or URL in; whether a store may be planned there, or its writer, out.
"""

from __future__ import annotations

from pathlib import Path

from .arrow import pa
from .creation import TeacherFiles, check_samples, create_store, write_teacher_files
from .creation import is_free as is_free_folder
from .leases import LEASE
from .manifest import Manifest
from .object_planning import is_free_place
from .object_writer import open_object_writer
from .objects import Objects
from .places import open_storage
from .writing import ShardWriter

__all__ = ["create_writer", "is_free"]


def is_free(where: Path | str) -> bool:
    """Whether a store may be planned at a path or URL.

    Raises:
        ConfigError: nothing can be written to such a URL.
        StoreError: it may not be looked into.
    """
    folder = open_storage(where).folder
    return is_free_place(Objects(str(where))) if folder is None else is_free_folder(folder)


def create_writer(
    where: Path | str,
    manifest: Manifest,
    samples: pa.Table,
    teacher_files: TeacherFiles,
    *,
    lease: float = LEASE,
) -> ShardWriter:
    """Plan the store at a path or URL, or open the same one to go on with it.

    Args:
        where: a path, `file://` or `s3://bucket/prefix`.
        manifest: what is to be stored.
        samples: from `plan_samples`, `manifest.num_rows` rows.
        teacher_files: see `create_store`.
        lease: seconds without a sign after which other writers take over what this one is at.

    Raises:
        ConfigError: nothing can be written there, or the samples are not `manifest.num_rows`.
        StoreError: see `create_store` and `open_object_writer`.
    """
    storage = open_storage(where)
    if storage.folder is not None:
        return create_store(
            storage.folder if "://" in str(where) else where, manifest, samples, teacher_files, lease
        )
    check_samples(manifest, samples)
    return open_object_writer(
        storage.where, manifest, samples, lambda folder: write_teacher_files(folder, teacher_files), lease
    )
