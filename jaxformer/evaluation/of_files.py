"""Score files of any system's translations under every scorer."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.config.languages import require_language
from jaxformer.decoding.options import CometModel
from jaxformer.evaluation.comet_scores import Comet, mean_comet
from jaxformer.evaluation.evaluator import ROW, Evaluation
from jaxformer.evaluation.metrics import corpus_scores, every_bleu, other_metrics
from jaxformer.evaluation.significance import compare_systems
from jaxformer.system.errors import InputError, counted
from jaxformer.system.files import file_name
from jaxformer.text.lines import COMPRESSED, read_lines

logger = logging.getLogger(__name__)


def evaluate_files(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    source: Path | None,
    languages: Mapping[str, str | None],
    comet: CometModel | None,
) -> dict[str, Any]:
    """Score files of translations; test each further file against the first one.

    A .tsv has a reference in each column; COMET reads the first reference. `languages`
    has source_language and target_language. Logs and returns scores, those of further
    files under "compared". Raises InputError for a missing flag or files that differ.
    """
    target = languages["target_language"]
    needed = {"--reference": references, "--target_language": target}
    missing = [flag for flag, value in needed.items() if not value]
    missing += ["--source for COMET"] if comet and not source else []
    if missing:
        raise InputError(f"--hypotheses needs {' and '.join(missing)}")
    languages = {name: code or "und" for name, code in languages.items()}
    for name, code in languages.items():
        require_language(code, f"--{name}")
    read = read_files([*hypotheses, *references, *([source] if source else [])])
    expected = [each for path in references for each in split_columns(path, read[path])]
    others, metric = other_metrics(target), comet and Comet(*comet)

    def score(path: Path) -> dict[str, Any]:
        sides = read[path], *expected
        scores = corpus_scores(*sides, **languages)._asdict()
        bleus = every_bleu(*sides, target_language=target)
        done = Evaluation(read[path], scores, bleus)
        logger.info("%s: %s", path, done)
        found = {**done.reported(), "other_scores": [], "sentences": len(read[path])}
        for name, other in others.items():
            value = other.corpus_score(read[path], expected).score
            signature = str(other.get_signature())
            row = {"scorer": name, "score": value, "signature": signature}
            logger.info("%s", ROW.format(*row.values()))
            found["other_scores"].append(row)
        return found | mean_comet(metric, read.get(source, []), *sides[:2])

    first, *further = map(score, hypotheses)
    systems, compared = [read[path] for path in hypotheses], []
    tests = further and compare_systems(systems, *expected, target_language=target)
    for path, scores, test in zip(hypotheses[1:], further, tests, strict=True):
        for name, each in test.items():
            logger.info(
                "%s less %s: %s %+.2f, p %.4f (%s)", path, hypotheses[0], name, *each
            )
        tested = {name: each._asdict() for name, each in test.items()}
        compared.append({"name": str(path), "scores": scores, "test": tested})
    return first | {"compared": compared}


def read_files(paths: Sequence[Path]) -> dict[Path, list[str]]:
    """Read parallel files. Raises InputError for a blank file or unequal lengths."""
    read = {path: [*read_lines(path)] for path in paths}
    (first, lines), *_ = read.items()
    for path, found in read.items():
        if len(found) != len(lines):
            raise InputError(
                f"{file_name(first)} has {counted(len(lines), 'line')} but "
                f"{file_name(path)} has {len(found):,}; line N of both must belong to "
                "the same sentence"
            )
        if not any(map(str.strip, found)):
            raise InputError(f"{file_name(path)} has only blank lines; give its text")
    return read


def split_columns(path: Path, lines: list[str]) -> list[list[str]]:
    """Split a .tsv, plain or compressed, into columns; another file is one column."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    if name.suffix != ".tsv":
        return [lines]
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{file_name(path)}, line {number}: {counted(len(row), 'column')} and "
                f"not {len(rows[0])} as line 1; give each line as many references"
            )
    return [*map(list, zip(*rows, strict=True))]
