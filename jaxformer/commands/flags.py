"""The commands and their flags, as tables."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jaxformer.config.settings import kind_of
from jaxformer.decoding.options import (
    CometModel,
    HypothesisChoice,
    ModelChoice,
    TranslateOptions,
)
from jaxformer.documents.document import MARKUPS
from jaxformer.system.errors import InputError

DAY = 86_400  # seconds


def paths(text: str) -> list[Path]:
    """Split paths at commas."""
    return [Path(name.strip()) for name in text.split(",") if name.strip()]


def read_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, or PORT of this machine alone. Raises InputError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5):
        raise InputError(
            f"--listen={text} is no HOST:PORT, such as 127.0.0.1:8000; port 0 is any "
            "that is free"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


class Flag(NamedTuple):
    """One flag; `default` None means not given, the bounds are those of `setting`."""

    name: str
    kind: Callable[[str], object]  # a type, or a function that reads the flag's text
    meaning: str
    default: object = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    above: float | None = None


class Command(NamedTuple):
    """One command: what it does, and the flags that it reads besides COMMON."""

    summary: str
    flags: tuple[str, ...]
    needs_workdir: bool = True
    opens_run: bool = True  # of the workdir, or of a config
    alone: str = ""  # why several processes cannot run it, and what to do


FLAG_LIST = (
    Flag("workdir", Path, "The run folder, in place of the word RUN."),
    Flag("init_from", Path, "Run to begin with: its parameters, its tokeniser and, "
         "without --config, its config."),
    Flag("train", str, "Training text: two paths or globs, SOURCE,TARGET, or a .tsv, "
         ".jsonl or .parquet file. All but Parquet may be compressed."),
    Flag("dev", str, "Validation text, in the form of --train. Its pairs must not be "
         "in the training text."),
    Flag("source", Path, "File of source sentences."),
    Flag("reference", Path, "File of reference translations, one for each source. For "
         "hypotheses also several, separated by commas, or the columns of FILE.tsv."),
    Flag("hypotheses", paths, "Files of any system's translations to score without a "
         "run, separated by commas; the others are compared with the first one.", ()),
    Flag("source_language", str, "ISO 639 code of the source, such as en or zho; new "
         "recognises the language by default, and evaluate prints the code."),
    Flag("target_language", str, "ISO 639 code of the target; new recognises the "
         "language by default, and evaluate chooses the tokenisers by it."),
    Flag("split", str, "Split of the run's data to use, without --source.", "test"),
    Flag("checkpoint", str, "Parameters: a step, latest, best, or average:N of the "
         "last N checkpoints; by default the average that the config asks for."),
    Flag("ensemble", paths, "Runs of further models whose probabilities are "
         "averaged with this one's, separated by commas; all share one tokeniser.", ()),
    Flag("dtype", str, "Type in which all models multiply matrices; auto: bfloat16 on "
         "CPUs where a short test finds it faster. By default model.dtype of each.",
         choices=("auto", "float32", "bfloat16")),
    Flag("languages", bool, "Drop a pair with a side that py3langid finds in another "
         "language.", True),
    Flag("least_log_probability", float, "Drop a translation whose tokens have a "
         "smaller mean log-probability, in nats.", most=0),
    Flag("choose", HypothesisChoice.of, "What chooses among beam_size translations. "
         "bleu, chrf or comet: the sample of largest mean utility against all samples. "
         "RUN,RUN:WEIGHT,...: models that score all again, of this run's "
         "direction or of the opposite one, by default of weight 1; their tokenisers "
         "may differ. By default the score of the search."),
    Flag("comet", CometModel.of, "Checkpoint of a COMET model, model.ckpt, and after a "
         "comma the Python in which unbabel-comet is installed, by default this one: "
         "evaluate adds its score, and --choose=comet chooses by it."),
    Flag("prefix", Path, "File whose line N begins the translation of line N."),
    Flag("phrases", Path, "File whose line N has the phrases that the translation of "
         "line N contains, separated by tabs."),
    Flag("glossary", Path, "File of terms: a line has a term of the source, a tab and "
         "what the translation of each sentence with the term contains."),
    Flag("markup", str, "Kind of a document that is translated as a whole: its tags, "
         "times and other structure stay.", choices=MARKUPS),
    Flag("placeholders", Path, "File of regular expressions, one a line, of what a "
         "translated document keeps; before one may stand the piece that is translated "
         "in its place, and a tab. By default such as {name}, %s, tags and addresses."),
    Flag("json", bool, "Write JSON lines, with scores or the log-probability of each "
         "piece; check: print its JSON also on a terminal.", False),
    Flag("alignment", bool, "Write JSON lines, with the source piece that each piece "
         "attends to most.", False),
    Flag("units", str, "Units of the links: words, which spaces separate, or the "
         "tokeniser's pieces.", "words", choices=("words", "pieces")),
    Flag("format", str, "Program to export for.",
         choices=("ctranslate2", "huggingface", "marian")),
    Flag("quantization", str, "Type of the exported weights.", "float32",
         choices=("float32", "float16", "bfloat16", "int8", "int8_float32",
                  "int8_float16", "int8_bfloat16", "int16")),
    Flag("license", str, "Licence of the model that its card for Hugging Face states, "
         "such as apache-2.0; without it the card says that none is stated."),
    Flag("runner", str, "Runner of Apache Beam that reads the text on many machines, "
         "and its options, such as 'FlinkRunner --flink_master=HOST:8081'."),
    Flag("memory_gib", float, "Find the largest microbatch for devices of so much "
         "memory; 0: the memory that the device reports.", least=0, most=10**6),
    Flag("topology", str, "Accelerators to estimate the run for, such as v5e:2x4, "
         "v5p:2x2x1 or h200:8; needs none, only their compiler. v5e:2x4,auto also "
         "searches the mesh, the microbatch and rematerialisation of the fastest "
         "update."),
    Flag("before", Path, "The JSON line of an earlier check with --topology, in a "
         "file; the page of --output shows both."),
    Flag("input", Path, "Folder of a checkpoint: Marian's own, or of Hugging Face's "
         "Marian, M2M-100 or NLLB-200 models."),
    Flag("output", Path, "File or new folder to write."),
    Flag("attention", str, "Attention that is shown first: encoder, decoder or cross, "
         "then the layer and the heads of a picture, from 1, as in cross:3:1,2; by "
         "default the last layer and all heads.", "cross"),
    Flag("view", str, "Lines as in the paper's Figures 3-5, or heat maps.", "lines",
         choices=("lines", "heat_map")),
    Flag("compare", paths, "Other runs, separated by commas.", ()),
    Flag("examples", int, "Sentences shown of the best, and of the worst.", 5, 0),
    Flag("row", str, "Published result, such as table3/E; without it all are "
         "listed."),
    Flag("listen", str, "HOST:PORT to listen on, or PORT; host 0.0.0.0 is all of this "
         "machine's, port 0 any that is free.", "127.0.0.1:8000"),
    Flag("host_names", str, "Host names that the server accepts, besides loopback's "
         "and that of --listen, separated by commas; * is any."),
    Flag("origins", str, "Origins of other web pages that may ask the server, such as "
         "https://example.org, separated by commas; * is any. By default none."),
    Flag("api_keys", Path, "File with a key a line, which requests need to translate; "
         "after a tab the requests that it allows in a minute."),
    Flag("max_batch", int, "Slots of each device for small requests, rounded down to "
         "1, 4, 16 or 64; large requests have at most 16 more.", 16, 1),
    Flag("max_queue", int, "Pieces of all requests that wait for an answer at most; "
         "requests of more than 128 pieces fill half of it, and one has an eighth at "
         "most.", 65536, 8),
    Flag("request_timeout", float, "Seconds to answer a request, and on stop to finish "
         "those that are accepted.", 30.0, most=DAY, above=0),
    Flag("coordinator_address", str, "HOST:PORT of process 0. Cloud TPU, Slurm and "
         "Open MPI need none of these three flags."),
    Flag("num_processes", int, "Processes that take part; 1: this one.", least=1),
    Flag("process_id", int, "Number of this process, from 0.", least=0),
    Flag("peer_timeout", int, "Seconds after which a silent process counts as lost.",
         100, 10, DAY),
)  # fmt: skip


_TRANSLATION_FLAGS = [
    Flag(
        field.name,
        kind_of(field)[0],
        field.metadata["meaning"],
        choices=field.metadata["choices"],
        **{key: field.metadata[key] for key in ("least", "most", "above")},
    )
    for field in dataclasses.fields(TranslateOptions)
    if field.name not in ("extra_length", "batch_tokens")  # those of --config
]
TRANSLATION = tuple(flag.name for flag in _TRANSLATION_FLAGS)
MODELS = tuple(field.name for field in dataclasses.fields(ModelChoice))
FLAGS = {flag.name: flag for flag in (*FLAG_LIST, *_TRANSLATION_FLAGS)}
CLUSTER = "coordinator_address", "num_processes", "process_id", "peer_timeout"
COMMON = ("workdir", *CLUSTER)

_BEST = tuple(name for name in TRANSLATION if name != "n_best")  # one translation each
_WHOLE = tuple(  # those for lines that are neither cut nor split
    name
    for name in _BEST
    if name not in ("max_source_length", "long_lines", "split_sentences")
)
_PAIRS = ("source", "reference", "split")
_MODELS = ("checkpoint", "ensemble", "dtype", "choose")
COMMANDS = {
    "train": Command(
        "Prepare what is missing, then train or resume (default).", ("init_from",)
    ),
    "new": Command(
        "Write a config for a text, with reasons: which model, how long, what score.",
        ("train", "dev", "source_language", "target_language", "output"),
        needs_workdir=False,
        opens_run=False,
        alone="start it once",
    ),
    "prepare": Command(
        "Make the tokeniser and the tokenised corpus.",
        ("init_from", "runner"),
    ),
    "check": Command(
        "Say what a run would do, here or on accelerators that are not here, and what "
        "its text holds; trains nothing.",
        ("init_from", "memory_gib", "output", "topology", "before", "json"),
        needs_workdir=False,
    ),
    "translate": Command(
        "Translate standard input, or --source, to standard output, line by line; "
        "--output gets the translations when all are made.",
        (
            *_MODELS, "comet", *TRANSLATION, "source", "output", "prefix", "phrases",
            "glossary", "json", "alignment", "markup", "placeholders",
        ),
    ),
    "translate_corpus": Command(
        "Translate a text of any length into a parallel corpus; continues after a "
        "stop.",
        (
            *_MODELS, *_WHOLE, "source", "output", "split", "languages",
            "least_log_probability",
        ),
    ),
    "evaluate": Command(
        "Translate and score a text, or score --hypotheses without a run; --output "
        "keeps the translations.",
        (
            *_MODELS, "comet", "glossary", *_BEST, *_PAIRS, "output", "hypotheses",
            "source_language", "target_language",
        ),
    ),
    "score": Command(
        "Sum the log-probability of given translations; --reference=FILE.jsonl takes "
        "those of translate --json.",
        ("checkpoint", "tag", *_PAIRS, "json"),
    ),
    "align": Command(
        "Align given translations, by words or pieces; --output=FILE.npz keeps all "
        "attention.",
        ("checkpoint", "tag", *_PAIRS, "units", "output"),
    ),
    "serve": Command(
        "Serve translations over HTTP, with a page to try them.",
        (
            *_MODELS, "glossary", *TRANSLATION, "listen", "host_names", "origins",
            "api_keys", "max_batch", "max_queue", "request_timeout",
        ),
        alone="start one server a machine, each with --num_processes=1, behind a load "
        "balancer",
    ),
    "export": Command(
        "Write a model for CTranslate2, Hugging Face or Marian.",
        (
            "checkpoint", "format", "quantization", "output", "license", "beam_size",
            "alpha", "length_penalty", "no_repeat_ngram",
        ),
    ),
    "import": Command(
        "Make a run of a checkpoint of Marian, M2M-100 or NLLB-200.", ("input",),
        opens_run=False,
        alone="start it once, and then train in many",
    ),
    "visualize": Command(
        "Show where each head attends, as a page or a picture.",
        (
            "checkpoint", "ensemble", "choose", *TRANSLATION, "source", "reference",
            "output", "attention", "view",
        ),
    ),
    "report": Command(
        "Write a page about a run, or about several side by side.",
        ("checkpoint", "choose", *_BEST, *_PAIRS, "compare", "examples", "output"),
    ),
    "reproduce": Command(
        "Train and score a published row, or list all rows.",
        ("checkpoint", "choose", *_BEST, *_PAIRS, "row", "output"),
        needs_workdir=False,
        opens_run=False,
    ),
}  # fmt: skip
TAKE_EXPORTS = "translate", "translate_corpus", "evaluate", "serve"  # in place of runs

# Flags of the last version and of other programs, and what to use.
REPLACED = {
    "batch_tokens": "--config.decoding.batch_tokens",
    "comet_python": "--comet=CHECKPOINT,PYTHON",
    "corpus": "--split=NAME/test",
    "details": "--json",
    "device": "JAX_PLATFORMS=cpu, cuda or tpu in the environment",
    "heads": "--attention=STACK:LAYER:HEADS, such as cross:3:1,2",
    "host": "--listen=HOST:PORT",
    "join_timeout": "none: processes wait 300 s for each other at the start",
    "layer": "--attention=STACK:LAYER, such as cross:3",
    "max_request_pieces": "--max_queue; a request has an eighth of it at most",
    "mesh": "--topology=NAME,auto, such as v5e:2x4,auto",
    "minimum_bayes_risk": "--choose=bleu, chrf or comet",
    "port": "--listen=HOST:PORT or --listen=PORT",
    "rerank": "--choose=RUN,RUN",
    "rerank_weights": "--choose=RUN:WEIGHT,RUN:WEIGHT",
    "runner_options": "--runner='RUNNER OPTIONS'",
    "shutdown_timeout": "--request_timeout",
    "source_length": "--format=ctranslate2 or huggingface, which take any length",
    "steps": "--config.training.steps",
}
