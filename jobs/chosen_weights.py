"""Which of a finished run's weights are looked at: the last ones or the best, as they are or averaged.

which, ema  ->  ChosenWeights, which names their files and tells a recipe that will not have them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from activault.store import ConfigError

if TYPE_CHECKING:
    from activault.train import TrainRecipe

__all__ = ["LAST", "ChosenWeights"]


@dataclass(frozen=True, kw_only=True)
class ChosenWeights:
    """One of the models that a finished run may have."""

    which: Literal["last", "best"] = "last"
    """The last weights, or those of the best validation."""
    ema: bool = False
    """Their moving average in their place."""

    @property
    def name(self) -> str:
        """`last`, `last_ema`, `best` or `best_ema`."""
        return f"{self.which}{'_ema' if self.ema else ''}"

    @property
    def suffix(self) -> str:
        """What their files end in, as `model_best_ema` does; nothing for the last weights."""
        return f"{'_best' if self.which == 'best' else ''}{'_ema' if self.ema else ''}"

    def to_job(self) -> dict[str, Any]:
        """What a job says of them; nothing of the last weights, so that its hash stays what it was."""
        return {} if self == LAST else {"weights": {"which": self.which, "ema": self.ema}}

    def check_kept(self, recipe: TrainRecipe, whose: str) -> None:
        """Refuse a recipe whose run ends without them.

        Raises:
            ConfigError: its last stage does not validate, or averages nothing.
        """
        name, stage = ("stage2", recipe.stage2) if recipe.stage2.steps else ("stage1", recipe.stage1)
        lacking = []
        if self.which == "best" and not stage.validate_every:
            lacking.append(("which = 'best'", "validate_every"))
        if self.ema and not stage.ema_decay:
            lacking.append(("ema = true", "ema_decay"))
        for asked, key in lacking:
            raise ConfigError(
                f"{whose}: {asked} is measured where a run's last stage keeps it; got {name}.{key} = 0: set "
                "that, or leave such runs to a cell that measures other weights"
            )


LAST = ChosenWeights()
"""What is looked at where nothing is said."""
