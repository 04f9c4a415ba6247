"""Text on object stores."""

import gc
import gzip
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest

from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name
from jaxformer.text import locations
from jaxformer.text.lines import read_lines
from jaxformer.text.records import read_parquet
from tests.commands.object_stores.conftest import SCHEMES


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_text_is_read_by_globs(stores, scheme, ending):
    lines = [f"a {number}\tb {number}" for number in range(5000)]
    url, store = f"{scheme}://bucket/glob{ending}", stores[scheme]
    for part in range(2):
        content = "".join(f"{line}\n" for line in lines[part::2]).encode()
        content = gzip.compress(content) if ending else content
        store.pipe_file(f"{url}/part{part}.tsv{ending}", content)
    found = locations.find_files(f"{url}/part*.tsv{ending}")
    assert [*map(file_name, found)] == [
        f"{url}/part{part}.tsv{ending}" for part in range(2)
    ]
    assert [*chain(*map(read_lines, found))] == lines[::2] + lines[1::2]
    before = locations.size_and_time(found[0])
    store.pipe_file(f"{url}/part0.tsv{ending}", gzip.compress(b"c\td\n"))
    assert locations.size_and_time(found[0]) != before
    with pytest.raises(InputError, match=f"{url}/x.tsv cannot be read: No such file"):
        next(read_lines(Path(f"{url}/x.tsv")))


def test_text_is_read_from_parquet_files(stores):
    pairs = [(f"a {number}", f"b {number}") for number in range(3000)]
    table = pyarrow.table(
        {
            side: column
            for side, column in zip(("en", "de"), zip(*pairs, strict=True), strict=True)
        }
    )
    with stores["s3"].open("s3://bucket/text.parquet", "wb") as file:
        pyarrow.parquet.write_table(table, file)
    path = Path("s3://bucket/text.parquet")
    assert [*read_parquet(path, (), ("en", "de"))] == pairs


def test_a_file_that_cannot_be_opened_is_not_closed(monkeypatch):
    """Python closes a file in its finaliser, and 3.11 does not report what fails."""
    failed, close = [], locations._Reader.close

    def closed(reader):
        try:
            close(reader)
        except AttributeError as error:
            failed.append(error)

    def fail(*_, **__):
        raise FileNotFoundError

    store = SimpleNamespace(open=fail)
    monkeypatch.setattr(locations, "file_system", lambda _: store)
    monkeypatch.setattr(locations._Reader, "close", closed)
    with pytest.raises(FileNotFoundError, match="s3://bucket/x"):
        locations.open_bytes(Path("s3://bucket/x"))
    gc.collect()
    assert failed == []
