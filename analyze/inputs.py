"""What a report is written from: the store's facts, the analyses, and, where there was a run, its results.

Results of training come as plain rows, so that they can be read back from JSON as well as handed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from activault.store import Store
from activault.store.errors import ConfigError

from .similarity import LayerSimilarity
from .study import StoreAnalysis

__all__ = ["LossCurve", "ProbeRow", "R2Row", "ReportInputs", "StoreFacts", "store_facts"]


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What a store is, in the numbers that a reader asks for first."""

    teacher: str
    """Name that the teacher was asked for by; `demo` brings a note about it."""
    architecture: str
    source: str
    """Name of the image source."""
    image_size: tuple[int, int] | None
    """Height and width of the teacher's input in pixels."""
    num_rows: int
    num_bad: int
    """Rows whose image was bad."""
    num_layers: int
    """Layers that are kept, layer 0 included."""
    tokens_per_layer: int
    dim: int
    dtype: str
    num_bytes: int
    """Bytes of the stored arrays."""
    float32_bytes: int
    """Bytes of the same arrays as plain float32."""
    digest: str
    """Name of the content."""


def store_facts(store: Store) -> StoreFacts:
    """The facts of an open store."""
    manifest = store.manifest
    return StoreFacts(
        teacher=manifest.teacher.name,
        architecture=manifest.teacher.architecture,
        source=manifest.source.name,
        image_size=manifest.preprocessing.image_size if manifest.preprocessing else None,
        num_rows=store.num_rows,
        num_bad=store.num_bad,
        num_layers=len(store.layers),
        tokens_per_layer=sum(store.layout.count(kind) for kind in store.kinds),
        dim=store.dim,
        dtype=manifest.dtype,
        num_bytes=store.num_bytes,
        float32_bytes=store.float32_bytes,
        digest=store.digest,
    )


@dataclass(frozen=True, kw_only=True)
class R2Row:
    """How well a roll-out reproduces one layer's tokens of one kind."""

    layer: int
    kind: str
    """Token kind, or `all`."""
    value: float | None
    """R2, at most 1; None where the kind is constant and R2 means nothing."""

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any]) -> tuple[R2Row, ...]:
        """Rows of `RolloutMetrics.to_dict()`: `layers`, and `r2` by kind, the word `constant` for None."""
        return tuple(
            cls(layer=layer, kind=kind, value=None if value == "constant" else value)
            for kind, values in metrics["r2"].items()
            for layer, value in zip(metrics["layers"], values, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class ProbeRow:
    """One model's accuracy under one head."""

    name: str
    """`teacher`, `surrogate`, or a baseline's name, such as `identity`."""
    head: Literal["frozen", "refitted"]
    accuracy: float
    """Top-1 on the test rows, in [0, 1]."""
    retention: float
    """Accuracy over the teacher's."""

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> tuple[ProbeRow, ...]:
        """Rows of `ProbeReport.to_dict()`: `scores` by model, with accuracies and retentions by head."""
        heads: tuple[Literal["frozen", "refitted"], ...] = ("frozen", "refitted")
        return tuple(
            cls(
                name=name, head=head, accuracy=score[f"{head}_accuracy"], retention=score[f"{head}_retention"]
            )
            for head in heads
            for name, score in report["scores"].items()
        )


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Training loss of one part of a run."""

    stage: str
    """Curves of one stage share a figure, such as `each phase alone` and `closed loop`."""
    name: str
    """The curve's own name, such as `phase 1`."""
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Everything that a report shows; parts that are empty are left out, and the report says so.

    Raises:
        ConfigError: `cuts` do not divide the analysed layers.
    """

    store: StoreFacts
    analysis: StoreAnalysis
    cuts: tuple[int, ...]
    """Phases that the figures are drawn with: the run's, or one of the analysis."""
    r2: Sequence[R2Row] = ()
    """Of a run's roll-outs, on rows of the test split."""
    probes: Sequence[ProbeRow] = ()
    losses: Sequence[LossCurve] = ()
    phase_similarity: LayerSimilarity | None = None
    """What the phases were cut from, where it is not the analysis's own similarity (training rows, say)."""
    notes: dict[str, str] = field(default_factory=dict)
    """Further facts for the table at the end, such as rows, steps and seconds of the run."""

    def __post_init__(self) -> None:
        blocks = [layer for layer in self.analysis.layers if layer >= 1]
        if list(self.cuts) != sorted(set(self.cuts) & set(blocks[:-1])):
            raise ConfigError(f"cuts ascend within the analysed layers {blocks[:-1]}; got {list(self.cuts)}")

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of each phase of `cuts`."""
        layers = [layer for layer in self.analysis.layers if layer >= 1]
        starts = [layers[0], *(layers[layers.index(cut) + 1] for cut in self.cuts)]
        return tuple(zip(starts, [*self.cuts, layers[-1]], strict=True))
