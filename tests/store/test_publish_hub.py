"""Publishing a data set, against a stand-in of the hub; not tested: Xet, the hub's limits, real buckets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import HubServer
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

from activault.store import MissingExtraError, StoreMismatchError, open_store
from activault.store.errors import AccessDeniedError
from activault.store.hub import HubBucket
from activault.store.publishing import plan_publish, publish

from .conftest import MakePlan, Plan
from .test_pull import tree

PLACE = "hf://datasets/me/photos"

# huggingface_hub 2.4 calls its HTTP client in a way that the client has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    disable_progress_bars()
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def test_a_store_becomes_a_data_set(written: Plan, hub: HubServer) -> None:
    publish(written.path, PLACE, deep=True)
    files = dict(hub.files["me/photos"])
    assert files.pop(".gitattributes")
    assert files.pop("README.md") == (written.path / "CARD.md").read_bytes()
    assert files == tree(written.path)
    assert hub.commits["me/photos"][-2:] == ["zarr.json of me/photos", "Remove .planning"]
    assert len(hub.commits["me/photos"]) < 8


def test_the_licence_is_named_on_the_page(written: Plan, hub: HubServer) -> None:
    publish(written.path, PLACE, license="cc-by-4.0")
    readme = hub.files["me/photos"]["README.md"].decode()
    front = readme.split("---\n")[1]
    assert front.startswith("license: cc-by-4.0\n")
    assert front.count("license") == 1
    assert "pretty_name" in front
    assert hub.files["me/photos"]["CARD.md"] == (written.path / "CARD.md").read_bytes()
    publish(written.path, "hf://datasets/me/other", license="Ours: only\nx: y")
    other = hub.files["me/other"]["README.md"].decode().split("---\n")[1]
    assert other.startswith('license: other\nlicense_name: "ours-only-x-y"\n')


def test_a_page_that_is_there_is_kept(written: Plan, hub: HubServer) -> None:
    publish(written.path, PLACE)
    hub.files["me/photos"]["README.md"] = b"mine"
    del hub.files["me/photos"]["zarr.json"]
    hub.files["me/photos"][".planning"] = plan_publish(written.path, "hf://datasets/me/new").marker
    publish(written.path, PLACE)
    assert hub.files["me/photos"]["README.md"] == b"mine"


def test_a_folder_of_a_data_set(written: Plan, make_plan: MakePlan, hub: HubServer) -> None:
    publish(written.path, f"{PLACE}/stores/a.zarr")
    other = make_plan("other.zarr", row_seed=3)
    other.write()
    publish(other.path, f"{PLACE}/stores/b.zarr")
    names = hub.files["me/photos"]
    assert {name.split("/")[1] for name in names if name.startswith("stores/")} == {"a.zarr", "b.zarr"}
    assert "README.md" not in names
    with pytest.raises(StoreMismatchError, match="row_seed is 0 there and 3 here"):
        publish(other.path, f"{PLACE}/stores/a.zarr")


def test_publishing_again_commits_nothing(written: Plan, hub: HubServer) -> None:
    publish(written.path, PLACE)
    before = len(hub.commits["me/photos"])
    publish(written.path, PLACE)
    assert len(hub.commits["me/photos"]) == before


def test_a_broken_publication_goes_on(written: Plan, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.store.hub import HubDataset

    monkeypatch.setattr(HubDataset, "at_once", 20)
    commits: list[Any] = []
    send = HubDataset._send

    def failing(self: HubDataset, *arguments: Any) -> None:
        commits.append(arguments)
        if len(commits) == 3:
            raise ConnectionError("cut")
        send(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(HubDataset, "_send", failing)
        with pytest.raises(ConnectionError):
            publish(written.path, PLACE)
    assert "zarr.json" not in hub.files["me/photos"]
    planned = plan_publish(written.path, PLACE)
    assert len(planned.there) == 20
    planned.run()
    assert "zarr.json" in hub.files["me/photos"]
    assert ".planning" not in hub.files["me/photos"]


def test_a_passing_failure_is_tried_again(written: Plan, hub: HubServer) -> None:
    hub.failures += [("/preupload/", 503), ("/lfs/", 503)]
    publish(written.path, PLACE)
    assert "zarr.json" in hub.files["me/photos"]


def test_a_wrong_token_is_told(written: Plan, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AccessDeniedError, match=r"may not be written \(401\); set HF_TOKEN"):
        publish(written.path, PLACE)


def test_without_the_extra_it_is_named(written: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"activault\[hf\]"):
        publish(written.path, PLACE)


class Buckets:
    """The calls of `HfApi` that buckets take, in memory: the library sends them through Xet alone."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create_bucket(self, repo: str, exist_ok: bool) -> None:
        assert exist_ok

    def list_bucket_tree(self, repo: str, prefix: str | None, recursive: bool) -> list[Any]:
        names = [name for name in self.files if name.startswith(prefix or "")]
        return [SimpleNamespace(path=name, size=len(self.files[name])) for name in names]

    def batch_bucket_files(self, repo: str, add: Any = (), delete: Any = ()) -> None:
        for source, name in add:
            self.files[name] = source if isinstance(source, bytes) else Path(source).read_bytes()
        for name in delete:
            del self.files[name]

    def download_bucket_files(self, repo: str, files: Any) -> None:
        for name, target in files:
            Path(target).write_bytes(self.files[name])


def test_a_bucket_of_the_hub(written: Plan) -> None:
    buckets = Buckets()
    place = HubBucket(buckets, "me/bucket", "a.zarr")
    publish(written.path, place, deep=True)
    assert {name.removeprefix("a.zarr/"): data for name, data in buckets.files.items()} == tree(written.path)
    assert open_store(written.path).complete
