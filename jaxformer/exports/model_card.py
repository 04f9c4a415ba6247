"""The model card of an export for Hugging Face: README.md with YAML front matter."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxformer import __version__
from jaxformer.config.data import DataConfig, base_language
from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import parameters
from jaxformer.models.sequence_model import parameter_count


class TextScores(NamedTuple):
    """The scores of one text by their names in `metrics.jsonl`, 0 to 100."""

    name: str  # such as "multi30k/val"
    split: str  # "validation" or "test"
    scores: dict[str, tuple[float, str]]  # "bleu": value and signature


class Facts(NamedTuple):
    """What a card says beyond the config."""

    pairs: dict[str, int]  # that trained, by corpus; none if not recorded
    scores: Sequence[TextScores]  # of the exported parameters
    license: str | None


_METRICS = {"bleu": "BLEU", "chrf": "chrF"}


def text_name(data: DataConfig, split: str) -> str:
    """Name the text "train", "dev" or "test" of a corpus, without its folder's path."""
    values = vars(data)
    if data.corpus.startswith("builtin:"):
        return data.corpus
    name = values[f"{split}_source"] if data.corpus == "files" else values[split]
    if data.corpus == "directory":
        return f"{Path(data.directory).name}/{name}"
    return f"{data.corpus}/{name}" if ":" in data.corpus else Path(name).name


def write_card(
    folder: Path, config: Config, params: dict, options: TranslateOptions, facts: Facts
) -> None:
    """Write README.md into the folder of an export.

    Raises InputError if the package huggingface_hub is not installed.
    """
    with parameters.optional_package("huggingface_hub"):
        from huggingface_hub import EvalResult, ModelCardData
    datas = {name: part.data for name, part in config.data.parts.items()}
    directions = list(dict.fromkeys(data.direction for data in datas.values()))
    languages = [
        base_language(code)
        for data in datas.values()
        for code in (data.source_language, data.target_language)
    ]
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=text.name,
            dataset_name=text.name,
            dataset_split=text.split,
            metric_type=metric,
            metric_name=_METRICS[metric],
            metric_value=round(value, 2),
            metric_args={"signature": signature},
        )
        for text in facts.scores
        for metric, (value, signature) in text.scores.items()
    ]
    header = ModelCardData(
        language=list(dict.fromkeys(languages)),
        license=facts.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "marian", "jaxformer"],
        model_name=f"jaxformer {', '.join(directions)}",
        eval_results=results or None,
    )
    body = parameters.template("huggingface.md").substitute(
        directions=", ".join(directions),
        version=__version__,
        model=_rows(_properties(config, params)),
        corpora=_rows(
            (text_name(data, "train"), data.direction, _count(facts.pairs.get(name)))
            for name, data in datas.items()
        ),
        scores=_scores(facts.scores),
        tag=f"{config.data.only_tag} ".lstrip(),
        search=f"a beam search of width {options.beam_size}",
        alpha=options.alpha,
        extra_length=options.extra_length,
        license=facts.license or "Not stated. Ask the author before you use the model.",
    )
    text = f"---\n{header.to_yaml()}\n---\n{body}"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _properties(config: Config, params: dict) -> list[tuple[str, str]]:
    model, training = config.model, config.training
    tables = [
        params[name] for name in ("source_embedding", "embedding") if name in params
    ]
    sizes = " and ".join(_count(len(table)) for table in tables)
    return [
        ("parameters", _count(parameter_count(params))),
        ("layers", f"{model.encoder_layers} encoder, {model.decoder_layers} decoder"),
        ("d_model, d_ff", f"{model.d_model}, {model.d_ff}"),
        ("attention heads", f"{model.num_heads} of size {model.d_k}"),
        ("vocabulary", f"{sizes} SentencePiece pieces"),
        ("updates, at most", _count(training.steps)),
        ("target tokens of an update, at most", _count(training.tokens_per_update)),
    ]


def _count(number: int | None) -> str:
    return "not recorded" if number is None else f"{number:,}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _scores(texts: Sequence[TextScores]) -> str:
    if not texts:
        return "No score of these parameters is recorded."
    rows = _rows(
        (text.name, text.split, _METRICS[metric], f"{value:.2f}", signature)
        for text in texts
        for metric, (value, signature) in text.scores.items()
    )
    return (
        "By sacreBLEU, of translations by jaxformer's own search:\n\n"
        f"| text | split | metric | score | signature |\n|---|---|---|---|---|\n{rows}"
    )
