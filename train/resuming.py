"""Going on from a checkpoint: what it says is held against the stage and the loader.

    stage, folder, Checkpoint, loader  ->  the loader at the checkpoint's position, or a RunError

Where a loader stands after so many steps follows from the number of its rows: a checkpoint that says another
place was altered, and would learn from other batches than the run that was cut.
"""

from __future__ import annotations

from pathlib import Path

from activault.store import ActivationLoader
from activault.store.errors import ConfigError, RunError

from .checkpoint import Checkpoint
from .checkpoint_record import way_out
from .stages import Stage

__all__ = ["check_step", "go_to"]


def check_step(stage: Stage, folder: Path, saved: Checkpoint) -> None:
    """Hold a checkpoint's step and loss against its stage.

    Raises:
        RunError: it is beyond the stage's end, or is at its end without a loss.
    """
    if saved.step > stage.config.steps:
        raise RunError(
            f"stage {stage.name} has {stage.config.steps} steps and its checkpoint is at {saved.step}; "
            f"remove {folder}"
        )
    if saved.step == stage.config.steps and saved.last_loss is None:
        raise RunError(
            f"a finished stage has its last loss; {folder / 'checkpoint.json'} is at step {saved.step} of "
            f"{stage.config.steps} with last_loss null; {way_out(folder)}"
        )


def go_to(loader: ActivationLoader, folder: Path, saved: Checkpoint, *, batch_size: int) -> None:
    """Put the loader where the checkpoint left it; `batch_size` is that of all processes together.

    Raises:
        RunError: the checkpoint's loader state is none, is another loader's, or is not that of its step.
    """
    path = folder / "checkpoint.json"
    try:
        loader.load_state_dict(saved.loader)
    except ConfigError as exc:
        raise RunError(f"{path} does not fit the rows of this stage: {exc}; {way_out(folder)}") from exc
    if saved.loader["version"] == 1:
        return  # an order that is no longer made may begin its epoch again
    state = loader.state_dict()
    epoch, batches = divmod(saved.step, len(loader))
    if (state["epoch"], state["row"]) != (epoch, batches * batch_size):
        raise RunError(
            f"{path} is not what was written: after {saved.step} steps the loader is in epoch {epoch} at row "
            f"{batches * batch_size}, and it says epoch {state['epoch']}, row {state['row']}; "
            f"{way_out(folder)}"
        )
