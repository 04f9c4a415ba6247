"""Corpus scores of translations by sacreBLEU, such as those of the paper's table 2.

BLEU of the same translations differs by more than two points between tokenisers and
cases. So each score has a signature that says how it was computed, and `every_bleu`
gives BLEU under each scorer that papers use.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers import tokenizer_spm

from jaxformer.config.languages import base_language, language_and_script
from jaxformer.evaluation.minimum_bayes_risk import Metric
from jaxformer.system.errors import InputError

logger = logging.getLogger(__name__)


class Scores(NamedTuple):
    """Scores of one set of translations, each from 0 to 100."""

    bleu: float  # of detokenised text, cased
    signature: str
    bleu_lc_tok: float  # of lower-cased, tokenised text, for tables that use it
    bleu_lc_tok_signature: str
    chrf: float  # character n-gram F-score, cased
    chrf_signature: str
    direction: str  # "en-de": from English to German
    case: str  # of `bleu` and `chrf`


def corpus_scores(
    hypotheses: Sequence[str],
    *references: Sequence[str],
    source_language: str,
    target_language: str,
) -> Scores:
    """Score detokenised translations against one reference of each, or several.

    sacreBLEU's tokeniser is that of TOKENIZERS for the script of the target language,
    and 13a for all other scripts. Raises InputError if the tokeniser's package is not
    installed.
    """
    bleus = [make_bleu(target_language, lowercase=case) for case in (False, True)]
    found = []
    for metric in (*bleus, CHRF()):
        score = metric.corpus_score(hypotheses, references).score
        found += [score, str(metric.get_signature())]
    return Scores(*found, f"{source_language}-{target_language}", "cased")


class Score(NamedTuple):
    """BLEU, 0 to 100, of a set of translations under one scorer."""

    scorer: str  # one of SCORERS
    bleu: float
    signature: str


# The scorers of published BLEU, and who uses each.
SCORERS = {
    "sacreBLEU": "papers since about 2019; 13a, or the script's tokeniser",
    "sacreBLEU lower-cased": "the same, case ignored",
    "sacreBLEU intl": "the same, split at every Unicode punctuation mark",
    "sacreBLEU intl lower-cased": "tensor2tensor's own reports",
    "Moses tokens": "papers before 2019: multi-bleu.perl",
    "Moses tokens lower-cased": "papers on Multi30k",
    "Moses tokens, compounds split": "this paper and others on WMT 2014 German",
}
# sacreBLEU's tokenisers of scripts that 13a does not split into words. For scripts
# without spaces and without a tokeniser, each character is a token.
TOKENIZERS = {
    **dict.fromkeys(("Hans", "Hant", "Hani", "Hanb"), "zh"),
    "Jpan": "ja-mecab",
    **dict.fromkeys(("Kore", "Hang"), "ko-mecab"),
    **dict.fromkeys(("Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Hira", "Kana"), "char"),
    **dict.fromkeys(("Lana", "Tale", "Talu", "Tavt", "Java", "Bali"), "char"),
}
# multi-bleu.perl takes tokens and does not smooth.
_MULTI_BLEU = {"tokenize": "none", "smooth_method": "none", "force": True}


def every_bleu(
    hypotheses: Sequence[str], *references: Sequence[str], target_language: str
) -> list[Score]:
    """BLEU of detokenised translations under each scorer of SCORERS that applies.

    For scripts of TOKENIZERS only "sacreBLEU", also lower-cased, applies. Raises
    InputError as `corpus_scores` does.
    """
    sides = hypotheses, *references
    systems = [("sacreBLEU", {}, sides, "")]
    if language_and_script(target_language)[1] not in TOKENIZERS:
        tokens = [moses_tokens(side, target_language) for side in sides]
        split = [split_tokens(side, target_language) for side in sides]
        note = f"|moses:sacremoses-{version('sacremoses')}"
        split_note = f"{note}|quotes:plain|compounds:split"
        systems += [
            ("sacreBLEU intl", {"tokenize": "intl"}, sides, ""),
            ("Moses tokens", _MULTI_BLEU, tokens, note),
            ("Moses tokens, compounds split", _MULTI_BLEU, split, split_note),
        ]
    scores = []
    for name, options, (translated, *expected), note in systems:
        for case in ("", " lower-cased"):
            if name + case in SCORERS:
                bleu = make_bleu(target_language, **options, lowercase=bool(case))
                value = bleu.corpus_score(translated, expected).score
                scores.append(
                    Score(name + case, value, f"{bleu.get_signature()}{note}")
                )
    return scores


def other_metrics(target_language: str) -> dict[str, BLEU | CHRF | TER]:
    """Return chrF, chrF++, TER and spBLEU, those that apply to the target's script.

    spBLEU needs a model in sacreBLEU's folder: nothing is downloaded. Scripts without
    spaces have TER if it splits them into characters, as it does Chinese and Japanese.
    Raises InputError for a model that cannot be read.
    """
    found = {"chrF": CHRF(), "chrF++": CHRF(word_order=2)}
    tokenizer = TOKENIZERS.get(language_and_script(target_language)[1])
    if tokenizer != "char":  # TER would take each line for one word
        splits = tokenizer in ("zh", "ja-mecab")
        found["TER"] = TER(normalized=splits, asian_support=splits)
    for name in ("flores101", "flores200"):
        url = tokenizer_spm.SPM_MODELS[name]["url"]
        model = Path(tokenizer_spm.SACREBLEU_DIR, "models", Path(url).name)
        try:
            if model.exists():
                found[f"spBLEU {name}"] = BLEU(tokenize=name)
            elif name == "flores200":  # the one in use
                how = "sacrebleu REFERENCE -i HYPOTHESES -tok flores200 downloads it"
                logger.info("spBLEU is left out: there is no %s; %s", model, how)
        except (OSError, RuntimeError):
            raise InputError(f"{model} is no SentencePiece model; remove it") from None
    return found


def make_bleu(target_language: str, **options: str | bool) -> BLEU:
    """Build sacreBLEU's metric; its language tokenisers are optional packages.

    `options` are of `BLEU`, such as lowercase=True.
    """
    language, script = language_and_script(target_language)
    try:
        return BLEU(**{"tokenize": TOKENIZERS.get(script), **options})
    except RuntimeError as error:
        raise InputError(
            f"scoring {language} needs a tokeniser of sacreBLEU that is not installed; "
            f"run: pip install 'sacrebleu[{language}]'"
        ) from error


def sentence_metric(name: str, target_language: str) -> Metric:
    """Return "bleu", of the n-grams that a sentence has, or "chrf", 0 to 100.

    Two equal texts score 100, also blank ones, which sacreBLEU gives 0.
    """
    metric = CHRF()
    if name == "bleu":
        metric = make_bleu(target_language, effective_order=True)
    return lambda triples: [
        100.0
        if translation == reference
        else metric.sentence_score(translation, [reference]).score
        for _, translation, reference in triples
    ]


# Moses' scripts write these marks in ASCII, and so do the references of that time.
_QUOTES = str.maketrans(
    dict.fromkeys("„“”«»", '"') | dict.fromkeys("\u2018\u2019\u201a", "'")
)


def moses_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Tokenise each sentence with Moses' rules, one space between two tokens."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=base_language(language))
    return [tokenizer.tokenize(sentence, return_str=True) for sentence in sentences]


def split_tokens(sentences: Iterable[str], language: str) -> list[str]:
    """Tokenise for the scorer of the paper's table 2: ASCII quotes, compounds split."""
    plain = (sentence.translate(_QUOTES) for sentence in sentences)
    return [split_compounds(sentence) for sentence in moses_tokens(plain, language)]


def split_compounds(tokenised: str) -> str:
    """Make each hyphen between two characters a token, `##AT##-##AT##`.

    A character belongs to one hyphen only, from left to right: "a-b-c" becomes three
    tokens, and its second hyphen stays. BLEU counts the hyphens as tokens.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenised)
