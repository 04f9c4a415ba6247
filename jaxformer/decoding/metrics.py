"""Corpus scores of translations by sacreBLEU: the numbers of the paper's table 2.

The same translations get BLEU scores that differ by more than two points under
different tokenisers and cases, so a score travels with the signature that says how it
was computed, with its direction and its case. The only importer of sacrebleu; used by
the evaluation during training and by `--mode=evaluate`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF

from jaxformer.errors import InputError

# Languages whose words 13a does not separate: sacreBLEU's tokeniser for each.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


class Scores(NamedTuple):
    """Scores of one set of translations, each from 0 to 100, with what they mean."""

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
    if there is nothing to score, or if the tokeniser's package is not installed.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"There are {len(hypotheses)} translations but {len(references)} "
            "references; give one reference for each translation, in the same order."
        )
    if not hypotheses:
        raise InputError("There are no translations to score; the input is empty.")
    tokenizer = _tokenizer_for(target_language)
    cased = _bleu(tokenizer, lowercase=False)
    lower_cased = _bleu(tokenizer, lowercase=True)
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


def format_bleu(scores: Scores) -> str:
    """One line fit to quote: `BLEU 27.30 en-de cased (nrefs:1|case:mixed|...)`."""
    return (
        f"BLEU {scores.bleu:.2f} {scores.direction} {scores.case} ({scores.signature})"
    )


def _tokenizer_for(language: str) -> str:
    base = re.split("[-_]", language)[0].lower()
    return _TOKENIZERS.get(base, "13a")


def _bleu(tokenizer: str, *, lowercase: bool) -> BLEU:
    """Build sacreBLEU's metric; its language tokenisers are optional packages."""
    try:
        return BLEU(tokenize=tokenizer, lowercase=lowercase)
    except RuntimeError as error:
        extra = tokenizer.partition("-")[0]
        raise InputError(
            f"Scoring needs sacreBLEU's tokeniser {tokenizer}, which is not installed; "
            f"run: pip install 'sacrebleu[{extra}]'."
        ) from error
