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


GROUPS = RaptorConfig(dim=16, num_heads=2, num_layers=6, groups=((1, 3, 5), (2, 4, 6)), layer_scale=0.5)


@pytest.mark.parametrize("lora", [0, 2])
def test_groups_take_turns(lora: int) -> None:
    torch.manual_seed(0)
    model = Raptor(GROUPS.model_copy(update={"lora_rank": lora})).eval()
    assert [model.phase_of(layer) for layer in range(1, 7)] == [0, 1] * 3
    _disturb(model)
    tokens = torch.randn(2, 6, 5, 16)
    whole = model(tokens[:, 0])
    for layer in range(1, 7):
        source = tokens[:, 0] if layer == 1 else whole[:, layer - 2]
        slot = torch.tensor([(layer - 1) // 2])
        alone = model.blocks[(layer + 1) % 2](source, model.depths[layer : layer + 1], slot)
        torch.testing.assert_close(whole[:, layer - 1], alone)
    forced = model.predict_next(tokens)
    for layer in range(1, 7):
        alone = model(tokens[:, layer - 1], layer - 1, layer)[:, 0]
        torch.testing.assert_close(forced[:, layer - 1], alone)
    torch.testing.assert_close(model.predict_next(tokens[:, 1:4], 1), forced[:, 1:4])


def test_cuts_and_groups_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="one of cuts and groups is given"):
        RaptorConfig(dim=16, num_heads=2, num_layers=2, cuts=(1,), groups=((1,), (2,)))
    with pytest.raises(ValidationError, match=r"groups name every layer of 1-3 once; absent \[3\]"):
        RaptorConfig(dim=16, num_heads=2, num_layers=3, groups=((1,), (2,)))


def _disturb(model: Raptor) -> None:
    """What starts at zero, at a size where it matters."""
    for name, parameter in model.named_parameters():
        if name.endswith("lora.up"):
            torch.nn.init.normal_(parameter, std=0.1)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_fresh_low_rank_parts_change_nothing_and_trained_ones_differ_by_layer(mlp: str) -> None:
    tied = Raptor(CONFIG.model_copy(update={"mlp": mlp, "depth": "none"})).eval()
    model = Raptor(CONFIG.model_copy(update={"mlp": mlp, "depth": "none", "lora_rank": 2})).eval()
    model.load_state_dict(tied.state_dict(), strict=False)
    x = torch.randn(2, 5, 16)
    assert torch.equal(model(x), tied(x))
    _disturb(model)
    assert not torch.allclose(model(x, 2, 3), model(x, 3, 4), atol=1e-3)


def test_low_rank_parts_are_products_beside_the_shared_maps() -> None:
    """One layer's block is the tied one with W + B A for its own A and B."""
    model = Raptor(CONFIG.model_copy(update={"lora_rank": 3})).eval()
    _disturb(model)
    folded = Raptor(CONFIG).eval()
    x, layer = torch.randn(2, 5, 16), 4
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".lora." not in name}
    for name, tensor in model.state_dict().items():
        if name.startswith("blocks.1.") and name.endswith("lora.up"):
            down = model.state_dict()[name.replace("up", "down")]
            state[name.replace("lora.up", "weight")] += tensor[layer - 3] @ down[layer - 3]
    folded.load_state_dict(state)
    torch.testing.assert_close(model(x, 3, 4), folded(x, 3, 4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("every", [1, 2, 4, 9])
def test_recomputed_roll_outs_have_the_same_layers_and_gradients(model: Raptor, every: int) -> None:
    x = torch.randn(2, 5, 16)
    gradients = []
    for number in (0, every):
        model.checkpoint_every = number
        model.zero_grad()
        made = model(x, 1, 6)
        assert made.shape == (2, 5, 5, 16)
        made.square().mean().backward()
        gradients.append(
            [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        )
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def _num_saved(every: int) -> int:
    """Values that a roll-out keeps for its backward pass."""
    model, saved = Raptor(CONFIG), []
    model.checkpoint_every = every

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.last(torch.randn(2, 5, 16))
    return sum(saved)


def test_recomputed_roll_outs_keep_less() -> None:
    assert _num_saved(1) < _num_saved(0) / 10


def test_bfloat16_autocast_keeps_the_residual_stream_in_float32(model: Raptor) -> None:
    """Depth scales too: near 1 bfloat16 has steps of 1/128, as large as all of a fresh block's."""
    x = torch.randn(2, 5, 16)
    exact = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rolled, forced = model(x), model.predict_next(x.unsqueeze(1).repeat(1, 6, 1, 1))
        scales = model.blocks[0].depth(model.depths[3:4])
    assert rolled.dtype == forced.dtype == torch.float32
    torch.testing.assert_close(rolled, exact, rtol=0.05, atol=0.05)
    assert torch.equal(torch.stack(scales), torch.stack(model.blocks[0].depth(model.depths[3:4])))


def test_weights_of_one_depth_roll_out_at_another() -> None:
    """Depth is told as the layer over L, so that each block is asked for the same stretch of depths."""
    trained = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=12, cuts=(7, 10), layer_scale=0.5)).eval()
    deeper = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=24, cuts=(14, 20), layer_scale=0.5)).eval()
    deeper.load_state_dict(trained.state_dict())
    x = torch.randn(2, 5, 16)
    made = deeper(x)
    assert made.shape == (2, 24, 5, 16)
    for layer in range(1, 25):
        x = trained.blocks[trained.phase_of((layer + 1) // 2)](x, torch.tensor([[layer / 24]]))
        torch.testing.assert_close(made[:, layer - 1], x)
