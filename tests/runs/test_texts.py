"""The text that a command scores, and its corpus."""

from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.runs import open as open_module
from jaxformer.runs.open import open_members
from jaxformer.runs.run import Run
from jaxformer.runs.texts import of_tags, read_text
from jaxformer.system.errors import InputError
from tests.decoding.tiny import Numbers


@dataclass(frozen=True)
class Config:
    """The one section that is needed."""

    data: DataConfig


def run_of(corpora):
    """A run of corpora: their keys by name."""
    corpora = tuple({"name": name, **keys} for name, keys in corpora.items())
    data = DataConfig(**demo.get_config().data.to_dict() | {"corpora": corpora})
    return Run(mock.Mock(), Config(data), Numbers(), mock.Mock(), mock.Mock())


def files_of(folder, sources):
    """Two files of pairs."""
    files = [folder / "source", folder / "reference"]
    references = map(str, range(len(sources)))
    for file, lines in zip(files, (sources, references), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    return files


@pytest.mark.parametrize(
    ("sources", "name"),
    [([">>5<< 6", "7"], "untagged"), ([">>5<< 6", ">>5<< 7"], "tagged")],
)
def test_lines_of_a_mixed_file_keep_what_tags_they_have(tmp_path, sources, name):
    """A run restricted to a corpus gives its tag to lines without one."""
    tags = {"tagged": ">>5<<", "untagged": ""}
    run = run_of({key: {"tag": tag} for key, tag in tags.items()})
    files = files_of(tmp_path, sources)
    this, text = read_text(run, *files, "test", TranslateRequest())
    assert (text.sources, this.config.data.only_tag) == (sources, tags[name])


DIRECTIONS = {
    "en-de": {"tag": ">>5<<", "target_tag": ">>de<<", "source_language": "en"},
    "en-fr": {"tag": ">>5<<", "target_tag": ">>fr<<", "source_language": "en"},
    "de-fr": {"tag": ">>de<<", "target_tag": ">>fr<<", "source_language": "de"},
    "de-en": {"tag": ">>de<<", "target_tag": ">>en<<", "source_language": "de"},
}


@pytest.mark.parametrize(
    ("tag", "target_tag", "name"),
    [
        ("", "", None),
        (">>5<<", ">>fr<<", "en-fr"),
        (">>5<<", "", None),
        ("", ">>en<<", "de-en"),
        ("", ">>fr<<", None),
        ("", ">>es<<", None),
    ],
)
def test_tags_choose_a_corpus_if_they_fit_one_direction(tag, target_tag, name):
    request = TranslateRequest({"tag": tag, "target_tag": target_tag})
    run = run_of(DIRECTIONS)
    found = of_tags(run, request)
    if name is None:
        assert found is run
    else:
        data = run.config.data.parts[name].data
        assert found.config.data == data


@pytest.mark.parametrize(
    ("split", "options", "said"),
    [
        ("en-de/test", {"tag": ">>de<<"}, "--tag=>>de<< .* whose sources have >>5<<"),
        ("en-de/test", {"target_tag": ">>fr<<"}, "=>>fr<< .* targets have >>de<<"),
        ("test", {"target_tag": ">>es<<"}, "to >>de<<, >>fr<<, so .*=>>es<< has no sc"),
        ("test", {}, "translates to >>de<<, >>en<<, >>fr<<, and .*source does not say"),
    ],
)
def test_text_that_other_tags_fit_is_refused(tmp_path, split, options, said):
    """Its references would be scored against another language."""
    files = files_of(tmp_path, [">>5<< 6"])
    with pytest.raises(InputError, match=said):
        read_text(run_of(DIRECTIONS), *files, split, TranslateRequest(options))
    if "/" in split:
        with pytest.raises(InputError, match=said):
            read_text(run_of(DIRECTIONS), None, None, split, TranslateRequest(options))


def test_a_tag_of_two_source_languages_chooses_no_direction(tmp_path):
    """Their sentences are split, and pairs are filtered, by the source's language."""
    both = {"tag": ">>5<<", "target_language": "fr"}
    run = run_of({code: {**both, "source_language": code} for code in ("en", "de")})
    assert of_tags(run, TranslateRequest({"tag": ">>5<<"})) is run
    files = files_of(tmp_path, [">>5<< 6"])
    said = "source may be text of en-fr, de-fr; choose a corpus by --split=NAME/test"
    with pytest.raises(InputError, match=said):
        read_text(run, *files, "test", TranslateRequest())
    _, text = read_text(run, *files, "test", TranslateRequest(), is_scored=False)
    assert text.sources == [">>5<< 6"]
    this, _ = read_text(run, *files, "de/test", TranslateRequest())
    assert this.config.data.direction == "de-fr"


def _tags_of(text):
    return dict(zip(("tag", "target_tag"), text.split(" "), strict=False))


@pytest.mark.parametrize(
    ("own", "theirs", "is_refused"),
    [
        ([""], [""], False),
        (["", ">>5<<"], [""], False),
        ([">>5<<"], [">>5<<", ">>6<<"], False),
        ([">>5<<"], [""], True),
        ([">>5<<"], [">>6<<"], True),
        ([">>5<< >>de<<"], [">>5<< >>de<<"], False),
        ([">>5<< >>de<<"], [">>5<<"], True),
        ([">>5<<"], [">>5<< >>de<<"], True),
        ([">>5<< >>de<<", ">>5<< >>fr<<"], [">>5<< >>fr<<"], True),
        ([">>5<<"], [">>5<<", ">>5<< >>fr<<"], False),
    ],
)
def test_a_member_of_an_ensemble_knows_the_tags(monkeypatch, own, theirs, is_refused):
    run, member = (
        run_of({f"c{n}": _tags_of(text) for n, text in enumerate(tags)})
        for tags in (own, theirs)
    )
    run.tokenizer.hash = member.tokenizer.hash = ""
    monkeypatch.setattr(open_module, "open_run", lambda *_, **__: member)
    monkeypatch.setattr(open_module, "load_parameters", lambda *_: {})
    models = ModelChoice(ensemble=(Path("other"),))
    target_tag = ">>de<<" if len(run.config.data.target_tags) > 1 else ""
    if is_refused:
        with pytest.raises(InputError, match="other was trained with other tags than"):
            open_members(run, models, target_tag)
    else:
        assert open_members(run, models, target_tag) == [(member, {})]
