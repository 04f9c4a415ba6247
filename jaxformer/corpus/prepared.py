"""Open a prepared workdir: tokeniser, training pairs and validation texts.

    workdir/tokenizer.model     the vocabulary
    workdir/corpus/train/       cleaned training pairs (`jaxformer.corpus.store`), one
                                corpus after the other
    workdir/corpus/dev/         every dev pair, in order
    workdir/corpus/dev.source.txt, dev.target.txt   the same as text, for BLEU
    workdir/corpus/dev.NAME/, ...                   those of all corpora but the first
    workdir/corpus/report.json  counts of kept and dropped pairs, the settings they were
                                prepared with, and hashes of the text and the tokenizer
    workdir/corpus/XXH128SUMS   checksums of all these files, verified at each opening;
                                the ids of more than 1 GiB when they are first read

`jaxformer.corpus.preparation` writes it. Only training pairs are cleaned, since scores
must not depend on cleaning.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.corpus.store import IDS, TokenizedCorpus, names_of, open_corpus
from jaxformer.system.errors import InputError
from jaxformer.system.files import Verifier, checksummed, verify_checksums
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.text.lines import read_lines
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import SIDES

VERIFIED_AT_ONCE = 2**30  # bytes of ids


class DevSet(NamedTuple):
    """A validation text: its pairs in tokens, and its sentences."""

    pairs: TokenizedCorpus
    source: list[str]
    target: list[str]


class PreparedCorpus(NamedTuple):
    """The tokenizer, the training pairs and the validation texts of a workdir."""

    tokenizer: Tokenizer
    train: TokenizedCorpus
    dev: dict[str, DevSet]  # by the name of the corpus
    report: dict[str, Any]  # CorpusReport of "train" and of dev sets as dicts, and more
    later_versions: tuple[TokenizedCorpus, ...] = ()  # of data.versions: 1, 2, ...

    @property
    def versions(self) -> tuple[TokenizedCorpus, ...]:
        """The training pairs by version, of which epoch e reads number e mod K."""
        return self.train, *self.later_versions

    def counts(self, corpus: str, split: str) -> dict[str, Any]:
        """The CorpusReport of the split "train" or "dev" of a corpus."""
        if split == "train":
            return self.report["corpora"][corpus]
        return self.report[self.report["dev_sets"][corpus]]

    def lengths(self, corpus: str, split: str) -> list[np.ndarray]:
        """Tokens of each source and of each target, EOS included, int32 [n] each."""
        if split == "dev":
            return [side.lengths for side in self.dev[corpus].pairs]
        part = slice(*self.bounds()[corpus])
        return [side.lengths[part] for side in self.train]

    def tokens(self) -> list[int]:
        """Tokens of the training sources and targets of all versions."""
        sides = zip(*self.versions, strict=True)
        return [sum(int(each.offsets[-1]) for each in side) for side in sides]

    def sizes(self) -> dict[str, int]:
        """The training pairs of each corpus."""
        return {name: each["kept"] for name, each in self.report["corpora"].items()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """The first pair of each corpus in `train`, and the end of its pairs."""
        edges = pairwise([0, *np.cumsum([*self.sizes().values()]).tolist()])
        return dict(zip(self.report["corpora"], edges, strict=True))


def open_prepared(
    workdir: Path, mirror: Mirror = LOCAL, *, trained_text: str | None = None
) -> PreparedCorpus:
    """Open a prepared workdir; InputError if it is damaged or of another tokenizer.

    It is refused, too, if its text is not `trained_text`, the hash of the text of the
    checkpoints. Files that only the `mirror` of the workdir has are downloaded, those
    of ids when they are first read.
    """
    corpus = workdir / "corpus"
    if not corpus.exists():
        raise InputError(f"{workdir} holds no prepared corpus; run jaxformer prepare")
    mirror.pull(corpus, leave_out=IDS)
    ids = [corpus / name for name in checksummed(corpus) if IDS.fullmatch(name)]
    if not mirror.is_remote:  # else what no batch has needed is missing
        ids = [path for path in ids if path.exists()]
    is_large = mirror.is_remote or (
        sum(path.stat().st_size for path in ids) > VERIFIED_AT_ONCE
    )
    damage = verify_checksums(corpus, leave_out=ids if is_large else ())
    if damage:
        raise InputError(
            f"{corpus} is damaged: {damage}; put a copy back, or delete it "
            "and prepare the text again"
        )
    report = json.loads((corpus / "report.json").read_text())
    if trained_text not in (None, report["text"]):
        raise InputError(
            f"{corpus} has another text than the checkpoints of {workdir}; put the "
            "corpus back that they were trained with, or use another run folder"
        )
    verifier = Verifier(corpus) if is_large else None
    names = names_of(report.get("versions", 1))
    train, *later = (
        open_corpus(corpus / "train", both, verifier=verifier, mirror=mirror)
        for both in zip(names[::2], names[1::2], strict=True)
    )
    tokenizer = Tokenizer.load(workdir / "tokenizer.model", report["tokenizer"])
    dev = {}
    for name, folder in report["dev_sets"].items():
        texts = [list(read_lines(corpus / f"{folder}.{side}.txt")) for side in SIDES]
        dev[name] = DevSet(open_corpus(corpus / folder), *texts)
    return PreparedCorpus(tokenizer, train, dev, report, tuple(later))
