"""Text that grows by blocks: what is refused, and what a stop leaves behind."""

import json
import resource

import pytest

from jaxformer.system.errors import InputError
from jaxformer.text.append_only import REPORT, grow_corpus
from tests.damage import flip_bit

NAMES = ("train.de", "train.en")


def grow(folder, **made_with):
    return grow_corpus(
        folder, NAMES, lines=9, reasons=("empty",), made_with={"seed": 1, **made_with}
    )


def texts_of(folder):
    return [(folder / name).read_text("utf-8") for name in NAMES]


@pytest.fixture
def begun(tmp_path):
    """A text with one block of three lines."""
    folder = tmp_path / "new" / "text"
    with grow(folder) as corpus:
        corpus.append(3, [["ä", "b"], ["x", "y"]], {"empty": 1})
    return folder


def test_a_stop_within_a_block_leaves_the_blocks_before_it(begun, monkeypatch):
    """The second file of the block, or the report, is not written."""
    before = (begun / REPORT).read_bytes()
    with pytest.raises(TypeError), grow(begun) as corpus:
        corpus.append(3, [["c"], 3], {})
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"), grow(begun) as corpus:
        corpus.append(3, [["d"], ["z"]], {})
    monkeypatch.undo()
    assert (begun / REPORT).read_bytes() == before
    assert texts_of(begun) == ["ä\nb\nd\n", "x\ny\nz\n"]
    with grow(begun) as corpus:
        assert texts_of(begun) == ["ä\nb\n", "x\ny\n"]
        corpus.append(6, [["e"], ["w"]], {"empty": 5})
    assert texts_of(begun) == ["ä\nb\ne\n", "x\ny\nw\n"]
    report = json.loads((begun / REPORT).read_bytes())
    assert (report["lines"], report["of"], report["kept"]) == (9, 9, 3)
    assert report["dropped"] == {"empty": 6}
    assert report["bytes"] == {"train.de": 7, "train.en": 6}


def test_a_block_that_fits_no_more_is_left_out(begun):
    """The system refuses files above a limit, as it refuses all on a full disk."""
    before, limits = texts_of(begun), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as raised, grow(begun) as corpus:
            corpus.append(3, [["c"], ["z" * 200_000]], {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(begun / "train.en")
    with grow(begun):
        assert texts_of(begun) == before


def test_a_file_that_is_too_short_is_refused_and_no_file_is_changed(begun):
    (begun / "train.en").write_text("x\n")
    (begun / "train.de").write_text("a\nb\nmore\n")
    message = "train.en has 2 bytes and report.json says 4; put a copy back"
    with pytest.raises(InputError, match=message):
        grow(begun).__enter__()
    assert texts_of(begun) == ["a\nb\nmore\n", "x\n"]


def test_a_report_with_one_wrong_bit_is_refused(begun, monkeypatch):
    """But for bits of the white space between its values; or one that is unreadable."""
    file = begun / REPORT
    report = file.read_bytes()
    for bit in range(0, 8 * len(report), 37):
        flip_bit(file, bit)
        if report[bit // 8 : bit // 8 + 1].strip():
            with pytest.raises(InputError, match=f"or a damaged {REPORT};"):
                grow(begun).__enter__()
        flip_bit(file, bit)
    assert file.read_bytes() == report
    monkeypatch.setattr("pathlib.Path.read_bytes", type(file).readlink)
    with pytest.raises(OSError, match=REPORT):
        grow(begun).__enter__()


@pytest.mark.parametrize(
    "report",
    ["", "{", "[]", "{}", "3", '{"lines": 1}', "\0", "null",
     '{"lines": -1, "of": 9, "kept": 0, "dropped": {}, "bytes": {}, "made_with": {}}'],
)  # fmt: skip
def test_another_folder_is_refused_and_left_alone(tmp_path, report):
    (tmp_path / REPORT).write_text(report)
    with pytest.raises(InputError, match="holds no corpus of this command"):
        grow(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == [REPORT]
    (tmp_path / REPORT).rename(tmp_path / "other")
    with pytest.raises(InputError, match="exists already and holds no corpus"):
        grow(tmp_path).__enter__()
    (tmp_path / REPORT).symlink_to("/dev/zero")  # which has no end
    for folder in (tmp_path / "other", tmp_path):
        with pytest.raises(InputError, match="exists already and holds no corpus"):
            grow(folder).__enter__()
