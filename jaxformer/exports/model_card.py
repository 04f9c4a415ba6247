"""The model card of an export for Hugging Face: README.md with YAML front matter."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxformer import __version__
from jaxformer.config.data import DataConfig
from jaxformer.config.languages import base_language
from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports.parameters import in_markdown, template
from jaxformer.models.sequence_model import parameter_count
from jaxformer.system.errors import packages_of


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
    imported: str = ""  # name of the checkpoint that it began with
    is_trained: bool = True  # here


_METRICS = {"bleu": "BLEU", "chrf": "chrF"}


def text_name(data: DataConfig, split: str) -> str:
    """Name the text "train", "dev" or "test" of a corpus, without its folder's path."""
    name = getattr(data, split)
    if data.corpus.startswith("builtin:"):
        return data.corpus
    if data.corpus == "files":
        name = name.partition(",")[0]  # of the sources
    if data.corpus == "directory":
        return f"{Path(data.directory).name}/{name}"
    return f"{data.corpus}/{name}" if ":" in data.corpus else Path(name).name


def write_card(
    folder: Path,
    config: Config,
    params: dict,
    options: TranslateOptions,
    facts: Facts,
    *,
    kind: str,
) -> None:
    """Write README.md into the folder of an export; `kind` is its `model_type`.

    Raises InputError if huggingface_hub or jinja2 is not installed.
    """
    with packages_of("export"):
        from huggingface_hub import EvalResult, ModelCard, ModelCardData
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
        tags=["translation", kind, "jaxformer"],
        model_name=f"jaxformer {', '.join(directions)}",
        eval_results=results or None,
    )
    vocabularies = [
        f"{len(params[name]):,}"
        for name in ("source_embedding", "embedding")
        if name in params
    ]
    origin = f"trained with jaxformer {__version__}"
    remedy = "Ask the author before you use the model."
    if facts.imported:
        name, own = in_markdown(facts.imported), "not trained further"
        origin = f"imported from {name} and {origin if facts.is_trained else own}"
        remedy = f"That of {facts.imported} applies."
    with packages_of("export"):  # jinja2
        card = ModelCard.from_template(
            header,
            template_str=template("huggingface.md"),
            directions=in_markdown(", ".join(directions)),
            origin=origin,
            is_trained=facts.is_trained,
            parameters=parameter_count(params),
            model=config.model,
            training=config.training,
            vocabulary=" and ".join(vocabularies),
            corpora=[
                (
                    in_markdown(text_name(data, "train")),
                    in_markdown(data.direction),
                    facts.pairs.get(name),
                )
                for name, data in datas.items()
            ],
            texts=[text._replace(name=in_markdown(text.name)) for text in facts.scores],
            program=template("program.txt").strip(),
            metrics=_METRICS,
            kind=kind,
            tag=json.dumps(config.data.only_tag),
            target_tag=json.dumps(config.data.only_target_tag),
            languages=", ".join(
                dict.fromkeys(config.data.tags + config.data.target_tags)
            ),
            options=options,
            licence=in_markdown(facts.license or f"Not stated. {remedy}"),
        )
    (folder / "README.md").write_text(f"{card}\n", encoding="utf-8")
