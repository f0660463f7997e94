"""A run in Weights & Biases: one W&B run a stage, all of a run in one group.

    WandbWatcher("project", RUN, identity, config)    as a watcher of `train`

Ids come from the run's hash and the stage, so that a resumed stage goes on in its own W&B run, and lines that
W&B has already are not sent again. Its own variables hold: WANDB_MODE=offline keeps everything in RUN/wandb.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.store.errors import MissingExtraError

from .watching import scalars_of

if TYPE_CHECKING:
    from wandb import Run

__all__ = ["WandbWatcher"]


class WandbWatcher:
    """Sends every line of a run.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str, run: Path, identity: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ModuleNotFoundError as exc:
            raise MissingExtraError(
                "--wandb needs wandb, which is not installed: python -m pip install 'activault[wandb]'"
            ) from exc
        self._init = wandb.init
        self._project, self._folder, self._identity, self._config = project, run, identity, dict(config)
        self._run: Run | None = None
        self._sent = 0

    def begin(self, stage: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Open the stage's W&B run, and send what it has not got."""
        self.close()
        key = hashlib.sha256(f"{self._identity}:{stage}".encode()).hexdigest()[:16]
        self._run = self._init(
            project=self._project,
            name=f"{self._folder.name}/{stage}",
            group=self._folder.name,
            id=key,
            dir=str(self._folder),
            config={**self._config, "stage": stage},
            resume="allow",
        )
        self._sent = self._run.step
        for line in lines:
            self.write(stage, line)

    def write(self, stage: str, line: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Send the line's numbers at its step."""
        assert self._run is not None, "a stage is begun before it writes"
        if line["step"] >= self._sent:
            self._run.log(dict(scalars_of(line)), step=line["step"])

    def close(self) -> None:
        """End the stage's W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
