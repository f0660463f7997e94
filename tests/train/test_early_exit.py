"""Rows leave a roll-out when they come to rest, each at its own layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from activault.store.errors import ConfigError
from activault.train.early_exit import early_exit
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.rollout import Identity, RolloutModel


class Settling(RolloutModel):
    """Turns every token by 90 degrees until the layer that its row's third channel names."""

    num_layers = 5

    def __init__(self) -> None:
        super().__init__()
        self.rows_seen: list[int] = []

    def rollout(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        start, stop = self.checked_span(start, stop)
        for layer in range(start + 1, stop + 1):
            self.rows_seen.append(len(tokens))
            turns = tokens[:, :, 2:] >= layer
            swapped = torch.stack([-tokens[..., 1], tokens[..., 0], tokens[..., 2]], dim=-1)
            tokens = torch.where(turns, swapped, tokens)
            yield tokens


def test_each_row_leaves_at_its_own_layer() -> None:
    tokens = torch.zeros(4, 3, 3)
    tokens[:, :, 0] = 9
    tokens[:, :, 2] = torch.tensor([0.0, 2.0, 5.0, 1.0])[:, None]
    model = Settling()
    left = early_exit(model, tokens, until=1e-6)
    assert left.layers.tolist() == [1, 3, 5, 2]
    assert model.rows_seen == [4, 3, 2, 1, 1], "rows that have left are not computed further"
    for row, layer in enumerate(left.layers.tolist()):
        expected = Settling().last(tokens[row : row + 1], 0, layer)
        assert torch.equal(left.tokens[row : row + 1], expected)


def test_without_rest_it_is_the_last_layer() -> None:
    model = Raptor(RaptorConfig(dim=8, num_heads=2, num_layers=4, layer_scale=0.5)).eval()
    tokens = torch.randn(2, 3, 8)
    left = early_exit(model, tokens, until=0.0)
    torch.testing.assert_close(left.tokens, model.last(tokens))
    assert left.layers.tolist() == [4, 4]
    assert early_exit(model, tokens, until=2.0, start=1).layers.tolist() == [2, 2]
    assert early_exit(Identity(4), tokens, until=1e-6).layers.tolist() == [1, 1]


def test_a_given_layer_is_left_at_by_last() -> None:
    model = Raptor(RaptorConfig(dim=8, num_heads=2, num_layers=4, layer_scale=0.5)).eval()
    tokens = torch.randn(2, 3, 8)
    assert torch.equal(model.last(tokens, stop=2), model(tokens)[:, 1])


def test_negative_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a turn is at least 0, .* got -0.1"):
        early_exit(Identity(4), torch.zeros(1, 1, 2), until=-0.1)
