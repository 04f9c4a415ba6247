"""Buckets of local emulators of S3 and of Google Cloud Storage."""

import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from jaxformer.remote import copy as run_copy
from jaxformer.remote import lock, object_store

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SCHEMES = ("s3", "gs")


@pytest.fixture(scope="session")
def emulators():
    """The environment of processes that use the emulators."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("emulators.py")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        line = next(line for line in process.stdout if line.startswith("ports"))
        _, s3, gs = line.split()
        yield {
            **dict.fromkeys(KEYS, "testing"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{gs}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        process.kill()


@pytest.fixture(scope="session")
def stores(emulators):
    """A bucket of each kind."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in emulators.items():
            patched.setenv(name, value)
        patched.setattr(lock, "_RENEWAL", 0.3)
        patched.setattr(object_store, "_DELAYS", (0.1, 0.1))
        stores = {scheme: fsspec.filesystem(scheme) for scheme in SCHEMES}
        for store in stores.values():
            store.mkdir("bucket")
        yield stores


@pytest.fixture
def move(tmp_path, monkeypatch):
    """Go to another machine: a function that gives this one an empty cache folder."""

    def move(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        run_copy._copies.clear()

    move("first")
    return move


@pytest.fixture(scope="session")
def published(stores, trained):
    """The finished run in both stores."""
    for scheme, store in stores.items():
        for file in trained.workdir.rglob("*"):
            if file.is_file() and file.name != ".lock":
                name = file.relative_to(trained.workdir).as_posix()
                store.pipe_file(f"{scheme}://bucket/toy/{name}", file.read_bytes())


@pytest.fixture
def own(published, stores):
    """Copy the finished run within a store, for a test to change; its URL."""

    def copy(name, scheme="s3"):
        bucket, store = f"{scheme}://bucket", stores[scheme]
        for each in names_in(stores, f"{bucket}/toy"):
            content = store.cat_file(f"{bucket}/toy/{each}")
            store.pipe_file(f"{bucket}/{name}/{each}", content)
        return f"{bucket}/{name}"

    return copy


def names_in(stores, url):
    scheme = url.partition(":")[0]
    start = len(url) - len(f"{scheme}://") + 1
    found = (name[start:] for name in stores[scheme].find(url))
    return {*filter(None, found)}
