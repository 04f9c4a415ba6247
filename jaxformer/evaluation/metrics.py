"""Corpus scores of translations by sacreBLEU, such as those of the paper's table 2.

BLEU of the same translations differs by more than two points between tokenisers and
cases. So each score has a signature that says how it was computed, and `every_bleu`
gives BLEU under each scorer that papers use.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF

from jaxformer.errors import InputError
from jaxformer.evaluation import moses

# sacreBLEU's tokenisers of languages whose words 13a does not separate.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


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
    references: Sequence[str],
    *,
    source_language: str,
    target_language: str,
) -> Scores:
    """Score detokenised translations against one reference each.

    sacreBLEU's tokeniser follows the target language: its own for zh, ja and ko (also
    written zh-CN, zh_TW), 13a for all others. Raises InputError if the counts differ,
    if there is no text, or if the tokeniser's package is not installed.
    """
    require_pairs(hypotheses, references)
    tokenizer = tokenizer_for(target_language)
    cased = make_bleu(tokenizer, lowercase=False)
    lower_cased = make_bleu(tokenizer, lowercase=True)
    chrf = CHRF()
    targets = [references]  # sacreBLEU takes a list of reference sets
    return Scores(
        bleu=cased.corpus_score(hypotheses, targets).score,
        signature=str(cased.get_signature()),
        bleu_lc_tok=lower_cased.corpus_score(hypotheses, targets).score,
        bleu_lc_tok_signature=str(lower_cased.get_signature()),
        chrf=chrf.corpus_score(hypotheses, targets).score,
        chrf_signature=str(chrf.get_signature()),
        direction=f"{source_language}-{target_language}",
        case="cased",
    )


class Score(NamedTuple):
    """BLEU, 0 to 100, of a set of translations under one scorer."""

    scorer: str  # one of SCORERS
    bleu: float
    signature: str


# The scorers of published BLEU, and who uses each.
SCORERS = {
    "sacreBLEU": "papers since about 2019; 13a, or the tokeniser of zh, ja and ko",
    "sacreBLEU lower-cased": "the same, case ignored",
    "sacreBLEU intl": "the same, split at every Unicode punctuation mark",
    "sacreBLEU intl lower-cased": "tensor2tensor's own reports",
    "Moses tokens": "papers before 2019: multi-bleu.perl",
    "Moses tokens lower-cased": "papers on Multi30k",
    "Moses tokens, compounds split": "this paper and others on WMT 2014 German",
}


def every_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> list[Score]:
    """BLEU of detokenised translations under each scorer of SCORERS that applies.

    For zh, ja and ko only sacreBLEU's own tokeniser applies. Raises InputError as
    `corpus_scores` does.
    """
    require_pairs(hypotheses, references)
    scores: list[Score] = []

    def add(name: str, make: Callable[..., BLEU], texts: tuple, note: str = "") -> None:
        for case in ("", " lower-cased"):
            if name + case in SCORERS:
                bleu = make(lowercase=bool(case))
                value = bleu.corpus_score(texts[0], [texts[1]]).score
                signature = f"{bleu.get_signature()}{note}"
                scores.append(Score(name + case, value, signature))

    raw = (list(hypotheses), list(references))
    own = tokenizer_for(target_language)
    add("sacreBLEU", partial(make_bleu, own), raw)
    if own != "13a":
        return scores
    add("sacreBLEU intl", partial(make_bleu, "intl"), raw)
    # multi-bleu.perl takes tokens and does not smooth.
    multi_bleu = partial(BLEU, tokenize="none", smooth_method="none", force=True)
    note = f"|moses:{moses.signature()}"
    tokens = tuple(moses.tokens(side, target_language) for side in raw)
    add("Moses tokens", multi_bleu, tokens, note)
    split = tuple(moses.split_tokens(side, target_language) for side in raw)
    note += "|quotes:plain|compounds:split"
    add("Moses tokens, compounds split", multi_bleu, split, note)
    return scores


def require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise InputError unless there are translations, and a reference for each."""
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} translations but {len(references)} "
            "references; give one reference for each translation, in the same order"
        )
    if not hypotheses:
        raise InputError("there are no translations to score; the input is empty")


def tokenizer_for(language: str) -> str:
    """The name of sacreBLEU's tokeniser for a target language."""
    base = re.split("[-_]", language)[0].lower()
    return _TOKENIZERS.get(base, "13a")


def make_bleu(tokenizer: str, *, lowercase: bool) -> BLEU:
    """Build sacreBLEU's metric; its language tokenisers are optional packages."""
    try:
        return BLEU(tokenize=tokenizer, lowercase=lowercase)
    except RuntimeError as error:
        extra = tokenizer.partition("-")[0]
        raise InputError(
            f"scoring needs sacreBLEU's tokeniser {tokenizer}, which is not installed; "
            f"run: pip install 'sacrebleu[{extra}]'"
        ) from error
