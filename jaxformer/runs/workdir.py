"""The folder of a run: everything that training writes and translation needs.

    config.json       the resolved config, the direction, hashes of tokeniser and text,
                      versions of packages, and a hash of all these
    tokenizer.model   SentencePiece; a zip file of two if each language has its own
    corpus/           tokenised text, with a report of what was dropped
    checkpoints/      the training state
    metrics.jsonl, tensorboard/
    .lock             held by the process that writes into the folder; names it

The folder needs nothing outside itself. Files of another run are refused, and so are
links, pipes and devices in place of files.
"""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from os.path import realpath
from pathlib import Path

from jaxformer.config.data import DataConfig
from jaxformer.config.languages import base_language
from jaxformer.config.sections import Config
from jaxformer.corpus.prepared import PreparedCorpus, open_prepared
from jaxformer.remote.copy import copy_at, copy_of
from jaxformer.runs.config_files import (
    RECORD,
    ConfigRequest,
    Record,
    hash_of,
    parse_config,
    read_record,
    required_record,
)
from jaxformer.system import processes
from jaxformer.system.errors import InputError
from jaxformer.system.files import entries, links_among, owned, url_of, write_atomically
from jaxformer.system.mirror import LOCAL
from jaxformer.text.given_tokenizer import (
    are_files,
    load_given,
    require_symbols,
    require_usable,
)
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.checkpoint_files import find

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece")

# In a path, orbax reads [ as a glob and a part gs: as a URL, and tensorstore reads \ as
# /. Neither takes bytes that are not UTF-8.
_MISREAD = re.compile(r"[\\\[]|(?<=/)gs:(?=/|$)|[\ud800-\udfff]")
# Names of what commands write into the folder.
_OWN = re.compile(
    r"checkpoints|corpus|profile|tensorboard|\.(.*\.)?(lock|partial)"
    r"|.*\.(jsonl?|html|model|tsv)"
)
_PATHS = "training.init_from", "training.initial_embeddings"  # compared as paths


class Workdir:
    """The paths within a run's folder, and its record of config and tokeniser.

    Of a run on an object store, `path` is the copy on this machine, and `mirror`
    exchanges folders with the store.
    """

    def __init__(self, path: Path) -> None:
        """Open a folder of this machine or, by its copy here, of an object store.

        Raises InputError if the store cannot be used, for a path that orbax reads as
        another one, and for links, pipes and devices in the folder.
        """
        if not (url := url_of(path)):
            _require_safe(path)
        copy = copy_of(url, processes.index()) if url else copy_at(path)
        self._copy, self.mirror = copy, copy or LOCAL
        self.url = copy.store.url if copy else ""
        self.path = path = copy.path if copy else path
        self.config_file = path / RECORD
        self.tokenizer_file = path / "tokenizer.model"
        self.corpus = path / "corpus"
        self.checkpoints = path / "checkpoints"

    def has_checkpoints(self) -> bool:
        """Whether there is a finished checkpoint."""
        return bool(find(self.checkpoints))

    def open_checkpoints(
        self,
        record: Record | None,
        *,
        keep: int | None = None,
        scores: dict[int, float] | None = None,
        last: int | None = None,
    ) -> Checkpoints:
        """Open the checkpoints, by default to read them; see `Checkpoints`.

        The record of a new run is None.
        """
        return Checkpoints(
            self.checkpoints,
            run=record.run if record else "",
            keep=keep,
            scores={} if scores is None else scores,
            last=last,
            mirror=self.mirror,
        )

    def trained_text(self, record: Record | None) -> str | None:
        """Return the hash of the text of the checkpoints; None without checkpoints."""
        return record.text if record and self.has_checkpoints() else None

    def open_corpus(self, record: Record | None) -> PreparedCorpus:
        """Open the prepared corpus.

        Raises InputError if it is missing, damaged, or of another text than the
        checkpoints.
        """
        trained = self.trained_text(record)
        return open_prepared(self.path, self.mirror, trained_text=trained)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Make the folder and own it in the block, in process 0 for all.

        No other process writes into it meanwhile. A new folder that the block leaves
        empty is removed. Raises InputError that names the process that owns it, and
        OSError (of several processes InputError) if the folder cannot be made.
        """
        lock, is_new = self.path / ".lock", False
        # Connects the processes. Gloo waits 30 s for that, and a lock may take longer.
        processes.gather(None)
        with ExitStack() as held:
            with processes.sharing_mistakes():
                if processes.is_first():
                    is_new = not self.path.exists()
                    self.path.mkdir(parents=True, exist_ok=True)
                    held.enter_context(owned(self.path, lock))
                    if self._copy:
                        held.enter_context(self._copy.owned())
            if not processes.is_first():
                self.mirror.refresh()
            try:
                yield
            finally:
                if is_new and [*self.path.iterdir()] == [lock]:
                    lock.unlink()
                    with suppress(OSError):  # a file was put into it meanwhile
                        self.path.rmdir()

    def read_record(self) -> Record:
        """Read the record. Raises InputError if it is missing, edited or damaged."""
        return required_record(self.path)

    def recorded(self) -> Record | None:
        """Return the record, or None if there is none yet. Raises InputError."""
        return read_record(self.path)

    def write_record(
        self,
        config: Config,
        tokenizer: Tokenizer,
        text: str | None = None,
        imported: str = "",
    ) -> Record:
        """Record the config, the tokeniser, the versions of packages, and a hash.

        `text` is the hash of the prepared text; None: no text is prepared. `imported`
        names a checkpoint; without it, it is that of the run to begin with. Nothing is
        written if all is recorded already.
        """
        before = self.recorded()
        if before and self.has_checkpoints():
            imported = before.imported
        elif begun_with := config.training.init_from:
            imported = Workdir(Path(begun_with)).read_record().imported
        fixed = {name: section.fixed() for name, section in vars(config).items()}
        name = hash_of([fixed, tokenizer.hash])[:16]
        if before and (before.run.startswith(name) or self.has_checkpoints()):
            name = before.run
        else:
            name += f"-{secrets.token_hex(8)}"
        record = Record(
            config,
            config.data.direction,
            text,
            {"sha256": tokenizer.hash, "vocab_size": tokenizer.vocab_size},
            installed_versions(),
            name,
            imported,
        )
        values = {**record._asdict(), "config": config.as_dict()}
        values["sha256"] = hash_of(values)
        if record != before:
            content = json.dumps(values, indent=2, sort_keys=True)
            write_atomically(self.config_file, f"{content}\n")
        return record

    def resolve(self, request: ConfigRequest, record: Record | None) -> Config:
        """Return the config of a file, or that of the record, with values replaced.

        A new run that begins with another has that one's config, if no file is given.
        Raises InputError for a wrong value, and if the folder holds another run.
        """
        values = None
        if request.values is None:
            given = record
            if given is None:
                run = self if request.init_from is None else Workdir(request.init_from)
                given = run.read_record()
            values = given.config.as_dict()
        config = parse_config(request.resolve(values))
        if self.has_checkpoints():
            self.require_same_run(config, record or self.read_record())
        return config

    def require_same_run(self, config: Config, record: Record) -> None:
        """Raise InputError if a key of `config` that is not free was changed."""
        for name, before, value in config.changes(record.config):
            if name in _PATHS and before and realpath(before) == realpath(value):
                continue
            if name == "data.tokenizer" and are_files(value):
                given = load_given(config.data)
                if given.hash == record.tokenizer["sha256"]:
                    continue
            raise InputError(
                f"{self.path} holds a run with {name}={before!r}, and this "
                f"config says {value!r}; use the run's value or another run folder"
            )

    def require_same_model(self, config: Config) -> None:
        """Raise InputError if a run with `config` cannot begin with this one."""
        for name, before, value in config.changes(self.read_record().config):
            if name.startswith("model."):
                raise InputError(
                    f"{self.path} has {name}={before!r}, and this config says "
                    f"{value!r}; use the run's value, or leave out --config to use all "
                    "its values"
                )

    def read_tokenizer(self, record: Record) -> Tokenizer:
        """Load the run's tokeniser. Raises InputError if it is not the recorded one."""
        return Tokenizer.load(self.tokenizer_file, record.tokenizer["sha256"])

    def given_tokenizer(
        self, config: Config, record: Record | None
    ) -> Tokenizer | None:
        """Load the tokeniser to prepare the text with; None: a new one, or it is done.

        It is that of the checkpoints, of the run to begin with, the file
        `data.tokenizer`, or a file that was put into the folder. Raises InputError if
        the model that is to be trained cannot use it, or if the folder has another.
        """
        if self.has_checkpoints():
            return self.read_tokenizer(record)
        own, given = self.tokenizer_file, config.data.tokenizer
        is_prepared = self.corpus.exists()
        if is_prepared and not (config.training.init_from or are_files(given)):
            settings = self.open_corpus(record).report["settings"] if given else {}
            # A file removed since is not needed; a name that was not used is an error.
            is_same = given in ("", settings.get("tokenizer", ""))
            return None if is_same else load_given(config.data)
        if config.training.init_from:
            run = Workdir(Path(config.training.init_from))
            theirs = run.read_record()
            tokenizer = run.read_tokenizer(theirs)
            is_new = given not in ("", theirs.config.data.tokenizer)
            if is_new and load_given(config.data).hash != tokenizer.hash:
                raise InputError(
                    f"data.tokenizer={given} is another tokeniser than that of "
                    f"{run.path}, with which training begins; leave it out"
                )
            given = run.tokenizer_file
            has_two = tokenizer.source_model != tokenizer.target_model
            sources, targets = _languages(theirs.config.data)
            now, _ = _languages(config.data)
            if has_two and now.isdisjoint(sources) and now <= targets:
                raise InputError(
                    f"{run.path} translates {theirs.direction}, and its tokeniser has "
                    f"a model for each side; begin {config.data.direction} with a run "
                    "of that direction"
                )
        elif given:
            tokenizer = load_given(config.data)
        elif not own.exists():
            return None
        else:
            tokenizer = self.read_tokenizer(record) if record else Tokenizer.load(own)
        if not config.training.init_from:
            require_usable(tokenizer, Path(given or own), config.data.vocab_size)
        require_symbols(tokenizer, config.data)
        if own.exists() and own.read_bytes() != tokenizer.content:
            raise InputError(
                f"{own} is another tokeniser than {given}; use another run folder"
            )
        return None if is_prepared else tokenizer


def _languages(data: DataConfig) -> tuple[set[str], set[str]]:
    parts = [part.data for part in data.parts.values()]
    sources = {base_language(part.source_language) for part in parts}
    return sources, {base_language(part.target_language) for part in parts}


def _require_safe(folder: Path) -> None:
    """Raise InputError for a path that checkpoints cannot have, and for links."""
    if found := _MISREAD.search(str(folder.absolute())):
        raise InputError(
            f"the path {folder.absolute()} has {found[0]!r}, which checkpoints cannot "
            "have; use another run folder"
        )
    own = [path for path in entries(folder) if _OWN.fullmatch(path.name)]
    for path in links_among(own):
        what = "a link" if path.is_symlink() else "a pipe or a device"
        raise InputError(
            f"{path} is {what}, which a run folder cannot have; move it away, or "
            "put the file itself there"
        )
    for path in [*own, *entries(folder / "checkpoints", "[0-9]*")]:
        if re.fullmatch(r"\d+|tensorboard", path.name) and path.is_file():
            raise InputError(f"{path} is a file, not a folder of the run; move it away")


def installed_versions() -> dict[str, str]:
    """Versions of the installed packages that decide a run's numbers."""
    versions = {}
    for name in ("jaxformer", *PACKAGES):
        with suppress(PackageNotFoundError):  # jaxformer in a checkout
            versions[name] = version(name)
    return versions
