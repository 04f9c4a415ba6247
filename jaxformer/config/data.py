"""The config section `data`: which text a run has, and how it becomes tokens."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxformer.config.corpus_weights import read_weights
from jaxformer.config.noise import NO_NOISE, NoiseConfig
from jaxformer.config.replaced import require_current
from jaxformer.config.settings import MOST_LENGTH, SEED, Section, setting
from jaxformer.system.errors import InputError, did_you_mean
from jaxformer.tokens import require_plain

TAG = r">>[^<\s]+<<"  # what a tag looks like, in Marian's models as well
VERSIONS = 16  # of a text that is drawn at random, unless `data.versions` says it
# Kinds of pairs that `data.drop` may have: `jaxformer.text.flaws` finds them.
DROPPED = ("swapped", "language", "copy", "entities", "mojibake", "quotes")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section, name="data"):
    """Which text, and how it becomes tokens."""

    of_corpus = ""  # " of corpus NAME", for messages about one of `corpora`

    corpus: str = setting(
        'Kind of text, which says what train, dev and test are: "files" (two paths or '
        'globs, SOURCE,TARGET), "directory" (stems of files STEM.LANGUAGE in '
        '`directory`), "tsv" (paths or globs of source<TAB>target lines), "jsonl" or '
        '"parquet" (paths or globs; `columns` names the texts), "tfds:NAME" (splits of '
        'a TensorFlow Datasets translation set) or "builtin:grammar" (numbers of '
        "pairs). Text may be compressed: .gz, .bz2 or .zst."
    )
    columns: tuple[str, ...] = setting(
        'Source and target column of "jsonl" and "parquet", such as ("text.en", '
        '"text.de"). Empty: named as the languages, at the top or in "translation".',
    )
    source_language: str = setting('ISO 639 code of the source, such as "en" or "eng".')
    target_language: str = setting('ISO 639 code of the target, such as "de" or "deu".')
    directory: str = setting(
        'Folder of a "directory" corpus, or of TensorFlow Datasets; empty: its own.',
        free=True,
    )
    train: str = setting("Training text, as `corpus` says.")
    dev: str = setting("Validation text, as `corpus` says.")
    test: str = setting("Test text, as `corpus` says.", free=True)
    tokenizer: str = setting(
        "SentencePiece model to use, a file; without a shared vocabulary two, with a "
        "comma between: source,target. Empty: trained on the text.",
    )
    model_type: str = setting(
        'Kind of vocabulary that is trained: "bpe", or "unigram" (Kudo 2018).',
        choices=("bpe", "unigram"),
    )
    subword_sampling: float | None = setting(
        "Split the words of training pairs at random, in each of `versions` anew: of a "
        "BPE vocabulary the probability to drop a merge, such as 0.1; of a unigram "
        "model the exponent of the probabilities, such as 0.2, less for more variety. "
        "None: always the same pieces.",
        above=0,
        most=1,
    )
    versions: int | None = setting(
        "Versions of the training pairs that are prepared, each drawn at random; epoch "
        f"e reads version e mod `versions`. None: {VERSIONS} with subword_sampling or "
        "noise, else 1.",
        least=1,
        most=100,
    )
    noise: dict = setting(  # noqa: RUF009 as in all sections
        "Shares of the training pairs that are changed before they are tokenised, in "
        "each of `versions` anew; a pair has one kind of change.",
        earlier=NO_NOISE,
    )
    byte_fallback: bool = setting(
        "The trained vocabulary has a piece for each of the 256 bytes, of which other "
        "characters are made, so that no character is unknown.",
        earlier=False,
    )
    user_defined_symbols: tuple[str, ...] = setting(
        "Texts that are one piece each and never split, such as placeholders.",
    )
    shared_vocabulary: bool = setting(
        "One vocabulary of both languages (section 5.1); False: one of each, which "
        "needs model.tied_embeddings=target or none.",
    )
    vocab_size: int = setting("Ids of a vocabulary, 4 reserved ones included.", least=5)
    vocab_sentences: int = setting("Most sentences that train the vocabulary.", least=1)
    character_coverage: float = setting(
        "Share of the text's characters that get an id.", above=0, most=1
    )
    max_length: int = setting(
        "Tokens of a training sentence at most, end of sentence included; translation "
        "splits longer lines.",
        least=2,
        most=MOST_LENGTH,
    )
    max_ratio: float = setting(
        "Most tokens of a pair's longer side for each of the shorter side.", least=1
    )
    deduplicate: bool = setting("Drop training pairs that occurred before.")
    drop: tuple[str, ...] | None = setting(
        "Training pairs to drop: with sides swapped or in another language, a target "
        "that is its source, HTML entities, mojibake, a spreadsheet's doubled quotes.",
        choices=DROPPED,
    )
    max_foreign: float | None = setting(
        "Refuse text of which a larger share is exchanged or in other languages, by "
        "2,000 pairs and py3langid, unless it lacks the language. None: no check.",
        least=0,
        most=1,
        free=True,
    )
    seed: int = setting("Seed of samples and of the built-in corpus.", **SEED)
    tag: str = setting(
        "Begins each source, one piece of the vocabulary such as >>de<<; it tells a "
        "model of several languages which to translate to. Empty: none.",
    )
    target_tag: str = setting(
        "Begins each target, as `tag` begins each source: the language that the "
        "decoder of M2M-100 and NLLB is told. Empty: none.",
        earlier="",
    )
    corpora: tuple[dict, ...] = setting(
        "Several corpora to mix: for each a dict with a name and with the keys of this "
        "section that say where its text is; weight is how often an epoch has each of "
        "its pairs, by default once, or [[0, 1.0], [20000, 0.5]] to change it at an "
        "update. Empty: this section is the one corpus.",
    )
    temperature: float | None = setting(
        "Temperature T of the weights: a corpus of n pairs counts as one of n^(1/T), "
        "and an epoch keeps its length. None: 1.",
        least=1,
        most=1000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "noise", vars(NoiseConfig.of(self.noise)))
        for key in ("tag", "target_tag"):
            tag = getattr(self, key)
            if tag and not re.fullmatch(TAG, tag):
                raise InputError(f"data.{key} is {tag!r}; use a form such as >>de<<")
            require_plain(key, [tag])
        self.parts  # noqa: B018 - raises for an invalid corpus
        if self.corpus.startswith("builtin:"):
            for split in filter(self.has_text, ("train", "dev", "test")):
                self.pairs_of(split)
        require_plain("user_defined_symbols", self.user_defined_symbols)
        if self.version_count > 1 and not self.is_drawn:
            raise InputError(
                f"data.versions is {self.versions} and data.subword_sampling None, so "
                "that all versions would be equal; set data.subword_sampling, a share "
                "of data.noise, or data.versions=None"
            )
        if self.subword_sampling is not None and self.target_tag:
            raise InputError(
                "data.subword_sampling has no place for data.target_tag; leave one out"
            )
        has_columns = self.corpora or self.corpus in ("jsonl", "parquet")
        if len(self.columns) not in (0, 2) or (self.columns and not has_columns):
            raise InputError(
                f"data.columns is {self.columns}; give the source's and the target's, "
                "for data.corpus=jsonl or parquet alone"
            )
        for key in ("source_language", "target_language"):
            code = getattr(self, key)
            if not code or re.search("[\ud800-\udfff]", code):  # not Unicode
                raise InputError(
                    f"data.{key} is {code!r}; say which language the text is in, as in "
                    f"data.{key}=en"
                )

    @classmethod
    def keys(cls, given: Mapping[str, Any]) -> dict[str, dataclasses.Field]:
        shares = NoiseConfig.keys({})
        return super().keys(given) | {f"noise.{key}": shares[key] for key in shares}

    @property
    def is_drawn(self) -> bool:
        """Whether versions of the training pairs differ."""
        return self.subword_sampling is not None or any(self.noise.values())

    @property
    def version_count(self) -> int:
        """The versions of the training pairs that are prepared."""
        return self.versions or (VERSIONS if self.is_drawn else 1)

    @property
    def tags(self) -> list[str]:
        """The tags of all corpora, each once."""
        return [*filter(None, self._values("tag"))]

    @property
    def target_tags(self) -> list[str]:
        """The tags of the targets of all corpora, each once."""
        return [*filter(None, self._values("target_tag"))]

    @property
    def only_tag(self) -> str:
        """The tag of all sources, if they have the same one, else ""."""
        return self._only("tag")

    @property
    def only_target_tag(self) -> str:
        """The tag of all targets, if they have the same one, else ""."""
        return self._only("target_tag")

    def _only(self, key: str) -> str:
        values = self._values(key)
        return values[0] if len(values) == 1 else ""

    def _values(self, key: str) -> list[str]:
        parts = self.parts.values()
        return [*dict.fromkeys(getattr(part.data, key) for part in parts)]

    @property
    def direction(self) -> str:
        """Source and target language, such as "en-de"; of several "en-de, en-fr"."""
        parts = (part.data for part in self.parts.values())
        pairs = (f"{each.source_language}-{each.target_language}" for each in parts)
        return ", ".join(dict.fromkeys(pairs))

    @functools.cached_property
    def parts(self) -> dict[str, "WeightedCorpus"]:
        """The corpora by name; the only one is called "". Raises InputError."""
        if not self.corpora:
            return {"": WeightedCorpus(self, {0: 1.0})}
        parts = {}
        for number, corpus in enumerate(self.corpora, start=1):
            where = f"corpus {number} of data.corpora"
            own = {key: corpus[key] for key in corpus if key not in ("name", "weight")}
            for key in own.keys() - {*_OF_A_CORPUS}:
                require_current(f"data.{key}")
                hint = did_you_mean(key, ["name", "weight", *_OF_A_CORPUS])
                raise InputError(f"{where} has an unknown key {key!r}{hint}")
            name = corpus.get("name")
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
                raise InputError(
                    f"{where} has the name {name!r}; use letters, digits, _, - and ."
                )
            if name in parts or name == "mean":  # which scores take
                raise InputError(f"{where} is called {name}; use another name")
            config = dataclasses.replace(self, corpora=(), temperature=None, **own)
            object.__setattr__(config, "of_corpus", f" of corpus {name}")
            weights = read_weights(where, corpus.get("weight", 1.0))
            # Without training text it is for validation and tests.
            parts[name] = WeightedCorpus(config, weights if config.train else {0: 0.0})
        for update in _updates(parts):
            if not any(part.weight(update) for part in parts.values()):
                raise InputError(
                    f"all weights of data.corpora are 0 at update {update}; raise one "
                    "of a corpus with a text data.train"
                )
        return parts

    def fixed(self) -> dict[str, Any]:
        """The values of the keys that are not free, with "" for paths of text.

        Text is compared by its content.
        """
        values = super().fixed()
        corpora = [
            own | _no_paths(own.get("corpus", self.corpus)) for own in self.corpora
        ]
        values["corpora"] = _only(corpora, {"name", "weight", *values})
        return values | _no_paths(self.corpus)

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The paths of texts that `fixed` leaves out."""
        datas = (part.data for part in self.parts.values())
        return [(each.train, each.dev) for each in datas if _no_paths(each.corpus)]

    def prepared_by(self) -> dict[str, Any]:
        """The values that prepared text depends on: all but those of weights."""
        values = {**self.fixed(), "temperature": None}
        values["tokenizer"] = ""  # compared by its content
        values["corpora"] = _only(values["corpora"], {"name", *values})
        values["trained"] = [*self.training_texts]
        return values

    @property
    def stages(self) -> list[int]:
        """The updates from which weights hold, the first one 0."""
        return _updates(self.parts)

    def weights(self, sizes: Mapping[str, int], update: int) -> dict[str, float]:
        """How often an epoch has each pair of corpora of these sizes, at an update."""
        given = {name: self.parts[name].weight(update) for name in sizes}
        power = 1.0 / (self.temperature or 1.0)
        counts = {name: size**power for name, size in sizes.items()}
        total = sum(given[name] * sizes[name] for name in sizes)
        factor = total / (sum(given[name] * counts[name] for name in sizes) or 1)
        return {
            name: given[name] * factor * counts[name] / max(1, size)
            for name, size in sizes.items()
        }

    @property
    def training_texts(self) -> dict[str, "DataConfig"]:
        """The corpora that ever have a weight above 0, by name."""
        return {
            name: part.data
            for name, part in self.parts.items()
            if any(part.weights.values())
        }

    @property
    def dev_texts(self) -> dict[str, "DataConfig"]:
        """The corpora with a validation text of their own, by name; at least one."""
        found = self._distinct("dev")
        own = {name: data for name, data in found.items() if data.has_text("dev")}
        return own or dict([*found.items()][:1])  # reading it names the key

    def _distinct(self, split: str) -> dict[str, "DataConfig"]:
        """The corpora whose text of a split no earlier one has, by name."""
        keys = {*_OF_A_CORPUS} - {"train", "dev", "test"} | {split}
        found: dict[tuple, str] = {}
        for name, part in self.parts.items():
            text = tuple(getattr(part.data, key) for key in sorted(keys))
            found.setdefault(text, name)
        return {name: self.parts[name].data for name in found.values()}

    def has_text(self, split: str) -> bool:
        """Whether a key says where the text "train", "dev" or "test" is."""
        given = getattr(self, split)
        # A corpus of `corpora` may have the stem or the split of another kind of text.
        return "," in given if self.corpus == "files" else bool(given)

    def dropping(self, *kinds: str) -> str:
        """Return the setting that drops these kinds too, as in "data.drop=copy"."""
        return "data.drop=" + ",".join(dict.fromkeys([*(self.drop or ()), *kinds]))

    def pairs_of(self, split: str) -> int:
        """The pairs of a split of a built-in corpus. Raises InputError."""
        given = getattr(self, split)
        if not re.fullmatch(r"0*[1-9]\d{0,8}", given, re.ASCII):
            raise InputError(
                f"data.{split} is {given!r}; a built-in corpus takes a number of pairs "
                "from 1 on"
            )
        return int(given)

    @property
    def texts(self) -> dict[str, "SplitOf"]:
        """All texts by their names: "train" or, of several corpora, "train NAME"."""
        splits = {"train": self.training_texts, "dev": self.dev_texts}
        splits["test"] = self._distinct("test")
        return {
            f"{split} {name}".rstrip(): SplitOf(name, split, data)
            for split, texts in splits.items()
            for name, data in texts.items()
        }


_OF_PATHS = ("files", "tsv", "jsonl", "parquet")  # corpora whose texts are paths
# Keys that a corpus of `corpora` may have for itself.
_OF_A_CORPUS = (
    "corpus", "source_language", "target_language", "directory", "train", "dev", "test",
    "columns", "tag", "target_tag",
)  # fmt: skip


class SplitOf(NamedTuple):
    """One text of a corpus."""

    corpus: str
    split: str  # "train", "dev" or "test"
    data: DataConfig


class WeightedCorpus(NamedTuple):
    """One of the corpora that are mixed."""

    data: DataConfig  # without `corpora`
    weights: dict[int, float]  # by the update from which they hold

    def weight(self, update: int) -> float:
        """How often an epoch has each pair at an update, before `temperature`."""
        return self.weights[max(each for each in self.weights if each <= update)]


def _updates(parts: Mapping[str, WeightedCorpus]) -> list[int]:
    return sorted({update for part in parts.values() for update in part.weights})


def _only(corpora: Sequence[Mapping[str, Any]], keys: set[str]) -> list[dict[str, Any]]:
    return [{key: own[key] for key in own if key in keys} for own in corpora]


def _no_paths(corpus: str) -> dict[str, str]:
    """Return "" for each key that is a path in a corpus of this kind."""
    return dict.fromkeys(("train", "dev"), "") if corpus in _OF_PATHS else {}
