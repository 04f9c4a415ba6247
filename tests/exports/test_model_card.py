"""Tests of the cards of exports: a user's text is text there, and never code."""

import ast
import dataclasses
import re

import pytest

from jaxformer.exports.model_card import Facts, TextScores, text_name, write_card
from jaxformer.exports.parameters import in_markdown
from jaxformer.runs.config_files import parse_config, read_config_file
from tests.exports.conftest import OPTIONS

TAG = '>>"+exit(),"<<'
NASTY = "de\n---\n# x\u202e|`<img>\x1b[31m"
ESCAPED = r"de\\n---\\n# x\\u202e\|\`\<img\>\\x1b\[31m"


def test_text_of_users_stays_text(tmp_path):
    cards = pytest.importorskip("huggingface_hub", reason="extra `export`")
    config = parse_config(read_config_file("demo"))
    data = dataclasses.replace(config.data, tag=TAG, target_language=NASTY)
    config = dataclasses.replace(config, data=data)
    scores = [TextScores(NASTY, "test", {"bleu": (1.0, "a|b")})]
    write_card(
        tmp_path, config, {}, OPTIONS, Facts({}, scores, license=NASTY), kind="marian"
    )
    text = (tmp_path / "README.md").read_text()
    card = cards.ModelCard(text)
    assert (card.data.license, card.data.eval_results[0].dataset_name) == (NASTY,) * 2
    assert f"# en-{ESCAPED}\n" in card.text
    assert f"| {ESCAPED} | test | BLEU | 1.00 | a\\|b |" in card.text
    assert card.text.rstrip().endswith(f"## Licence\n\n{ESCAPED}")
    (found,) = ast.parse(re.search("^TAG = .*", text, re.M)[0]).body
    assert ast.literal_eval(found.value) == TAG


@pytest.mark.parametrize("pairs", [{}, {"": 29_000}])
def test_an_imported_model_names_its_checkpoint(tmp_path, pairs):
    """It has no training of its own but what was recorded, and that one's licence."""
    pytest.importorskip("huggingface_hub", reason="extra `export`")
    config = parse_config(read_config_file("demo"))
    facts = Facts(pairs, [], None, imported="nllb*", is_trained=bool(pairs))
    write_card(tmp_path, config, {}, OPTIONS, facts, kind="m2m_100")
    text = (tmp_path / "README.md").read_text()
    further = "trained with jaxformer" if pairs else "not trained further.\n"
    assert f"imported from nllb\\* and {further}" in text
    for words in ("updates, at most", "## Training data", "29,000"):
        assert (words in text) == bool(pairs)
    assert text.rstrip().endswith("That of nllb\\* applies.")


def test_a_text_is_named_by_the_file_of_its_sources():
    data = parse_config(read_config_file("demo")).data
    data = dataclasses.replace(data, corpus="files", train="x/a.en,x/a.de")
    assert text_name(data, "train") == "a.en"


def test_text_of_users_is_escaped_for_markdown():
    assert in_markdown("wmt14_translate/de-en") == "wmt14_translate/de-en"
    assert in_markdown(NASTY) == ESCAPED
