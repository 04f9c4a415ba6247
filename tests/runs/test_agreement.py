"""Processes that do not train one run are refused."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest

from jaxformer.runs.agreement import require_one_folder, require_one_run
from jaxformer.runs.config_files import parse_config, read_config_file
from jaxformer.runs.workdir import Workdir
from jaxformer.system import processes
from jaxformer.system.errors import InputError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        (
            {"model.dropout": 0.7},
            "process 1 has model.dropout=0.7, and process 0 has 0.0; give all",
        ),
        ({"data.target_language": "ja"}, "process 1 has data.target_language='ja'"),
        ({"data.corpora.weight": {"": [0, 0.5]}}, "process 1 has data.corpora.weight="),
        ({"data.tag": ">>a<<"}, "process 1 has data.tag='>>a<<', and process 0 has ''"),
        ({"text": "theirs"}, "process 1 has text='theirs', and process 0 has 'ours'"),
    ],
)
def test_another_config_or_text_is_refused(monkeypatch, change, message):
    def gather(own):
        assert change.keys() <= own.keys()
        assert own["data.tokenizer"] == ""  # a path: the content is compared
        return [own, {**own, **change}]

    monkeypatch.setattr(processes, "gather", gather)
    prepared = Mock(report={"text": "ours"}, tokenizer=Mock(hash="1"))
    with pytest.raises(InputError, match=message) if message else nullcontext():
        config = parse_config(read_config_file("demo"))
        data = replace(config.data, tokenizer="own.model")
        require_one_run(replace(config, data=data), prepared)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({}, None),
        ({"": "gs://bucket/run"}, "process 1 has the run folder gs://bucket/run, and"),
        ({True: False}, "process 1 has another folder"),
    ],
)
def test_another_folder_is_refused(tmp_path, monkeypatch, theirs, message):
    """`theirs` is what process 1 has for the values of process 0."""
    monkeypatch.setattr(processes, "gather", lambda own: [own, theirs.get(own, own)])
    monkeypatch.setattr(processes, "are_several", lambda: True)
    with pytest.raises(InputError, match=message) if message else nullcontext():
        require_one_folder(Workdir(tmp_path))
    assert [*tmp_path.iterdir()] == []
