"""Linear classification from the store: how much of the teacher's accuracy a surrogate's last layer keeps.

    store (layer 0, layer L, labels), teacher's norm, surrogate  ->  ProbeReport

Features are [CLS ; mean patch] of the last layer after the teacher's final norm (the mean patch alone where
there is no CLS). Each model is read out by two heads: *frozen*, fitted on the teacher's training rows and
applied unchanged (strict), and *refitted*, fitted anew on the model's own training rows (lenient; on easy
tasks nearly vacuous). Retention is a model's accuracy over the teacher's. Beside the surrogate stand the
baselines: identity, which takes layer 0 for the last one, and whatever models are handed in, above all
untrained repeated teacher blocks. Images are not needed, and no more than features is kept of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.store.layout import TokenLayout, require_all_tokens

from .heads import STRENGTH, fit_head

__all__ = [
    "Baseline",
    "LastLayerModel",
    "ProbeReport",
    "ProbeScore",
    "checked_task",
    "pooled_features",
    "probe",
]

TEACHER, SURROGATE, IDENTITY = "teacher", "surrogate", "identity"


@runtime_checkable
class LastLayerModel(Protocol):
    """What a probe needs of a model; `Raptor` and `RepeatedBlocks` are such."""

    def last(self, tokens: Tensor) -> Tensor:
        """Layer L (batch, tokens, dim) from layer 0, of the same shape."""


Baseline = LastLayerModel | Callable[[Tensor], Tensor]
"""A model, or a function from layer 0 to layer L."""


@dataclass(frozen=True, kw_only=True)
class ProbeScore:
    """One model under both heads."""

    frozen_accuracy: float
    """Top-1 on the test rows with the teacher's head."""
    refitted_accuracy: float
    """Top-1 on the test rows with a head of its own."""
    frozen_retention: float
    """`frozen_accuracy` over the teacher's accuracy."""
    refitted_retention: float
    """`refitted_accuracy` over the teacher's accuracy."""


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """Every model's score, and what it was measured on."""

    classes: tuple[str, ...]
    """Labels that the training rows have, in the order of the head's outputs."""
    num_train: int
    """Labelled training rows."""
    num_test: int
    """Labelled test rows."""
    chance: float
    """Accuracy on the test rows of naming the most frequent training label."""
    strength: float
    """Penalty of the heads."""
    scores: dict[str, ProbeScore]
    """One score a model: `teacher`, `surrogate` if any, `identity`, and every other baseline by its name."""

    @property
    def beats_baselines(self) -> bool:
        """Whether the surrogate is above every baseline under both heads: only then does it count.

        False where there is none.
        """
        if SURROGATE not in self.scores:
            return False
        ours = self.scores[SURROGATE]
        others = [score for name, score in self.scores.items() if name not in (TEACHER, SURROGATE)]
        return all(
            ours.frozen_accuracy > other.frozen_accuracy and ours.refitted_accuracy > other.refitted_accuracy
            for other in others
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return {**asdict(self), "classes": list(self.classes), "beats_baselines": self.beats_baselines}


def pooled_features(
    tokens: Float[Tensor, "batch tokens dim"], norm: nn.Module, layout: TokenLayout
) -> Float[Tensor, "batch width"]:
    """[CLS ; mean patch] of last-layer tokens after the norm: 2 dim wide, or dim where there is no CLS."""
    normed = norm(tokens)
    parts = [normed[:, layout.span("patches")].mean(dim=1)]
    if layout.num_cls:
        parts.insert(0, normed[:, layout.span("cls")].squeeze(1))
    return torch.cat(parts, dim=-1)


@torch.no_grad()
def probe(
    store: Store,
    model: LastLayerModel | None,
    norm: nn.Module,
    baselines: Mapping[str, Baseline],
    train_rows: np.ndarray,
    test_rows: np.ndarray,
    *,
    batch_size: int = 64,
    strength: float = STRENGTH,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ProbeReport:
    """Score teacher, surrogate, identity and baselines; without a surrogate, all the others.

    `norm` is the teacher's final norm; it and the models are on `device`. Rows without a label are left out;
    `progress` is told (rows done, rows in all).

    Raises:
        ConfigError: layer 0, the last layer or a token kind is not in the store; the rows have no labels or
            only one; training and test rows overlap; a test row's label is in no training row.
        RunError: a model's last layer does not stay finite; names the model.
    """
    train_rows, test_rows, present = checked_task(store, train_rows, test_rows)
    label_ids = np.asarray(store.label_ids)
    train_labels, test_labels = (
        torch.from_numpy(np.searchsorted(present, label_ids[rows])) for rows in (train_rows, test_rows)
    )
    makers = {
        **({} if model is None else {SURROGATE: model.last}),
        IDENTITY: _identity,
        **{name: _maker(other) for name, other in baselines.items()},
    }
    rows = np.concatenate([train_rows, test_rows])
    features = _features(store, rows, makers, norm, batch_size, device, progress)
    most_frequent = train_labels.bincount(minlength=len(present)).argmax()
    return ProbeReport(
        classes=tuple(store.classes[label] for label in present),
        num_train=len(train_rows),
        num_test=len(test_rows),
        chance=float((test_labels == most_frequent).double().mean()),
        strength=strength,
        scores=_scores(features, train_labels, test_labels, strength),
    )


def checked_task(
    store: Store, train_rows: np.ndarray, test_rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled training rows, labelled test rows and the labels of the task, before anything is computed.

    Raises:
        ConfigError: as `probe`.
    """
    _check(store, train_rows, test_rows)
    label_ids = np.asarray(store.label_ids)
    train_rows, test_rows = (rows[label_ids[rows] >= 0] for rows in (train_rows, test_rows))
    return train_rows, test_rows, _classes_of(label_ids[train_rows], label_ids[test_rows], store)


def _scores(
    features: Mapping[str, Tensor], train_labels: Tensor, test_labels: Tensor, strength: float
) -> dict[str, ProbeScore]:
    """Every model under the teacher's head and its own; its training rows come first, then its test rows."""
    num_train, num_classes = len(train_labels), int(train_labels.max()) + 1
    heads = {
        name: fit_head(values[:num_train], train_labels, num_classes, strength)
        for name, values in features.items()
    }
    teacher_accuracy = heads[TEACHER].accuracy(features[TEACHER][num_train:], test_labels)
    if teacher_accuracy == 0:
        raise ConfigError(
            "retention needs a teacher that gets a test row right; its probe got none, check the labels"
        )
    scores = {}
    for name, values in features.items():
        strict, lenient = (
            head.accuracy(values[num_train:], test_labels) for head in (heads[TEACHER], heads[name])
        )
        scores[name] = ProbeScore(
            frozen_accuracy=strict,
            refitted_accuracy=lenient,
            frozen_retention=strict / teacher_accuracy,
            refitted_retention=lenient / teacher_accuracy,
        )
    return scores


def _maker(model: Baseline) -> Callable[[Tensor], Tensor]:
    """Its function from layer 0 to layer L."""
    return model.last if isinstance(model, LastLayerModel) else model


def _identity(tokens: Tensor) -> Tensor:
    return tokens


def _features(
    store: Store,
    rows: np.ndarray,
    makers: Mapping[str, Callable[[Tensor], Tensor]],
    norm: nn.Module,
    batch_size: int,
    device: torch.device | str,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Tensor]:
    """Features of every model for all rows; two layers of one batch are in memory at a time."""
    last_layer = store.manifest.teacher.num_blocks
    parts: dict[str, list[Tensor]] = {TEACHER: [], **{name: [] for name in makers}}
    for first in range(0, len(rows), batch_size):
        layers = torch.from_numpy(store.read(rows[first : first + batch_size], (0, last_layer), "all")).to(
            device
        )
        parts[TEACHER].append(pooled_features(layers[:, 1], norm, store.layout).cpu())
        for name, make in makers.items():
            made = pooled_features(make(layers[:, 0]), norm, store.layout).cpu()
            if not bool(made.isfinite().all()):
                # A head would give all of them its first class, and an accuracy that says nothing.
                raise RunError(
                    f"a probe reads finite features; those of {name} are not, first in rows {first} to "
                    f"{first + len(made) - 1} of {len(rows)}: leave it out, or train it anew at a lower "
                    "learning_rate"
                )
            parts[name].append(made)
        if progress:
            progress(min(first + batch_size, len(rows)), len(rows))
    return {name: torch.cat(values) for name, values in parts.items()}


def _check(store: Store, train_rows: np.ndarray, test_rows: np.ndarray) -> None:
    last_layer = store.manifest.teacher.num_blocks
    for layer, use in (
        (0, "the closed loop starts from layer 0"),
        (last_layer, "the probe reads the last layer"),
    ):
        if layer not in store.layers:
            raise ConfigError(
                f"{use}, and the store has only layers {list(store.layers)}; extract with layer {layer}"
            )
    require_all_tokens(store.layout, store.kinds, "a closed loop")
    if both := np.intersect1d(train_rows, test_rows).tolist():
        raise ConfigError(
            f"training and test rows are disjoint; {len(both)} rows are in both, row {both[0]} first"
        )


def _classes_of(train: np.ndarray, test: np.ndarray, store: Store) -> np.ndarray:
    """Labels of the training rows, ascending, checked to make a task."""
    if not len(train) or not len(test):
        raise ConfigError(
            f"a probe needs labelled rows to train and to test on; got {len(train)} and {len(test)} "
            "(labels come from the image folders' names)"
        )
    present = np.unique(train)
    if len(present) < 2:
        raise ConfigError(
            f"a probe tells at least 2 labels apart; every training row is {store.classes[present[0]]!r}"
        )
    if unseen := sorted(set(test.tolist()) - set(present.tolist())):
        raise ConfigError(
            f"a test row's label is in some training row; {store.classes[unseen[0]]!r} is in none; add "
            "images of it to the training split or leave it out"
        )
    return present
