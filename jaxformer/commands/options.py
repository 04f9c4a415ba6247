"""The flags, as a table, and what every mode receives of them.

A flag that only some modes read says so in its meaning. Flags of the same group arrive
together: those of no group as a field of `Options`, the others in a dict that has only
what was given.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.decoding.long_lines import LONG_LINES
from jaxformer.decoding.options import LENGTH_PENALTIES
from jaxformer.processes import Cluster

MODES = (
    "prepare", "check", "train", "evaluate", "translate", "score", "align", "export",
    "import", "serve", "visualize", "report", "reproduce",
)  # fmt: skip


class Flag(NamedTuple):
    """One flag: its type is that of `kind`, its bounds or choices are absl's."""

    name: str
    kind: type  # str, int, float or bool
    meaning: str
    default: Any = None
    least: float | None = None
    choices: tuple[str, ...] | None = None


FLAGS: dict[str | None, tuple[Flag, ...]] = {
    None: (
        Flag("workdir", str, "The run's folder: made by training."),
        Flag("source", str, "evaluate, score, align, visualize: file of source "
             "sentences."),
        Flag("reference", str, "evaluate, score, align, visualize: file of "
             "translations."),
        Flag("split", str, "evaluate, score, align: split of the run's data, without "
             "--source.", default="test"),
        Flag("checkpoint", str, "Parameters to use: a step, latest, best, or average:N "
             "of the last N; by default the average that the config asks for."),
        Flag("ensemble", str, "translate: workdirs of other models that vote, "
             "separated by commas; all share one tokeniser."),
        Flag("prefix", str, "translate: file whose line N says how the translation of "
             "line N begins."),
        Flag("json", bool, "translate: write JSON lines, with scores.", default=False),
        Flag("alignment", bool, "translate: write JSON lines, with the source piece "
             "that each piece looks at.", default=False),
        Flag("details", bool, "score: write each piece's log-probability, a JSON line "
             "a pair.", default=False),
        Flag("format", str, "export: for which program.",
             choices=("ctranslate2", "huggingface", "stablehlo")),
        Flag("memory_gib", float, "check: search the largest microbatch that fits "
             "devices of this memory; 0 is what they report.", least=0.0),
        Flag("input", str, "import: the folder of a Marian checkpoint of Hugging Face, "
             "such as an OPUS-MT model's."),
        Flag("output", str, "export: the new folder to write; align: a new .npz file "
             "of all attention; visualize: the page, or a picture called .png, .svg or "
             ".pdf, by default attention.html in the workdir, written over if it is "
             "there; report, reproduce, check: the page."),
        Flag("attention", str, "visualize: which of the three a picture shows, and "
             "the page first.", default="cross",
             choices=("encoder", "decoder", "cross")),
        Flag("layer", int, "visualize: which layer a picture shows, and the page "
             "first, from 1; by default the last.", least=1),
        Flag("heads", str, "visualize: which heads a picture shows, from 1, "
             "separated by commas; by default all."),
        Flag("view", str, "visualize: lines as in the paper's Figures 3-5, or heat "
             "maps; the page has both, and begins with this one.", default="lines",
             choices=("lines", "heat_map")),
        Flag("compare", str, "report: workdirs of other runs to stand beside, "
             "separated by commas."),
        Flag("examples", int, "report: how many of the best and the worst sentences it "
             "shows.", default=5, least=0),
        Flag("row", str, "reproduce: which published result, such as table2/base; "
             "without it they are listed."),
        Flag("steps", int, "reproduce: updates, where the paper made more.", least=1),
        Flag("quantization", str, "export: the type of the weights.", default="float32",
             choices=(
                 "float32", "float16", "bfloat16", "int8", "int8_float32",
                 "int8_float16", "int8_bfloat16", "int16",
             )),
    ),
    "decoding": (  # values of that section of the config
        Flag("beam_size", int, "Beam width, 1 is greedy.", least=1),
        Flag("batch_tokens", int, "Source tokens decoded at a time, padding included.",
             least=1),
        Flag("alpha", float, "Exponent of the length penalty."),
    ),
    "search": (  # of SearchOptions, besides those
        Flag("n_best", int, "translate: how many translations of each line; more than "
             "one are written as JSON lines; visualize: how many are shown, by default "
             "4.", least=1),
        Flag("length_penalty", str, "What the log-probability of n output pieces, end "
             "included, is divided by: "
             + "; ".join(f"{k} is {v}" for k, v in LENGTH_PENALTIES.items()) + ".",
             choices=tuple(LENGTH_PENALTIES)),
        Flag("no_repeat_ngram", int, "translate: no n-gram of so many pieces occurs "
             "twice in a translation.", least=1),
        Flag("temperature", float, "translate: sample, with logits divided by this; "
             "beam_size is then how many samples are drawn."),
        Flag("top_k", int, "translate: sample among so many most probable pieces.",
             least=1),
        Flag("top_p", float, "translate: sample among the fewest pieces that have this "
             "probability together."),
    ),
    "wishes": (  # of Wishes
        Flag("seed", int, "translate: of samples.", least=0),
        Flag("min_length", int, "translate: least pieces of a translation, end "
             "included.", least=0),
        Flag("max_source_length", int, "translate: most pieces of a line, end "
             "included, by default as long as those trained on; export to stablehlo: "
             "64.", least=2),
        Flag("long_lines", str, "translate: what becomes of a longer line: "
             + "; ".join(f"{k}: {v}" for k, v in LONG_LINES.items()) + ".",
             choices=tuple(LONG_LINES)),
    ),
    "serve": (
        Flag("host", str, "serve: address to listen on; 0.0.0.0 is all of this "
             "machine's.", default="127.0.0.1"),
        Flag("port", int, "serve: port to listen on; 0 is any that is free.",
             default=8000, least=0),
        Flag("max_request_bytes", int, "serve: the largest request.", default=2**18,
             least=1),
        Flag("max_sentences", int, "serve: the most sentences in a request.",
             default=128, least=1),
        Flag("max_batch", int, "serve: the most sentences translated at a time.",
             default=128, least=1),
        Flag("max_queue", int, "serve: the most sentences that wait for that.",
             default=1024, least=1),
        Flag("warm_up", int, "serve: sentences of the run's dev text translated before "
             "it is ready, so that the programs for others are compiled.", default=256,
             least=0),
        Flag("request_timeout", float, "serve: seconds to answer a request.",
             default=30.0, least=0.0),
        Flag("shutdown_timeout", float, "serve: seconds to finish accepted requests "
             "when asked to stop.", default=30.0, least=0.0),
    ),
    "cluster": (  # jax.distributed finds it by itself on Cloud TPU, Slurm and Open MPI
        Flag("coordinator_address", str, "Several processes: HOST:PORT of process 0."),
        Flag("num_processes", int, "How many processes take part; 1: this one alone.",
             least=1),
        Flag("process_id", int, "Which of them this is, from 0.", least=0),
        Flag("join_timeout", int, "Seconds to wait at the start until all are there.",
             default=300, least=1),
        Flag("peer_timeout", int, "Seconds after which a silent process counts as "
             "lost.", default=100, least=10),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags; `config` is the resolved config file or None."""

    mode: str
    config: dict | None = None
    config_file: dict | None = None  # of a --row, without what --config.KEY changes
    workdir: Path | None = None
    source: str | None = None
    reference: str | None = None
    split: str = "test"
    checkpoint: str | None = None
    ensemble: str | None = None
    prefix: str | None = None
    json: bool = False
    alignment: bool = False
    details: bool = False
    format: str | None = None
    output: str | None = None
    input: str | None = None
    quantization: str = "float32"
    memory_gib: float | None = None
    attention: str = "cross"
    layer: int | None = None
    heads: str | None = None
    view: str = "lines"
    compare: str | None = None
    examples: int = 5
    row: str | None = None
    steps: int | None = None
    decoding: dict = field(default_factory=dict)  # override that section of the config
    search: dict = field(default_factory=dict)  # further SearchOptions
    wishes: dict = field(default_factory=dict)  # further Wishes
    serve: dict = field(default_factory=dict)  # where, and how much
    cluster: Cluster | None = None  # which processes take part
