"""--mode=evaluate: scores of a model on sentence pairs; also used by training."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import (
    Run,
    build,
    keep_compiled,
    local_parameters,
    make_translator,
    open_run,
    texts,
    translate,
)
from jaxformer.data import grammar
from jaxformer.data.corpus import PreparedCorpus, read_split
from jaxformer.data.pipeline import evaluation_batches
from jaxformer.data.plan import make_plan
from jaxformer.data.sources import CorpusConfig, read_lines
from jaxformer.data.store import Ragged, TokenizedCorpus
from jaxformer.decoding.translate import Translator, Wishes
from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import Score, corpus_scores, every_bleu
from jaxformer.training.log import averages
from jaxformer.training.loss import LossSums
from jaxformer.training.sharding import (
    copy_to,
    local_mesh,
    on_mesh,
    put_batch,
    rows_here,
)
from jaxformer.training.step import Parameters, evaluate_batch
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)

REPORTED = ("bleu", "signature", "bleu_lc_tok", "chrf", "nll", "ppl", "direction")
SAMPLES = 3  # translations logged at each evaluation
EVALUATION_SHAPES = 4  # each is compiled; padding matters less here than in training


class PairScorer:
    """Sums of the loss over sentence pairs, as often as there are new parameters."""

    def __init__(self, run: Run, mesh: Mesh, pairs: TokenizedCorpus) -> None:
        self._pairs, self._mesh = pairs, mesh
        longest = int(max(pairs.source.lengths.max(), pairs.target.lengths.max()))
        self._plan = make_plan(
            pairs.source.lengths,
            pairs.target.lengths,
            layout="buckets",
            row_length=longest,
            max_shapes=EVALUATION_SHAPES,
            tokens_per_microbatch=max(run.training.tokens_per_microbatch, longest),
            tokens_per_update=run.training.tokens_per_update,
            row_multiple=1,
        )
        self._sums = jax.jit(
            lambda params, batch: evaluate_batch(
                run.model,
                params,
                batch,
                label_smoothing=run.training.label_smoothing,
            )
        )

    def __call__(self, params: Parameters) -> dict[str, float]:
        """Sum loss, negative log-likelihood and right tokens over all pairs.

        Each process takes its share of the batches, and all get the sums of all.
        """
        mine = LossSums(*[0.0] * len(LossSums._fields))
        batches = evaluation_batches(
            self._pairs,
            self._plan,
            rows=rows_here(self._mesh),
            process=(processes.index(), processes.count()),
        )
        with on_mesh(self._mesh):
            for batch in batches:
                sums = self._sums(params, put_batch(self._mesh, batch))
                mine = LossSums(*map(float.__add__, mine, map(float, sums)))
        shares = processes.gather(list(mine))
        return LossSums(*map(sum, zip(*shares, strict=True)))._asdict()


class Evaluator:
    """The validation set of a run; called by training with step and parameters."""

    def __init__(
        self, run: Run, prepared: PreparedCorpus, heed: Callable[[], None]
    ) -> None:
        """`heed` is called now and then, and may raise to end an evaluation early."""
        self._run = run
        self._heed = heed
        self._mesh = local_mesh()
        self._scorer = PairScorer(run, self._mesh, prepared.dev)
        self._source, self._target = prepared.dev_source, prepared.dev_target
        # Made once, because it holds what is compiled.
        self._translator: Translator | None = None

    def translate(self, params: Parameters, sentences: Sequence[str]) -> list[str]:
        """Translate with these parameters, which lie on the mesh of this process."""
        with on_mesh(self._mesh):  # not training's, which has other devices
            if self._translator is None:
                self._translator = make_translator(self._run, self._mesh, params)
            else:
                self._translator.params = [params]
            return texts(translate(self._translator, sentences, self._heed))

    def local(self, params: Parameters) -> Parameters:
        """Parameters as the other methods want them, wherever they were."""
        return copy_to(self._mesh, params)

    def __call__(self, step: int, params: Parameters) -> dict[str, Any]:
        """`score` parameters that training holds, wherever they are."""
        return self.score(step, self.local(params))

    def score(
        self, step: int, params: Parameters, *, under_all: bool = False
    ) -> dict[str, Any]:
        """Translate and score the validation set; logs scores and a few samples.

        `under_all` logs BLEU under every scorer, too.
        """
        translations = self.translate(params, self._source)
        scores = {
            **averages(self._scorer(params)),
            **text_scores(self._run, translations, self._target),
        }
        logger.info("step %s, validation: %s", f"{step:,}", describe(scores))
        if under_all:
            report_every_bleu(bleus_of(self._run, translations, self._target))
        for index in range(0, len(self._source), -(-len(self._source) // SAMPLES)):
            logger.info(
                "sentence %s\n  source    %s\n  reference %s\n  output    %s",
                f"{index + 1:,}",
                self._source[index],
                self._target[index],
                translations[index],
            )
        return scores


def text_scores(
    run: Run, translations: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """BLEU and its companions, each with what makes it comparable."""
    scores = corpus_scores(
        translations,
        references,
        source_language=run.config["data"]["source_language"],
        target_language=run.config["data"]["target_language"],
    )
    return scores._asdict()


def bleus_of(
    run: Run, translations: Sequence[str], references: Sequence[str]
) -> list[Score]:
    """BLEU under every scorer."""
    language = run.config["data"]["target_language"]
    return every_bleu(translations, references, target_language=language)


def report_every_bleu(bleus: Sequence[Score]) -> None:
    """Log one score as every scorer gives it."""
    logger.info("the same translations under every scorer:%s", table(bleus))


def describe(scores: dict[str, Any]) -> str:
    """One line that never shows a score without its signature and direction."""
    return (
        f"nll {scores['nll']:.4f}, ppl {scores['ppl']:.2f}, "
        f"accuracy {100 * scores['accuracy']:.1f} %, "
        f"BLEU {scores['bleu']:.2f} {scores['direction']} ({scores['signature']}), "
        f"lower-cased tokenised BLEU {scores['bleu_lc_tok']:.2f}, "
        f"chrF {scores['chrf']:.2f}"
    )


def report_phenomena(run: Run, translate: Callable[[Sequence[str]], list[str]]) -> None:
    """For the built-in corpus: exact matches by phenomenon, on text not trained on."""
    data = run.config["data"]
    if data["corpus"] != "builtin:grammar" or direction(run.config) != "en-de":
        return
    for split in ("test", "unseen"):
        pairs = list(grammar.generate(split, data["builtin_eval_pairs"], data["seed"]))
        translations = translate([pair.source for pair in pairs])
        right = sum(p.target == t for p, t in zip(pairs, translations, strict=True))
        logger.info(
            "%s: %d of %d translations exactly right (%.1f %%)",
            split, right, len(pairs), 100 * right / len(pairs),
        )  # fmt: skip
        counts = grammar.accuracy_by_phenomenon(pairs, translations)
        for phenomenon, (correct, total) in sorted(counts.items()):
            logger.info(
                "  %-20s %5d of %5d (%.1f %%)",
                phenomenon, correct, total, 100 * correct / total,
            )  # fmt: skip


def read_pairs_for(run: Run, options: Options) -> tuple[list[str], list[str]]:
    """Sentences and references to score: of the two files, or of the run's own split.

    Raises InputError if only one file is given, or their lines do not match.
    """
    if (options.source is None) != (options.reference is None):
        raise InputError("--source and --reference go together: give both, or neither")
    if options.source is None:
        if options.split == "dev":
            corpus = run.workdir.path / "corpus"
            names = (corpus / "dev.source.txt", corpus / "dev.target.txt")
            return list(read_lines(names[0])), list(read_lines(names[1]))
        return read_split(build(CorpusConfig, run.config, "data"), options.split)
    sources = list(read_lines(Path(options.source)))
    references = list(read_lines(Path(options.reference)))
    if len(sources) != len(references):
        raise InputError(
            f"{options.source} has {len(sources)} lines and {options.reference} has "
            f"{len(references)}; line N of one must translate line N of the other"
        )
    return sources, references


def tokenize_pairs(
    run: Run, sources: Sequence[str], references: Sequence[str]
) -> TokenizedCorpus:
    """Tokenise sentence pairs in memory."""

    def side(sequences: list[list[int]]) -> Ragged:
        offsets = np.cumsum([0, *map(len, sequences)])
        return Ragged(np.concatenate(sequences).astype(np.int32), offsets)

    return TokenizedCorpus(
        side(run.tokenizer.encode(sources)),
        side(run.tokenizer.encode_target(references)),
    )


class Evaluation(NamedTuple):
    """What a model made of sentence pairs, and what that is worth."""

    run: Run
    sources: list[str]
    references: list[str]
    translations: list[str]
    scores: dict[str, Any]  # of `averages` and `text_scores`
    every_bleu: list[Score]
    translator: Translator


def evaluate(options: Options) -> Evaluation:
    """Translate and score the pairs that the flags name; logs the scores."""
    keep_compiled()
    this_run = open_run(options)
    sources, references = read_pairs_for(this_run, options)
    mesh, params = local_parameters(this_run, options.checkpoint)
    translator = make_translator(this_run, mesh, params, Wishes(search=options.search))
    translations = texts(translate(translator, sources))
    pairs = tokenize_pairs(this_run, sources, references)
    scores = {
        **averages(PairScorer(this_run, mesh, pairs)(params)),
        **text_scores(this_run, translations, references),
    }
    bleus = bleus_of(this_run, translations, references)
    logger.info("%s", describe(scores))
    report_every_bleu(bleus)
    return Evaluation(
        this_run, sources, references, translations, scores, bleus, translator
    )


def table(bleus: Sequence[Score]) -> str:
    """A line for each scorer, each after a line break."""
    return "".join(
        f"\n  {each.bleu:6.2f}  {each.scorer:<30}  {each.signature}" for each in bleus
    )


def run(options: Options) -> dict:
    """Translate and score; returns BLEU and its signature, chrF, NLL, perplexity."""
    start = time.monotonic()
    done = evaluate(options)
    return {
        **{key: done.scores[key] for key in REPORTED},
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "sentences": len(done.sources),
        "seconds": round(time.monotonic() - start, 1),
    }
