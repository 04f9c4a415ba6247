"""The text that a command scores, and its corpus."""

from dataclasses import dataclass
from unittest import mock

import pytest

from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.runs.run import Run
from jaxformer.runs.texts import read_text
from tests.decoding.tiny import Numbers


@dataclass(frozen=True)
class Config:
    """The one section that is needed."""

    data: DataConfig


@pytest.mark.parametrize(
    ("sources", "name"),
    [([">>5<< 6", "7"], "untagged"), ([">>5<< 6", ">>5<< 7"], "tagged")],
)
def test_lines_of_a_mixed_file_keep_what_tags_they_have(tmp_path, sources, name):
    """A run restricted to a corpus gives its tag to lines without one."""
    tags = {"tagged": ">>5<<", "untagged": ""}
    corpora = tuple({"name": name, "tag": tag} for name, tag in tags.items())
    data = DataConfig(**demo.get_config().data.to_dict() | {"corpora": corpora})
    run = Run(mock.Mock(), Config(data), Numbers(), mock.Mock(), mock.Mock())
    for file, lines in (("source", sources), ("reference", ["1", "2"])):
        (tmp_path / file).write_text("\n".join(lines) + "\n")
    this, text = read_text(run, tmp_path / "source", tmp_path / "reference", "test")
    assert (text.sources, this.config.data.only_tag) == (sources, tags[name])
