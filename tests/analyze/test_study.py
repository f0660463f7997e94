from __future__ import annotations

import numpy as np
import pytest

from activault.analyze import analyze_store, layer_similarity, max_cut_phases
from activault.store.errors import ConfigError


def test_one_pass_gives_what_the_single_analyses_give(make_source) -> None:
    source = make_source(layers=9)
    analysis = analyze_store(source)
    similarity = layer_similarity(source)
    np.testing.assert_allclose(analysis.teacher.similarity.matrix, similarity.matrix, atol=1e-12)
    assert [phases.k for phases in analysis.phases] == [2, 3, 4]
    assert analysis.phases_of(3).cuts == max_cut_phases(similarity, 3).cuts
    assert [phases.k for phases in analysis.curve] == [1, 2, 3, 4]
    assert all(0 <= share <= 1 for phases in analysis.phases for share in phases.stability or ())
    assert analysis.surrogate is None


def test_a_surrogate_that_is_the_teacher_has_the_teachers_curves(source) -> None:
    done = 0

    def perfect(first: np.ndarray) -> np.ndarray:
        nonlocal done
        later = source.array[done : done + len(first), 1:]
        np.testing.assert_array_equal(first, source.array[done : done + len(first), 0])
        done += len(first)
        return later

    analysis = analyze_store(source, surrogate=perfect, memory_bytes=60_000)
    assert len(source.reads) > 1
    assert analysis.surrogate is not None
    assert analysis.surrogate.dynamics == analysis.teacher.dynamics
    np.testing.assert_array_equal(analysis.surrogate.similarity.matrix, analysis.teacher.similarity.matrix)


def test_a_surrogate_that_stands_still_has_no_speed(source) -> None:
    analysis = analyze_store(source, surrogate=lambda first: np.repeat(first[:, None], 5, axis=1))
    assert analysis.surrogate is not None
    assert analysis.surrogate.dynamics.curve("speed", "cls").mean == (0.0,) * 5
    assert analysis.teacher.dynamics.curve("speed", "cls").mean[0] > 0.1


def test_numbers_of_phases_that_do_not_fit_are_left_out(source) -> None:
    assert [phases.k for phases in analyze_store(source, ks=(2, 9)).phases] == [2]
    with pytest.raises(KeyError, match="into 9 phases"):
        analyze_store(source, ks=(2, 9)).phases_of(9)


def test_progress_reaches_the_end(source) -> None:
    calls: list[tuple[int, int]] = []
    analyze_store(source, rows=[1, 2, 3], progress=lambda *done: calls.append(done))
    assert calls == [(3, 3)]


@pytest.mark.parametrize("kinds", [("cls",), ("patches",), ("cls", "patches")], ids="+".join)
def test_stores_with_fewer_kinds_give_fewer_curves(source, kinds) -> None:
    source.kinds = kinds
    dynamics = analyze_store(source).teacher.dynamics
    assert tuple(curve.kind for curve in dynamics.of("speed")) == kinds


def test_a_teacher_without_class_token_and_registers(make_source) -> None:
    source = make_source(registers=0)
    source.layout = source.layout.model_copy(update={"num_cls": 0, "grid": (1, 7)})
    source.kinds = source.layout.kinds
    assert analyze_store(source).kinds == ("patches",)


def test_layers_that_are_missing_are_skipped_over(source) -> None:
    source.layers = (0, 2, 4, 6, 8, 10)
    analysis = analyze_store(source, ks=(2,))
    assert analysis.teacher.dynamics.curve("speed", "cls").layers == (2, 4, 6, 8, 10)
    assert analysis.phases_of(2).layers == (2, 4, 6, 8, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (1, 2, 3, 4, 5, 6)}, "from layer 0 on"),
        ({"kinds": ("cls", "patches")}, "made without registers"),
    ],
    ids=["no layer 0", "no registers"],
)
def test_a_surrogate_needs_all_layers_and_tokens(source, change, message) -> None:
    for name, value in change.items():
        setattr(source, name, value)
    with pytest.raises(ConfigError, match=message):
        analyze_store(source, surrogate=lambda first: first)


def test_a_roll_out_of_the_wrong_shape_is_refused(source) -> None:
    with pytest.raises(ConfigError, match=r"shape \(12, 5, 9, 8\); got \(12, 9, 8\)"):
        analyze_store(source, surrogate=lambda first: first)
