"""What each stage trains, on which layers, by which weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from activault.store import Store
from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.closed_loop import closed_loop_stage
from activault.train.losses import TokenWeights
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import Stage1Config, Stage2Config
from activault.train.stages import span_loss
from activault.train.teacher_forced import phase_stages

CPU = torch.device("cpu")
PLAIN = Stage1Config(steps=1, warmup_steps=0)


@pytest.fixture
def model() -> Raptor:
    return Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(1, 2), layer_scale=0.1))


def test_a_phase_takes_its_own_layers_and_trains_its_own_block(store: Store, model: Raptor) -> None:
    stages = phase_stages(model, Stage1Config(steps=10, warmup_steps=0), store, CPU)
    assert [(stage.name, stage.layers) for stage in stages] == [
        ("phase_1", (0, 1)),
        ("phase_2", (1, 2)),
        ("phase_3", (2, 3, 4)),
    ]
    for number, stage in enumerate(stages):
        model.zero_grad()
        assert stage.module is model.blocks[number]
        tokens = torch.from_numpy(store.read(slice(0, 8), stage.layers))
        stage.objective(tokens, 1).backward()
        touched = [any(p.grad is not None for p in block.parameters()) for block in model.blocks]
        assert touched == [position == number for position in range(3)]


def test_only_teacher_forcing_rolls_nothing_out(store: Store, model: Raptor) -> None:
    config = Stage1Config(steps=10, warmup_steps=0, only_teacher_forcing=True)
    stage = phase_stages(model, config, store, CPU)[1]
    tokens = torch.from_numpy(store.read(slice(0, 8), stage.layers))
    made = model.predict_next(tokens[:, :-1], 1)
    for step in (0, 9):
        torch.testing.assert_close(stage.objective(tokens, step), (made - tokens[:, 1:]).square().mean())


def test_last_phase_has_weights_of_its_own(store: Store, model: Raptor) -> None:
    config = Stage1Config(
        steps=10, warmup_steps=0, last_phase_token_weights=TokenWeights(cls=1, registers=0, patches=0)
    )
    stages = phase_stages(model, config, store, CPU)
    tokens = torch.from_numpy(store.read(slice(0, 8), stages[2].layers))
    made = model(tokens[:, 0], 2, 4)
    expected = (made - tokens[:, 1:]).square()[:, :, 0].mean()
    torch.testing.assert_close(stages[2].objective(tokens, 9), expected)
    tokens = torch.from_numpy(store.read(slice(0, 8), stages[1].layers))
    torch.testing.assert_close(
        stages[1].objective(tokens, 9), (model(tokens[:, 0], 1, 2) - tokens[:, 1:]).square().mean()
    )


def test_closed_loop_starts_from_layer_zero_alone(store: Store, model: Raptor) -> None:
    stage = closed_loop_stage(
        model, Stage2Config(steps=10, warmup_steps=0, token_weights="plain"), store, CPU
    )
    assert stage.layers == range(5)
    assert stage.module is model
    tokens = torch.from_numpy(store.read(slice(0, 8), stage.layers))
    expected = (model(tokens[:, 0]) - tokens[:, 1:]).square().mean()
    for step in (0, 9):
        torch.testing.assert_close(stage.objective(tokens, step), expected)


def test_per_layer_scales_are_the_stores_variances(store: Store) -> None:
    weights = TokenWeights(cls=0.5, registers=0.2, patches=0.3)
    loss = span_loss(store, PLAIN.model_copy(update={"loss": "per_layer"}), weights, range(1, 4), CPU)
    tokens = store.read(slice(None), range(2, 4)).astype("float64")
    expected = [
        sum(
            weight * tokens[:, layer, span].var(axis=(0, 1)).mean()
            for weight, span in ((0.5, slice(0, 1)), (0.2, slice(1, 2)), (0.3, slice(2, 6)))
        )
        for layer in range(2)
    ]
    assert loss.scales is not None
    assert loss.scales.tolist() == pytest.approx(expected, rel=1e-5)


def test_registers_are_where_the_layout_says(make_store: Callable[..., Store]) -> None:
    """Defect of the reference: registers taken to be tokens 1 to 4."""
    store = make_store(layout=TokenLayout(num_cls=0, num_registers=3, grid=(1, 3)))
    loss = span_loss(
        store,
        PLAIN,
        TokenWeights(cls=0.9, registers=0.1, patches=0),
        range(2),
        CPU,
    )
    target, made = torch.zeros(1, 1, 6, 16), torch.zeros(1, 1, 6, 16)
    made[:, :, 3:] = 100
    assert float(loss(made, target)) == 0
    made[:, :, :3] = 2
    assert float(loss(made, target)) == pytest.approx(4)


def test_weights_on_absent_kinds_are_a_config_error(make_store: Callable[..., Store]) -> None:
    store = make_store(layout=TokenLayout(num_cls=0, num_registers=0, grid=(1, 3)))
    with pytest.raises(ConfigError, match="token kinds patches has a weight above 0"):
        span_loss(
            store,
            PLAIN,
            TokenWeights(cls=1, registers=0, patches=0),
            range(2),
            CPU,
        )
