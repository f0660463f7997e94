"""Whether a source is the one that an addition of rows was begun with, so that no two are mixed.

The opened store, the new part as it was planned and a source in; nothing, or `StoreMismatchError` out.
"""

from __future__ import annotations

from pathlib import Path

from activault.store import Store, StoreMismatchError
from activault.store.files import xxh3
from activault.store.growing import way_out
from activault.store.samples import NO_CONTENT
from activault.store.sources import CopySource

from .decode import BadImage
from .growth_rows import joint_source
from .listing import ImageSource
from .order import Rows

__all__ = ["content_of", "refuse_other_source"]


def content_of(source: ImageSource, place: int) -> str:
    """Hash of the bytes of an image, as its outcome has it."""
    data = source.read(place)
    return (data.content or NO_CONTENT) if isinstance(data, BadImage) else xxh3(data)


def refuse_other_source(
    path: Path, there: Store, part: CopySource, source: ImageSource, places: Rows
) -> None:
    """Refuse to go on with an addition from another source than that it was begun with.

    The source is known by its name and fingerprint. One of the same name that got more images since has
    another fingerprint, and is the same if the bytes of all images of finished shards are.

    Args:
        path: of the store.
        there: the store.
        part: what is being added.
        source: where images are to come from now.
        places: (rows,) of the part's rows in the source; -1 where it has no image of that key.

    Raises:
        StoreMismatchError: it is another one.
    """
    first = there.num_rows
    name = part.samples["source"][first].as_py()
    same_name = name == source.info.name
    if same_name and joint_source(there.manifest, there.samples, source) == part.manifest.source:
        return
    if same_name and all(_has_images(part, shard, source, places) for shard in part.finished):
        return
    other = "is not as it was" if same_name else f"is not {source.info.name}"
    raise StoreMismatchError(
        f"{part.manifest.num_rows - first} rows are being added to {path} from {name}, which {other}; give "
        f"the source that was begun with, as it was then; or else: {way_out(path)}"
    )


def _has_images(part: CopySource, shard: int, source: ImageSource, places: Rows) -> bool:
    """Whether the images of a finished shard are those of the source; False where that cannot be told."""
    record = part.record(shard)
    rows = places[record.rows[0] : record.rows[1]]
    if record.images is None or (rows < 0).any():
        return False
    return record.images == xxh3("".join(content_of(source, int(place)) for place in rows).encode())
