"""The reference's trainer (KempnerInstitute/raptor at ba3b53f, MIT), from a checkout outside this repository.

A task and a way in, a `Measured` out. It is its own `train` with its own options, in its own words: forward,
loss, `.item()`, schedule, backward, clipping, AdamW, logging. Replaced from outside are the loader by a timed
one, on request around its own, and what stands beside the steps: the teacher and the images that it validates
on, its validation, and the libraries that only those and its tracker need.
"""

from __future__ import annotations

import importlib
import io
import shutil
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from lessons import BOTH, CLOSED, LOADER, ROLLED, EnoughError, Feed, Measured, Task, Way
from peer_reference import loader_class
from train_ours import PARITY, model_of, one_batch

from activault.train.losses import SpanLoss, autoregressive_loss, teacher_forcing_loss
from activault.train.raptor import Raptor

REFERENCE = "the reference"
_COMMON = "--sigma 0 --lr 3e-4 --t_scale --swiglu --start_layer 0"
_STAGE_1 = f"--teacher_force --mse {_COMMON}"
_STAGE_2 = (
    f"--autoreg --weighted {_COMMON} --end_layer 12 --cls_weight 0.45 --reg_weight 0.10 --patch_weight 0.45"
)
_QUEUE = 4
"""Batches of its loader's queue, instead of 30: it is as full as it ever gets before a step is counted, and
filling it takes less of the benchmark's time and memory."""
_TOLERANCE = 1e-4
_NAMES = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.qkv.weight": "attn.in_proj_weight",
    "attn.qkv.bias": "attn.in_proj_bias",
    "attn.proj": "attn.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "ls1.gamma": "ls1.gamma",
    "ls2.gamma": "ls2.gamma",
    "depth.fc1": "t_proj.0",
    "depth.fc2": "t_proj.2",
}
"""Our tensors' names in its blocks."""


def array_of(task: Task) -> Path:
    """Its own layout of the same rows, which `train.py` writes."""
    return task.work / "the-reference" / "activations.zarr"


def measure(task: Task, way: Way) -> Measured:
    """Some steps of its trainer, in the process that this is called in."""
    torch.set_num_threads(task.threads)
    module = _trainer(task)
    models = task.work / "reference-models"
    handed: list[Feed[torch.Tensor]] = []
    opened: list[_Own] = []

    def timed(**options: Any) -> Feed[torch.Tensor]:
        if way.source == LOADER:
            assert task.checkout is not None
            opened.append(_Own(loader_class(task.checkout)(**{**options, "queue_size": _QUEUE})))
            batches = opened[0].batches()
        else:
            batches = repeat(one_batch(task, way.lesson))
        handed.append(Feed(batches, task.num_steps))
        return handed[0]

    module.AsynchZarrLoader = timed
    try:
        with redirect_stdout(io.StringIO()):
            module.train(_config(task, way.lesson, models))
    except EnoughError:
        measured = handed[0].measured()
        return replace(measured, first_wait_s=opened[0].first_wait_s) if opened else measured
    finally:
        for own in opened:
            own.close()
        shutil.rmtree(models, ignore_errors=True)
    raise AssertionError("its training is not over in a benchmark")


class _Own:
    """Its loader, as full as it gets before the first step."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches = iter(loader)
        begun = time.perf_counter()
        self._first = next(self._batches)
        self.first_wait_s = time.perf_counter() - begun
        before = -1
        # Full, or its whole epoch read: its threads put nothing more.
        while loader.queue.qsize() != before and not loader.queue.full():
            before = loader.queue.qsize()
            time.sleep(1)

    def batches(self) -> Iterator[torch.Tensor]:
        """Its batches, without end."""
        yield self._first
        yield from self._batches

    def close(self) -> None:
        """End its threads."""
        self._loader.close()
        self._batches.close()


def _trainer(task: Task) -> Any:
    """Its module `trainer`, without what stands beside the steps."""
    assert task.checkout is not None
    folder = str(task.checkout / "raptor")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for package in ("wandb", "overcomplete"):
        if package not in sys.modules and find_spec(package) is None:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[f"{package}.metrics"] = _Metrics(f"{package}.metrics")
    module = importlib.import_module("trainer")
    module.datasets = types.SimpleNamespace(ImageFolder=lambda **_: [])
    module.DataLoader = lambda *_, **__: None
    module.DinoModelWrapper = lambda *_, **__: None
    module.validation_step = lambda *_: (0.0, 0.0)
    return module


class _Metrics(types.ModuleType):
    """Where its validation, which is not run, has its R2 from."""

    r2_score = None


def _config(task: Task, lesson: str, models: Path) -> dict[str, Any]:
    """What its command line makes of the options of its README, at this width, on a CPU."""
    config = importlib.import_module("config")
    words = f"--raptor{task.k} {_STAGE_2}" if lesson == CLOSED else f"{_STAGE_1} --end_layer {task.cuts[0]}"
    teacher = task.opened().manifest.teacher
    given = sys.argv
    sys.argv = ["trainer.py", *words.split()]
    try:
        made: dict[str, Any] = config.build_config(
            config.parse_args(), dim=teacher.dim, num_heads=teacher.num_heads, batch_size=task.batch_size
        )
    finally:
        sys.argv = given
    changed = {"data_dir": str(array_of(task)), "model_save_dir": str(models), "device": "cpu"}
    if lesson == ROLLED:
        # Annealing that takes one step.
        changed["tf_anneal_ratio"] = 1.5 / (made["epochs"] * (1_000_000 // task.batch_size))
    return {**made, **changed}


def check(task: Task) -> None:
    """With the same weights and batch its losses and their gradients are ours in the parity configuration.

    Raises:
        AssertionError: they are not: the two do not do the same work.
    """
    torch.set_num_threads(task.threads)
    module, store = _trainer(task), task.opened()
    plain = SpanLoss(layout=store.layout, weights=None, scales=None)
    for lesson in (BOTH, CLOSED):
        model, batch = _drawn(model_of(PARITY, task, store)), one_batch(task, lesson)[:4]
        blocks = list(model.blocks)[: None if lesson == CLOSED else 1]
        theirs = module.build_model(_config(task, lesson, task.work), "cpu")
        for mine, other in zip(blocks, theirs.blocks if lesson == CLOSED else [theirs], strict=True):
            other.load_state_dict({_their_name(name): value for name, value in mine.state_dict().items()})
        losses = [autoregressive_loss(model, batch, 0, plain)]
        other_losses = [module.autoreg_pass(theirs, batch, module.loss_mse, 0, 0.0, torch.ones(1))]
        if lesson == BOTH:
            layers = torch.arange(1.0, batch.shape[1]).unsqueeze(0)
            losses.append(teacher_forcing_loss(model, batch, 0, plain))
            other_losses.append(module.distill_pass(theirs, batch, module.loss_mse, 0.0, layers))
        for mine, other in zip(losses, other_losses, strict=True):
            _same(lesson, "loss", mine.item(), other.item())
            _same(lesson, "gradient", _gradient_norm(mine, blocks), _gradient_norm(other, [theirs]))


def _drawn(model: Raptor) -> Raptor:
    """Every branch of a size where it matters: fresh blocks hardly differ from doing nothing."""
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def _their_name(ours: str) -> str:
    stem = next(name for name in _NAMES if ours == name or ours.startswith(f"{name}."))
    return _NAMES[stem] + ours[len(stem) :]


def _gradient_norm(loss: torch.Tensor, modules: Sequence[torch.nn.Module]) -> float:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    gradients = torch.autograd.grad(loss, parameters)
    return float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())


def _same(lesson: str, what: str, ours: float, theirs: float) -> None:
    assert abs(ours - theirs) <= _TOLERANCE * abs(theirs), (
        f"{lesson}: our {what} is {ours:.8g} and the reference's {theirs:.8g}"
    )
