"""Processes that do not train one run are refused."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from jaxformer import processes
from jaxformer.config_files import parse_config, read_config_file
from jaxformer.errors import InputError
from jaxformer.one_run import require_one_folder, require_one_run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        (
            {"model.dropout": 0.7},
            "process 1 has model.dropout=0.7, and process 0 has 0.1; give all",
        ),
        ({"text": "theirs"}, "process 1 has text='theirs', and process 0 has 'ours'"),
    ],
)
def test_another_config_or_text_is_refused(monkeypatch, change, message):
    monkeypatch.setattr(processes, "gather", lambda own: [own, {**own, **change}])
    prepared = Mock(report={"text": "ours"}, tokenizer=Mock(hash="1"))
    is_right = nullcontext()
    with pytest.raises(InputError, match=message) if message else is_right:
        require_one_run(parse_config(read_config_file("demo")), prepared)


@pytest.mark.parametrize("is_seen", [True, False])
def test_another_folder_is_refused(tmp_path, monkeypatch, is_seen):
    monkeypatch.setattr(processes, "gather", lambda own: [own, own and is_seen])
    monkeypatch.setattr(processes, "from_first", lambda own: own)
    refused = pytest.raises(InputError, match="process 1 has another folder")
    with nullcontext() if is_seen else refused:
        require_one_folder(tmp_path)
    assert [*tmp_path.iterdir()] == []
