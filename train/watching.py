"""Who watches a run: TensorBoard and others like it, told of every line that a stage writes down.

    a line of STAGE/metrics.jsonl  ->  names and numbers: loss, validation/r2/patches/layer_07, ...

A watcher is told first which lines the stage has already, and makes its own record agree with them; so a
resumed stage shows no step twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from activault.store.errors import MissingExtraError

from .checkpoint import disk_errors

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

__all__ = ["FIGURES", "TensorBoard", "Watcher", "figures_of", "scalars_of"]

Line = Mapping[str, Any]
FIGURES = ("r2", "cosine", "norm_ratio", "eps", "relative_eps")
"""What a validation measures, a table of token kinds each."""


@runtime_checkable
class Watcher(Protocol):
    """Told in process 0 alone."""

    def begin(self, stage: str, lines: Sequence[Line]) -> None:
        """A stage goes on behind these lines."""

    def write(self, stage: str, line: Line) -> None:
        """The stage has written one more."""

    def close(self) -> None:
        """No stage goes on."""


def figures_of(validation: Line) -> Iterator[tuple[str, int, str, float]]:
    """(figure, layer, token kind, value) of a validation; an R2 that is constant is left out."""
    for figure in FIGURES:
        for kind, values in validation.get(figure, {}).items():
            for layer, value in zip(validation["layers"], values, strict=True):
                if value != "constant":
                    yield figure, layer, kind, value


def scalars_of(line: Line) -> Iterator[tuple[str, float]]:
    """Names, by slashes, and numbers of one line."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield "validation/mean_r2", value["mean_r2"]
            for figure, layer, kind, number in figures_of(value):
                yield f"validation/{figure}/{kind}/layer_{layer:02d}", number
        elif name != "step":
            yield name, value


class TensorBoard:
    """Event files under RUN/tensorboard/STAGE; `tensorboard --logdir RUN/tensorboard` shows them.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ModuleNotFoundError as exc:
            raise MissingExtraError(
                "event files for TensorBoard need tensorboard, which is not installed: python -m pip install "
                "'activault[all]', or train with --no-tensorboard"
            ) from exc
        self._make = SummaryWriter
        self._folder = run / "tensorboard"
        self._writer: SummaryWriter | None = None

    def begin(self, stage: str, lines: Sequence[Line]) -> None:
        """Write the stage's events anew from its lines: what a killed process left behind goes."""
        self.close()
        folder = self._folder / stage
        with disk_errors(folder):
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer = self._make(str(folder))
        for line in lines:
            self.write(stage, line)

    def write(self, stage: str, line: Line) -> None:
        """Add the line's numbers at its step."""
        assert self._writer is not None, "a stage is begun before it writes"
        with disk_errors(self._folder / stage):
            for name, value in scalars_of(line):
                self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Bring what was written to the disk."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with disk_errors(self._folder):
                writer.close()
