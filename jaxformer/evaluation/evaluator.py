"""Translate a text and score it, in training and afterwards."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.batch import Batch, starts_of_segments
from jaxformer.config.sections import Config
from jaxformer.corpus.pipeline import evaluation_batches
from jaxformer.corpus.plan import make_plan
from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.decoding.all_processes import translate_all
from jaxformer.decoding.parts import best_texts, warn_of_copies
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.metrics import Score, corpus_scores, every_bleu, make_bleu
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.system import processes
from jaxformer.system.errors import InputError, printable
from jaxformer.system.progress import track
from jaxformer.text.ragged import Ragged
from jaxformer.text.sources import Text
from jaxformer.tokens import AnyTokenizer
from jaxformer.training.loss import LossSums, averages, loss_sums
from jaxformer.training.sharding import local_mesh, on_mesh, put_batch, rows_here

logger = logging.getLogger(__name__)

MAX_SHAPES = 4  # programs to compile where rows are not packed
NO_LOSS = dict.fromkeys(("loss", "nll", "ppl", "accuracy"))
MOST_TOKENS = 4096  # of a batch, whose logits are held whole
ROW = "  {1:6.2f}  {0:<30}  {2}"  # of a scorer, a score and its signature
REPORTED = ("bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction")


class Evaluation(NamedTuple):
    """Translations of a text, and their scores."""

    translations: list[str]
    # Keys of `averages`, None or missing without one model's loss, and of `Scores`.
    scores: dict[str, float | str | None]
    every_bleu: list[Score]  # under every scorer, or none

    def __str__(self) -> str:
        """Return a line of scores, and a table of BLEU if `every_bleu` is computed."""
        scores = self.scores
        table = ["\n" + ROW.format(*each) for each in self.every_bleu]
        if table:
            table.insert(0, "\nthe same translations under every scorer:")
        line = ""
        if scores.get("nll") is not None:
            line = f"nll {scores['nll']:.4f}, ppl {scores['ppl']:.2f}, "
            line += f"accuracy {100 * scores['accuracy']:.1f} %, "
        line += (
            f"BLEU {scores['bleu']:.2f} {printable(scores['direction'])} "
            f"({scores['signature']}), lower-cased tokenised BLEU "
            f"{scores['bleu_lc_tok']:.2f}, chrF {scores['chrf']:.2f}"
        )
        return line + "".join(table)

    def reported(self) -> dict[str, Any]:
        """Return the scores that the JSON line of `jaxformer evaluate` has."""
        bleus = [each._asdict() for each in self.every_bleu]
        return {key: self.scores.get(key) for key in REPORTED} | {"every_bleu": bleus}


def evaluate_batch(
    model: Model,
    params: Parameters,
    batch: Batch,
    *,
    label_smoothing: float,
    is_tagged: bool = False,
) -> LossSums:
    """Sum the loss of one batch, dropout off.

    If `is_tagged`, the first token of each target is given and not counted.
    """
    logits, segments = model.logits(params, batch), batch.target_segments
    if is_tagged:
        segments = jnp.where(starts_of_segments(segments), 0, segments)
    return loss_sums(logits, batch.target, segments, label_smoothing=label_smoothing)


class PairScorer:
    """Sum the loss over sentence pairs; call it once per checkpoint.

    Leaves out blank pairs, and with a warning those that need more positions than the
    model has. Raises InputError if no pair is left.
    """

    def __init__(
        self, model: Model, config: Config, pairs: TokenizedCorpus, *, is_tagged: bool
    ) -> None:
        """If `is_tagged`, the first token of each target is given and not scored."""
        training = config.training
        sources, targets = (side.lengths for side in pairs)
        lengths = np.maximum(sources, targets)
        fits = lengths <= (model.longest or math.inf)
        if not fits.all():
            logger.warning(
                "NLL and perplexity leave out %s of %s pairs, which have more pieces "
                "than max_positions=%d of the model",
                f"{np.sum(~fits):,}", f"{len(fits):,}", model.longest,
            )  # fmt: skip
        has_words = (sources > 1) | (targets - is_tagged > 1)
        chosen = np.flatnonzero(fits & has_words)
        if not len(chosen):
            raise InputError("no pair of the text to evaluate has words and fits")
        self._pairs = pairs
        if len(chosen) < len(fits):
            self._pairs = TokenizedCorpus(*(side.select(chosen) for side in pairs))
        lengths = [side.lengths for side in self._pairs]
        longest = int(np.max(lengths))
        tokens = max(longest, min(training.tokens_per_microbatch, MOST_TOKENS))
        layout = {"layout": "buckets", "max_shapes": MAX_SHAPES, "row_multiple": 1}
        if config.model.packs and longest <= MOST_TOKENS:  # one shape, less padding
            layout |= {"layout": "packed", "row_length": longest}
        self._plan = make_plan(
            *lengths,
            dataclasses.replace(config.batches, **layout),
            dataclasses.replace(training, tokens_per_microbatch=tokens),
        )
        how = {"label_smoothing": training.label_smoothing, "is_tagged": is_tagged}
        self._sums = jax.jit(functools.partial(evaluate_batch, model, **how))

    def __call__(self, params: Parameters) -> dict[str, float]:
        """Sum loss, negative log-likelihood and correct tokens over all pairs.

        Each process takes its share of the batches; all return the same sums.
        """
        own, mesh = np.zeros(len(LossSums._fields)), local_mesh()
        part = processes.index(), processes.count()
        batches = evaluation_batches(
            self._pairs, self._plan, part=part, rows=rows_here(mesh)
        )
        with on_mesh(mesh):
            total = -(-self._plan.microbatches_per_epoch // part[1])
            for batch in track(batches, "scoring", total, unit="batches"):
                sums = self._sums(params, put_batch(mesh, batch))
                own += np.array(jax.device_get(sums), np.float64)
        shares = processes.gather(own.tolist())
        return LossSums(*np.sum(shares, axis=0).tolist())._asdict()


class Evaluator:
    """Translate and score one text; calls share compiled programs."""

    def __init__(
        self,
        model: Model,
        config: Config,
        text: Text,
        pairs: TokenizedCorpus,
        make_translator: Callable[[Parameters], Translator],
        check_stop: Callable[[], None] = lambda: None,
        *,
        is_tagged: bool,
    ) -> None:
        """`pairs` is the text in tokens; `check_stop` may raise to end an evaluation.

        `is_tagged` as in `PairScorer`.

        `make_translator` is called once, with the first parameters. Raises InputError
        if all references are blank, or a package for the target language is missing.
        """
        if not any(map(str.strip, text.references)):
            raise InputError(
                "all references of the text to evaluate are blank; give those of its "
                "sources"
            )
        self.text, self._data = text, config.data
        make_bleu(config.data.target_language)  # refused or warned of before training
        self._score_pairs = PairScorer(model, config, pairs, is_tagged=is_tagged)
        self._make_translator, self._check_stop = make_translator, check_stop
        self.translator: Translator | None = None  # created by the first call

    def translate(self, params: Parameters, sentences: Sequence[str]) -> list[str]:
        """Translate with parameters on the local devices; None: the translator's."""
        # Training's mesh may have other devices; the translator shards its own rows.
        with on_mesh(local_mesh(), rules=()):
            if self.translator is None:
                self.translator = self._make_translator(params)
            elif params is not None:
                self.translator.params = [params]
            found = translate_all(self.translator, sentences, self._check_stop)
        return best_texts(warn_of_copies(found))

    def release(self) -> None:
        """Drop what the translator holds on the devices until the next call."""
        if self.translator is not None:
            self.translator.release()

    def __call__(self, params: Parameters, *, under_all: bool) -> Evaluation:
        """Translate and score the text; `under_all` adds BLEU under every scorer.

        `params` None: there is no loss, and the translator's parameters stay.
        """
        translations = self.translate(params, self.text.sources)
        pair = (translations, self.text.references)
        source, target = self._data.source_language, self._data.target_language
        scores = corpus_scores(*pair, source_language=source, target_language=target)
        bleus = every_bleu(*pair, target_language=target) if under_all else []
        sums = NO_LOSS if params is None else averages(self._score_pairs(params))
        return Evaluation(translations, {**sums, **scores._asdict()}, bleus)


def tokenize_pairs(tokenizer: AnyTokenizer, text: Text) -> TokenizedCorpus:
    """Tokenise sentence pairs."""
    return TokenizedCorpus(
        Ragged.of(tokenizer.encode(text.sources)),
        Ragged.of(tokenizer.encode_target(text.references)),
    )
