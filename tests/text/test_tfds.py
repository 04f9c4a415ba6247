"""Tests of TFDS: a real, tiny set is read, and a missing one fails in seconds."""

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from jaxformer.system.errors import InputError
from jaxformer.text import tfds as tfds_source
from jaxformer.text.tfds import read_tfds

TINY = "tiny_translate/de-en"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """An empty folder, once TFDS can prepare TINY."""
    import tensorflow_datasets as tfds

    class TinyTranslate(tfds.core.GeneratorBasedBuilder):
        """Pairs like those of wmt14_translate."""

        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="de-en", version="1.0.0"),)

        def _info(self):
            features = tfds.features.Translation(languages=("de", "en"))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self.examples(3000), "validation": self.examples(2)}

        def _generate_examples(self):
            raise NotImplementedError

        def examples(self, count):
            for i in range(count):
                yield i, {"en": f"street {i}", "de": f"Straße\n{i}"}

    return tmp_path_factory.mktemp("tfds")


def read(name, split, folder, direction="en-de"):
    source, target = direction.split("-")
    config = SimpleNamespace(
        source_language=source, target_language=target, directory=str(folder)
    )  # fmt: skip
    return list(read_tfds(config, name, split))


def assert_refused(message, *arguments, **options):
    with pytest.raises(InputError, match=message) as error:
        read(*arguments, **options)
    assert "\n" not in str(error.value)


def test_a_line_has_no_line_end_and_bad_bytes_are_named(monkeypatch):
    import tensorflow_datasets as tfds

    batch = {"en": [b"a\r\nb", b"\xff"], "de": [b"c", b"d"]}
    monkeypatch.setattr(tfds, "as_numpy", lambda _: [batch])
    info = SimpleNamespace(full_name="set/1.0.0")
    how = {"as_dataset": lambda **_: None, "data_path": "/data/set"}
    builder = SimpleNamespace(info=info, **how)
    pairs = tfds_source._stream(builder, "train", ("en", "de"))
    assert next(pairs) == ("a  b", "c")
    with pytest.raises(
        InputError, match=r"^pair 2 of train in TFDS set/1.0.0 cannot.*/data/set"
    ):
        next(pairs)


@pytest.mark.slow
def test_a_set_is_prepared_once_and_read_either_way(tiny, capsys):
    pairs = read(TINY, "train", tiny)
    assert capsys.readouterr().out == ""
    numbers = [int(source.split()[1]) for source, _ in pairs]
    assert sorted(numbers) == list(range(3000))
    assert pairs == [(f"street {n}", f"Straße {n}") for n in numbers]
    assert read(TINY, "train", tiny) == pairs  # the same order
    swapped = read(TINY, "validation", tiny, "de-en")
    assert sorted(swapped) == [("Straße 0", "street 0"), ("Straße 1", "street 1")]
    assert len(read(TINY, "train[:10%]", tiny)) == 300
    assert_refused("holds de and en, not", TINY, "train", tiny, "en-fr")
    assert_refused("no split test, only train, validation", TINY, "test", tiny)
    assert_refused("incompatible with 3000 examples", TINY, "train[5000:]", tiny)
    assert_refused(r"no split train\[x\]: ", TINY, "train[x]", tiny)
    assert_refused(r"no pairs in train\[10:5\]", TINY, "train[10:5]", tiny)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wmt14_translate/xx-en", "xx-en not found"),
        ("wmt14_translate/de-en:9.9.9", "version"),
        ("wmt14_translate/foo=1", "foo"),
    ],
)
def test_an_unknown_set_is_refused(tmp_path, name, said):
    message = f"TFDS cannot open {name}: .*{said}"
    assert_refused(message, name, "train", tmp_path)


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow_datasets"])
def test_a_missing_package_is_refused_with_its_extra(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # makes the import fail
    message = rf"package {package} is not installed; run: .*jaxformer\[tfds\]"
    assert_refused(message, "wmt14_translate/de-en", "train", tmp_path)


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_unreachable_set_fails_in_seconds(tmp_path, monkeypatch, is_silent):
    """Its servers refuse the connection, or accept it and never answer."""
    import tensorflow_datasets  # noqa: F401, takes seconds and is not timed

    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname() if is_silent else ("127.0.0.1", 1)
        monkeypatch.setattr(
            socket,
            "create_connection",
            lambda _, seconds, *__: connect(address, seconds),
        )
        monkeypatch.setattr(tfds_source, "_PROBE_SECONDS", 0.1)
        message = r"statmt\.org cannot be reached: .*data_dir=.*download_and_prepare"
        name, start = "wmt14_translate/de-en", time.monotonic()
        assert_refused(message, name, "train", tmp_path)
    assert time.monotonic() - start < 4
