from __future__ import annotations

import numpy as np
import pytest

from activault.analyze import LayerSimilarity, layer_similarity
from activault.analyze.similarity import MAX_GROUPS
from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout


def straightforward(array: np.ndarray, columns: list[slice]) -> np.ndarray:
    """S in float64, image by image and pair by pair."""
    num = array.shape[1]
    total = np.zeros((num, num))
    for image in array.astype(np.float64):
        for span in columns:
            vectors = [layer[span].mean(axis=0) for layer in image]
            for i, a in enumerate(vectors):
                for j, b in enumerate(vectors):
                    total[i, j] += a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    return total / len(array) / len(columns)


def test_it_is_the_mean_cosine_of_cls_and_mean_patch(source) -> None:
    layout = source.layout
    expected = straightforward(source.array, [layout.span("cls"), layout.span("patches")])
    np.testing.assert_allclose(layer_similarity(source).matrix, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["cls", "patches"])
def test_a_store_with_one_of_the_two_vectors_uses_that_one(source, kind) -> None:
    source.kinds = (kind,)
    expected = straightforward(source.array, [source.layout.span(kind)])
    np.testing.assert_allclose(layer_similarity(source).matrix, expected, atol=1e-6)


def test_registers_alone_are_refused(source) -> None:
    source.kinds = ("registers",)
    with pytest.raises(ConfigError, match="needs CLS or patch tokens"):
        layer_similarity(source)


def test_rotation_by_a_known_angle(source) -> None:
    angles = np.deg2rad([0, 10, 40, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    source.layout = TokenLayout(num_cls=1, num_registers=0, grid=(1, 2))
    source.kinds, source.layers = source.layout.kinds, (0, 1, 2, 3)
    source.array = np.broadcast_to(vectors[None, :, None], (5, 4, 3, 2)) * np.arange(1, 6).reshape(5, 1, 1, 1)
    expected = np.cos(angles[:, None] - angles[None, :])
    np.testing.assert_allclose(layer_similarity(source).matrix, expected, atol=1e-6)


def test_layers_and_rows_can_be_chosen(source) -> None:
    some = layer_similarity(source, rows=[7, 2, 3], layers=(1, 3, 5))
    assert (some.layers, some.num_rows) == ((1, 3, 5), 3)
    columns = [source.layout.span("cls"), source.layout.span("patches")]
    expected = straightforward(source.array[[2, 3, 7]][:, [1, 3, 5]], columns)
    np.testing.assert_allclose(some.matrix, expected, atol=1e-6)


def test_bad_rows_are_left_out_and_refused_when_named(source) -> None:
    source.array[4] = np.nan
    source.bad = (4,)
    assert layer_similarity(source).num_rows == 11
    assert np.isfinite(layer_similarity(source).matrix).all()
    with pytest.raises(ConfigError, match=r"1 of 2 are not, the first is row 4"):
        layer_similarity(source, rows=[3, 4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "at least one row"),
        ({"layers": [3]}, "at least two layers; got 1"),
        ({"layers": [3, 9]}, "layer 9 is not kept; there are layers 0, 1, 2"),
    ],
    ids=["no rows", "one layer", "absent layer"],
)
def test_what_is_not_there_is_refused(source, change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        layer_similarity(source, **change)


def test_a_zero_vector_is_like_nothing(source) -> None:
    source.array[:, 0] = 0
    matrix = layer_similarity(source).matrix
    assert (matrix[0] == 0).all()
    assert np.isfinite(matrix).all()


def test_small_batches_change_nothing_and_keep_to_the_budget(source) -> None:
    whole = layer_similarity(source)
    assert source.reads.pop() == 12
    calls: list[tuple[int, int]] = []
    row_bytes = 4 * 6 * 7 * 8
    small = layer_similarity(
        source, memory_bytes=5 * 3 * row_bytes, progress=lambda *done: calls.append(done)
    )
    assert source.reads == [3, 3, 3, 3]
    assert calls == [(3, 12), (6, 12), (9, 12), (12, 12)]
    np.testing.assert_allclose(small.matrix, whole.matrix, rtol=1e-12)


def test_one_image_is_one_group_while_they_are_few(source) -> None:
    similarity = layer_similarity(source)
    assert similarity.num_groups == 12
    np.testing.assert_array_equal(similarity.group_counts, 1)


def test_many_images_share_a_bounded_number_of_groups(make_source) -> None:
    source = make_source(rows=3 * MAX_GROUPS, layers=3, dim=4)
    similarity = layer_similarity(source)
    assert similarity.num_groups <= MAX_GROUPS
    assert similarity.num_rows == 3 * MAX_GROUPS
    # Grouped resampling spreads the mean as resampling single images does.
    grouped = np.std([matrix[0, 2] for matrix in similarity.resample(400)])
    single = np.concatenate(
        [layer_similarity(source, rows=[row]).group_sums[:, 0, 2] for row in source.valid_rows]
    )
    assert grouped == pytest.approx(single.std() / np.sqrt(len(single)), rel=0.2)


def test_resampling_is_seeded(source) -> None:
    similarity = layer_similarity(source)
    first, again, other = (np.stack(list(similarity.resample(3, seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_resamples_of_one_image_are_that_image(source) -> None:
    similarity = layer_similarity(source, rows=[5])
    assert isinstance(similarity, LayerSimilarity)
    np.testing.assert_allclose(next(similarity.resample(1)), similarity.matrix)
