"""How similar a network's layers are to one another.

In: rows of a store. Out: `LayerSimilarity`, S float64 (n, n) over the layers, layer 0 included:
S_ij = mean over images, and over two vectors of each image (CLS token and mean patch, raw, registers
left out), of the cosine between layers i and j. D = 1 - S is the distance that `phases` cuts.

Streamed: memory does not grow with the rows. Partial sums of at most `MAX_GROUPS` groups of images are
kept, so that a bootstrap over images is possible afterwards. Source: the vectors are those of the
reference code of arXiv 2512.19941.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from activault.store.errors import ConfigError
from activault.store.layout import TokenKind

from .source import DEFAULT_BYTES, LayerSource, RowArray, choose_layers, choose_rows, kind_spans, read_batches

__all__ = ["LayerSimilarity", "SimilaritySum", "layer_similarity"]

FloatMatrix = npt.NDArray[np.float64]
# 256 sums of 13 x 13 layers are 346 kB; of 41 x 41, 3.4 MB.
MAX_GROUPS = 256


@dataclass(frozen=True, kw_only=True)
class LayerSimilarity:
    """Mean cosine similarity of layers, with the partial sums that a bootstrap needs."""

    layers: tuple[int, ...]
    """Layers of the matrix, ascending."""
    group_sums: npt.NDArray[np.float64]
    """Summed similarities of each group of images, (groups, n, n)."""
    group_counts: npt.NDArray[np.int64]
    """Images of each group, (groups,)."""

    @property
    def matrix(self) -> FloatMatrix:
        """S, (n, n), each value in [-1, 1]."""
        return np.asarray(self.group_sums.sum(0) / self.num_rows, dtype=np.float64)

    @property
    def num_rows(self) -> int:
        """Images that were averaged over."""
        return int(self.group_counts.sum())

    @property
    def num_groups(self) -> int:
        """Groups of images; as many as images while these are at most `MAX_GROUPS`."""
        return len(self.group_counts)

    def blocks_only(self) -> LayerSimilarity:
        """The same without layer 0, which is no block's output."""
        keep = [place for place, layer in enumerate(self.layers) if layer >= 1]
        return LayerSimilarity(
            layers=tuple(self.layers[place] for place in keep),
            group_sums=self.group_sums[:, keep][:, :, keep],
            group_counts=self.group_counts,
        )

    def resample(self, num_resamples: int, seed: int = 0) -> Iterator[FloatMatrix]:
        """S of bootstrap resamples, each (n, n): groups drawn with replacement, as many as there are.

        With at most `MAX_GROUPS` images a group is one image, the plain bootstrap. Above, images are put into
        groups at random, which leaves the variance of the mean right (a bootstrap of group means).
        """
        rng = np.random.default_rng(seed)
        for _ in range(num_resamples):
            drawn = np.bincount(
                rng.integers(self.num_groups, size=self.num_groups), minlength=self.num_groups
            )
            count = max(int(drawn @ self.group_counts), 1)
            yield np.tensordot(drawn.astype(np.float64), self.group_sums, axes=1) / count


class SimilaritySum:
    """Adds up layer similarities batch by batch.

    Args:
        num_rows: rows that will come, in all.
        layers: layers of a batch, ascending.
        spans: where each kept token kind stands on a batch's token axis.
        seed: of the random groups of images.

    Raises:
        ConfigError: neither CLS nor patches are kept.
    """

    def __init__(
        self, num_rows: int, layers: Sequence[int], spans: dict[TokenKind, slice], seed: int = 0
    ) -> None:
        self.spans = [spans[kind] for kind in ("cls", "patches") if kind in spans]
        if not self.spans:
            raise ConfigError("layer similarity needs CLS or patch tokens; only registers are kept here")
        self.layers = tuple(layers)
        num_groups = min(num_rows, MAX_GROUPS)
        rng = np.random.default_rng(seed)
        self.group = (
            np.arange(num_rows, dtype=np.int16)
            if num_rows == num_groups
            else rng.integers(num_groups, size=num_rows, dtype=np.int16)
        )
        self.sums = np.zeros((num_groups, len(self.layers), len(self.layers)))
        self.counts = np.zeros(num_groups, dtype=np.int64)

    def add(self, start: int, tokens: npt.NDArray[np.float32]) -> None:
        """Add rows `start`, `start + 1`, ... of the selection: float32 (n, layers, tokens, D)."""
        images = np.zeros((len(tokens), len(self.layers), len(self.layers)))
        for span in self.spans:
            vectors = tokens[:, :, span].mean(axis=2).astype(np.float64)
            # A zero vector has no direction: its cosines are 0.
            vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
            images += vectors @ vectors.transpose(0, 2, 1)
        groups = self.group[start : start + len(tokens)]
        np.add.at(self.sums, groups, images / len(self.spans))
        np.add.at(self.counts, groups, 1)

    def result(self) -> LayerSimilarity:
        """What has been added."""
        filled = self.counts > 0
        return LayerSimilarity(
            layers=self.layers, group_sums=self.sums[filled], group_counts=self.counts[filled]
        )


def layer_similarity(
    store: LayerSource,
    rows: RowArray | Sequence[int] | None = None,
    layers: Iterable[int] | None = None,
    *,
    memory_bytes: int = DEFAULT_BYTES,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> LayerSimilarity:
    """Measure the similarity of a store's layers in one pass.

    Args:
        store: an open store.
        rows: row numbers; by default all rows with a good image.
        layers: layers; by default all that are kept.
        memory_bytes: budget for the rows read at a time.
        seed: of the random groups of images for the bootstrap.
        progress: called with (rows done, rows in all).

    Raises:
        ConfigError: rows or layers that are not there, or neither CLS nor patches kept.
        IncompleteStoreError, CorruptStoreError: from reading.
    """
    chosen = choose_rows(store, rows)
    layer_list = choose_layers(store, layers)
    kinds: tuple[TokenKind, ...] = tuple(kind for kind in store.kinds if kind != "registers")
    total = SimilaritySum(len(chosen), layer_list, kind_spans(store.layout, kinds), seed)
    for batch in read_batches(store, chosen, layer_list, kinds, memory_bytes):
        total.add(batch.start, batch.tokens)
        if progress is not None:
            progress(batch.stop, len(chosen))
    return total.result()
