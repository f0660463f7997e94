"""A store in a bucket: on moto's server, and on Ceph's, which also looks at rights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from s3_server import KEY, S3, SECRET

from activault.store import CorruptStoreError, NotAStoreError, open_store, remote, verify_store
from activault.store.errors import AccessDeniedError, StorageError, UnreachableError
from activault.store.places import open_storage
from activault.store.remote import RemoteSettings

from .conftest import MakePlan, Plan

pytestmark = pytest.mark.timeout(600)  # Ceph may have to be installed
LAYERS = [0, 2, 4]


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's own credentials."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr(remote, "DEFAULTS", RemoteSettings(num_retries=1, first_wait_s=0.01))


@pytest.fixture
def anonymous(ceph: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, without credentials set for it."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    return ceph


@pytest.fixture
def url(s3: S3, written: Plan) -> str:
    """The written store in a bucket."""
    return _put(s3, written)


@pytest.fixture
def private(ceph: S3, written: Plan) -> str:
    """The written store in a bucket whose rights are looked at."""
    return _put(ceph, written)


def _put(s3: S3, written: Plan) -> str:
    bucket = s3.make_bucket()
    s3.put_folder(bucket, "some where/a.zarr", written.path)
    return f"s3://{bucket}/some where/a.zarr"


def test_a_complete_store_reads_as_from_disk(url: str, written: Plan) -> None:
    far, near = open_store(url), open_store(written.path)
    assert far.path == url
    assert far.info() == near.info()
    np.testing.assert_array_equal(far.read(slice(0, 50), LAYERS), written.stored)
    np.testing.assert_array_equal(far.read([49, 3, 3], [4], "patches"), written.stored[[49, 3, 3], 2:, 3:])


def test_it_verifies(url: str, s3: S3) -> None:
    assert verify_store(url, deep=True, complete=True).ok
    path = url.removeprefix("s3://")
    s3.put(f"{path}/layer_02/cls/c/1/0/0", b"something else")
    s3.delete(f"{path}/shards/00003.json")
    found = {fault.where for fault in verify_store(url, deep=True).faults}
    assert {"layer_02/cls/c/1/0/0", "shards/00003.json"} <= found


def test_a_store_at_the_root_of_a_bucket(s3: S3, written: Plan) -> None:
    bucket = s3.make_bucket()
    s3.put_folder(bucket, "", written.path)
    np.testing.assert_array_equal(open_store(f"s3://{bucket}").read([5], [2]), written.stored[[5], 1:2])


@pytest.mark.s3  # a thousand PUTs: 6 s with moto
def test_names_are_listed_page_by_page(ceph: S3) -> None:
    bucket = ceph.make_bucket()
    names = [f"{number:05d}.json" for number in range(1005)]
    for name in names:
        ceph.put(f"{bucket}/a/shards/{name}", b"")
    ceph.put(f"{bucket}/a/teacher/x", b"")
    place = open_storage(f"s3://{bucket}/a")
    assert place.names("shards") == names
    assert place.names("") == ["shards", "teacher"]
    assert place.names("nowhere") == []


def test_an_unfinished_store(s3: S3, make_plan: MakePlan) -> None:
    plan = make_plan()
    plan.write(shards=[1, 3])
    bucket = s3.make_bucket()
    s3.put_folder(bucket, "a", plan.path)
    far = open_store(f"s3://{bucket}/a")
    assert far.digest == open_store(plan.path).digest
    np.testing.assert_array_equal(far.read([16, 48], LAYERS), plan.stored[[16, 48]])


def test_a_missing_file(url: str, s3: S3) -> None:
    far = open_store(url)
    s3.delete(f"{url.removeprefix('s3://')}/layer_02/cls/c/1/0/0")
    with pytest.raises(
        CorruptStoreError, match=r"rows 16 to 19 \(shard 1\): layer_02/cls/c/1/0/0 is missing"
    ):
        far.read([16], [2], "cls")


def test_a_missing_store_and_a_missing_bucket(s3: S3) -> None:
    bucket = s3.make_bucket()
    with pytest.raises(NotAStoreError, match=rf"no s3://{bucket}/a/zarr.json\); check the URL"):
        open_store(f"s3://{bucket}/a")
    with pytest.raises(
        StorageError, match=r"s3://nowhere/a/zarr\.json: there is no such bucket; check the URL"
    ):
        open_store("s3://nowhere/a")


@pytest.mark.s3
@pytest.mark.parametrize(
    ("name", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "wrong")]
)
def test_wrong_credentials(private: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(
        AccessDeniedError,
        match=r"zarr.json may not be read \(403\); check the credentials, and that they allow",
    ):
        open_store(private)


@pytest.mark.s3
def test_a_private_store_without_credentials(private: str, anonymous: S3) -> None:
    with pytest.raises(
        AccessDeniedError,
        match=r"\(403\); no credentials were found: set AWS_ACCESS_KEY_ID .* a missing file",
    ):
        open_store(private)


@pytest.mark.s3
def test_a_public_store_is_read_without_credentials(anonymous: S3, written: Plan) -> None:
    bucket = anonymous.make_bucket(public=True)
    anonymous.put_folder(bucket, "a", written.path)
    far = open_store(f"s3://{bucket}/a")
    np.testing.assert_array_equal(far.read([5], [2]), written.stored[[5], 1:2])
    assert far.storage.names("shards") is None  # nobody may list
    with pytest.raises(
        AccessDeniedError, match=r"without the right to list \(s3:ListBucket\) S3 answers the same"
    ):
        far.storage.read("nothing")


@pytest.mark.s3
def test_credentials_and_endpoint_from_a_profile(
    private: str, ceph: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ceph.environment:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {ceph.endpoint}\n")
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert open_store(private).complete


def test_no_server(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match=r"s3://b/a/zarr.json does not answer"):
        open_store("s3://b/a")


def test_an_http_endpoint_may_be_forbidden(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(StorageError, match=r"s3://.*zarr\.json"):
        open_store(url)
