"""Which block runs at which layer, from any layer to any layer."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from activault.store.errors import ConfigError
from activault.train.raptor import Raptor, RaptorConfig

CONFIG = RaptorConfig(dim=16, num_heads=2, num_layers=6, cuts=(2, 5), layer_scale=0.5)


@pytest.fixture
def model() -> Raptor:
    torch.manual_seed(0)
    return Raptor(CONFIG).eval()


@pytest.mark.parametrize(
    ("cuts", "phases"),
    [
        ((), [range(1, 7)]),
        ((2, 5), [range(1, 3), range(3, 6), range(6, 7)]),
        ((1,), [range(1, 2), range(2, 7)]),
    ],
    ids=["k=1", "k=3", "short-first"],
)
def test_phases_are_the_target_layers_between_cuts(cuts: tuple[int, ...], phases: list[range]) -> None:
    config = CONFIG.model_copy(update={"cuts": cuts})
    assert list(config.phases) == phases
    assert len(Raptor(config).blocks) == len(phases)


@pytest.mark.parametrize("cuts", [(0,), (6,), (3, 2), (2, 2)])
def test_cuts_that_are_no_cuts_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match=r"cuts rise within 1-5; got \["):
        RaptorConfig(dim=16, num_heads=2, num_layers=6, cuts=cuts)


def test_every_layer_is_made_by_its_phase(model: Raptor) -> None:
    assert [model.phase_of(layer) for layer in range(1, 7)] == [0, 0, 1, 1, 1, 2]
    x = torch.randn(2, 5, 16)
    expected = x
    made = model(x)
    assert made.shape == (2, 6, 5, 16)
    for layer in range(1, 7):
        expected = model.blocks[model.phase_of(layer)](expected, torch.tensor([[layer / 6]]))
        assert torch.equal(made[:, layer - 1], expected)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 4), (2, 5), (4, 6), (5, 6)])
def test_rollout_from_any_layer_to_any_layer(model: Raptor, start: int, stop: int) -> None:
    whole = model(torch.randn(2, 5, 16))
    source = torch.randn(2, 5, 16) if start == 0 else whole[:, start - 1]
    part = model(source, start, stop)
    assert part.shape[1] == stop - start
    if start:
        torch.testing.assert_close(part, whole[:, start:stop])
    torch.testing.assert_close(model.last(source, start), model(source, start)[:, -1])


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (3, 3), (-1, 2), (6, 6)])
def test_spans_outside_the_teacher_are_refused(model: Raptor, start: int, stop: int) -> None:
    with pytest.raises(ConfigError, match=rf"within 0-6; got {start} to {stop}"):
        model(torch.randn(1, 5, 16), start, stop)


@pytest.mark.parametrize(("start", "num"), [(0, 6), (0, 1), (1, 3), (2, 3), (4, 2)])
def test_teacher_forcing_of_a_composed_model_takes_each_layer_alone(
    model: Raptor, start: int, num: int
) -> None:
    """The reference crashes here; ours crosses phases."""
    tokens = torch.randn(2, num, 5, 16)
    made = model.predict_next(tokens, start)
    assert made.shape == tokens.shape
    for offset in range(num):
        alone = model(tokens[:, offset], start + offset, start + offset + 1)[:, 0]
        torch.testing.assert_close(made[:, offset], alone)


@pytest.mark.parametrize(
    ("depth", "depths"), [("raw", [0, 1, 2, 3, 4, 5, 6]), ("normalised", [n / 6 for n in range(7)])]
)
def test_depth_is_the_target_layer(depth: str, depths: list[float]) -> None:
    model = Raptor(CONFIG.model_copy(update={"depth": depth}))
    assert model.depths[:, 0].tolist() == pytest.approx(depths)


def test_without_depth_the_block_is_autonomous() -> None:
    model = Raptor(CONFIG.model_copy(update={"depth": "none"}))
    x = torch.randn(1, 5, 16)
    assert not any("depth" in name for name in model.state_dict())
    assert torch.equal(model(x, 2, 3), model(x, 4, 5))


def test_parameters_are_those_of_k_blocks(model: Raptor) -> None:
    dim, conditioning = 16, 16 + 16 + 16 * 48 + 48
    block = 12 * dim * dim + 13 * dim + 2 * dim + conditioning
    assert model.num_parameters == 3 * block


def test_other_token_counts_run(model: Raptor) -> None:
    assert model(torch.randn(1, 11, 16)).shape == (1, 6, 11, 16)
