"""Checkpoints: whole or the one before, no pickle, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from activault.store.errors import RunError
from activault.train import checkpoint as module
from activault.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def trained(steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(steps):
        update(net, optimizer)
    return net, optimizer


def update(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()


def record(step: int = 3) -> Checkpoint:
    return Checkpoint(
        stage="s", step=step, identity="i", loader={"batch": step}, pending=[0.5], last_loss=0.25
    )


def test_round_trip_goes_on_bit_for_bit(tmp_path: Path) -> None:
    net, optimizer = trained()
    save_checkpoint(tmp_path, record(), net, optimizer)
    update(net, optimizer)
    other, fresh = trained(0)
    torch.manual_seed(99)
    assert load_checkpoint(tmp_path, other, fresh, identity="i") == record()
    update(other, fresh)  # draws its data from the restored random state
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_before_the_first_update_there_are_no_moments(tmp_path: Path) -> None:
    net, optimizer = trained(0)
    save_checkpoint(tmp_path, record(0), net, optimizer)
    assert load_checkpoint(tmp_path, *trained(0), identity="i") == record(0)


def test_folder_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, *trained(0), identity="i") is None


def test_only_the_last_is_kept_and_leftovers_are_swept(tmp_path: Path) -> None:
    net, optimizer = trained()
    for name in ("step_000000001.safetensors.0f.tmp", "checkpoint.json.0f.tmp", "metrics.jsonl.0f.tmp"):
        (tmp_path / name).write_bytes(b"half")
    for step in (3, 6):
        save_checkpoint(tmp_path, record(step), net, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.json",
        "step_000000006.safetensors",
    ]


@pytest.mark.parametrize("dies_at", ["tensors", "json"])
def test_writer_that_dies_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    net, optimizer = trained()
    save_checkpoint(tmp_path, record(3), net, optimizer)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    update(net, optimizer)

    def die(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file" if dies_at == "tensors" else "write_json", die)
    with pytest.raises((RunError, OSError), match="No space left"):
        save_checkpoint(tmp_path, record(4), net, optimizer)
    other, fresh = trained(0)
    assert load_checkpoint(tmp_path, other, fresh, identity="i") == record(3)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_full_disk_is_told_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", die)
    with pytest.raises(
        RunError, match=r"step_000000003\.safetensors could not be written: .*No space.*before is whole"
    ):
        save_checkpoint(tmp_path, record(), *trained())


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    module.write_json(path, {"a": 1})

    def half(temporary: Path) -> None:
        temporary.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match=r"a\.json could not be written: .* make room or allow writing there"):
        module.write_atomically(path, half)
    assert [there.name for there in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == '{\n  "a": 1\n}\n'


def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path: Path) -> None:
    used: list[str] = []

    def outer(temporary: Path) -> None:
        temporary.write_text("outer")
        used.append(temporary.name)
        if len(used) == 1:
            module.write_atomically(tmp_path / "a", outer)

    module.write_atomically(tmp_path / "a", outer)
    assert len(set(used)) == 2


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_foreign_and_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, record(), *trained())
    path = tmp_path / "checkpoint.json"
    whole = path.read_text()
    with pytest.raises(RunError, match="another recipe, phases or store; choose another folder"):
        load_checkpoint(tmp_path, *trained(0), identity="other")
    with pytest.raises(RunError, match=r"does not hold this stage's tensors") as caught:
        load_checkpoint(tmp_path, nn.Linear(3, 3), identity="i")
    assert "\n" not in str(caught.value)
    change(path, version=2)
    with pytest.raises(RunError, match="has version 2 and this program reads 1"):
        load_checkpoint(tmp_path, *trained(0), identity="i")
    path.write_text(whole)
    change(path, tensors="../elsewhere.safetensors")
    with pytest.raises(RunError, match=r"names tensors outside its folder: '\.\./elsewhere"):
        load_checkpoint(tmp_path, *trained(0), identity="i")
    path.write_text(whole[:40])
    with pytest.raises(RunError, match=r"is no checkpoint: .*to train the stage anew"):
        load_checkpoint(tmp_path, *trained(0), identity="i")


def test_truncated_tensors_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, record(), *trained())
    tensors = tmp_path / "step_000000003.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-20])
    with pytest.raises(RunError, match=r"step_000000003\.safetensors is not what was written; remove"):
        load_checkpoint(tmp_path, *trained(0), identity="i")


def test_there_is_no_pickle(tmp_path: Path) -> None:
    """Defect of the reference: whole modules pickled as checkpoints, which only its own code can read."""
    save_checkpoint(tmp_path, record(), *trained())
    tensors = (tmp_path / "step_000000003.safetensors").read_bytes()
    header = json.loads(tensors[8 : 8 + int.from_bytes(tensors[:8], "little")])
    assert {
        "model.0.weight",
        "exp_avg.0.weight",
        "exp_avg_sq.0.weight",
        "step.0.weight",
        "rng.cpu",
    } <= header.keys()
