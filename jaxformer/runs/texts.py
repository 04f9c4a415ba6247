"""Choose the text that a command translates or scores, and the corpus it belongs to."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxformer.config.data import DataConfig
from jaxformer.decoding.options import TranslateRequest
from jaxformer.decoding.parts import tagged
from jaxformer.runs.run import Run
from jaxformer.system.errors import InputError, did_you_mean
from jaxformer.system.files import require_output
from jaxformer.text.lines import COMPRESSED
from jaxformer.text.sources import Text, read_parallel, read_parts, read_split
from jaxformer.tokens import AnyTokenizer


def of_corpus(run: Run, name: str) -> Run:
    """Return the run restricted to one corpus. Raises InputError for another name."""
    parts = run.config.data.parts
    if name not in parts:
        names = ", ".join(filter(None, parts)) or "one without a name"
        hint = did_you_mean(name, parts, f"it has {names}")
        raise InputError(f"data.corpora has no corpus {name}{hint}")
    data = parts[name].data
    config = dataclasses.replace(run.config, data=data)
    tokenizer = run.tokenizer.for_target(data.target_tag)
    return run._replace(config=config, tokenizer=tokenizer)


def of_split(run: Run, split: str) -> Run:
    """Return the run restricted to corpus NAME of NAME/SPLIT, else to the first."""
    return of_corpus(run, _name(run, split))


def of_tags(run: Run, options: TranslateRequest) -> Run:
    """Return the run restricted to the first corpus with the tags of `options`.

    Without a corpus of both, `tag` alone counts. It stays whole without tags, and if
    corpora with the one tag differ in the other or in their languages.
    """
    if not (options.tag or options.target_tag):
        return run
    parts = run.config.data.parts
    among = [*parts]
    if options.tag:
        among = [name for name in parts if parts[name].data.tag == options.tag]
    among = _with_target(run, among, options.target_tag) or among
    kinds = {
        (data.tag, data.target_tag, data.source_language, data.target_language)
        for data in (parts[name].data for name in among)
    }
    return of_corpus(run, among[0]) if len(kinds) == 1 else run


def _with_target(run: Run, names: Sequence[str], target_tag: str) -> list[str]:
    """Those of the corpora `names` that have the target tag; all if it is ""."""
    parts = run.config.data.parts
    return [name for name in names if target_tag in ("", parts[name].data.target_tag)]


def require_own_tags(data: DataConfig, options: TranslateRequest, what: str) -> None:
    """Raise InputError if the text `what` has other tags than the options give."""
    sides = {"tag": "sources", "target_tag": "targets"}
    for name, side in sides.items():
        given, own = getattr(options, name), getattr(data, name)
        if given and own not in ("", given):
            hint = "leave it out"
            if data.of_corpus:
                hint += " or choose its corpus by --split=NAME/SPLIT"
            raise InputError(
                f"--{name}={given} does not fit {what}, whose {side} have {own}; {hint}"
            )


def require_one_target(run: Run, what: str) -> None:
    """Raise InputError if the corpora of a run have several target tags."""
    tags = {part.data.target_tag for part in run.config.data.parts.values()}
    if len(tags) > 1:
        raise InputError(
            f"the run translates to {', '.join(sorted(filter(None, tags)))}, and {what}"
        )


def require_one_direction(
    corpora: Sequence[DataConfig], source: Path, kind: str
) -> None:
    """Raise InputError if the corpora that the text `source` fits have several."""
    directions = list(dict.fromkeys(data.direction for data in corpora))
    if len(directions) > 1:
        raise InputError(
            f"{source} may be text of {', '.join(directions)}; choose a corpus by "
            f"--split=NAME/{kind}"
        )


def files_of_split(run: Run, split: str) -> list[Path]:
    """List the files of a split; none if one is missing."""
    kind = split.rpartition("/")[2]
    try:
        parts = read_parts(of_split(run, split).config.data, kind)
    except InputError:  # the run's folder has a copy of its validation text
        return []
    return [file for part in parts for file in part.files]


def _name(run: Run, split: str) -> str:
    name, slash, _ = split.rpartition("/")
    return name if slash else next(iter(run.config.data.parts))


def read_text(
    run: Run,
    source: Path | None,
    reference: Path | None,
    split: str,
    options: TranslateRequest,
    *,
    is_scored: bool = True,
) -> tuple[Run, Text]:
    """Read sentences and references of two files, or of a split of the run's data.

    Sources without a tag get that of the options; without it, those of a file get that
    of corpus NAME, if `split` is NAME/SPLIT, or of all corpora. Also returns the run
    restricted to the corpus NAME, or else to the first one without a tag, if a source
    has none, or with a tag of the sources; among these to one with the target tag of
    the options.

    Raises InputError if only one file is given, if their lines do not match, for a tag
    that the vocabulary lacks, for tags that are not those of the split or of NAME, and
    for a line of a file without a tag if the corpora have several. Also if they have
    several target tags and none is chosen, or none is the one of the options, or if
    they have several directions; text that is not scored may have any.
    """
    if (source is None) != (reference is None):
        raise InputError("--source and --reference go together: give both, or neither")
    _, slash, kind = split.rpartition("/")
    this, parts, tag = of_split(run, split), run.config.data.parts, options.tag
    if source is None or slash:
        require_own_tags(this.config.data, options, f"--split={split}")
    if source is None:
        texts = run.workdir.open_corpus(run.record).dev if kind == "dev" else {}
        if dev := texts.get(_name(run, split)):
            text = Text(dev.source, dev.target)
        else:
            text = Text(*read_split(this.config.data, kind))
        return this, text._replace(sources=with_tag(run.tokenizer, text.sources, tag))
    sources, references = zip(*read_parallel(source, reference), strict=True)
    tag = tag or (this if slash else run).config.data.only_tag
    text = Text(with_tag(run.tokenizer, sources, tag), [*references])
    if slash:
        return this, text
    used = {
        run.tokenizer.language_code(each)
        for each in map(str.strip, text.sources)
        if each
    }
    tags = {name: part.data.tag for name, part in parts.items()}
    if "" in used and all(tags.values()):
        known = ", ".join(dict.fromkeys(tags.values()))
        raise InputError(
            f"{source} has lines without a tag, and the corpora of the run have "
            f"{known}; give one by --tag, or a corpus by --split=NAME/{kind}"
        )
    if not is_scored:
        return run, text
    among = used & {""} or used  # a corpus's tag would go before lines without one
    names = [name for name in tags if tags[name] in among] or [*tags][:1]
    chosen = _with_target(run, names, options.target_tag)
    if not chosen:
        known = ", ".join(dict.fromkeys(parts[n].data.target_tag for n in names))
        raise InputError(
            f"the run's corpora translate to {known or 'targets without a tag'}, so a "
            f"text of --target_tag={options.target_tag} has no scores; use a run with "
            "a corpus of that language"
        )
    if len({parts[name].data.target_tag for name in chosen}) > 1:
        how = f"choose a corpus by --split=NAME/{kind}"
        require_one_target(run, f"{source} does not say to which; {how}")
    require_one_direction([parts[name].data for name in chosen], source, kind)
    return of_corpus(run, chosen[0]), text


def require_text_output(output: Path | None, read: Sequence[Path | None]) -> None:
    """Raise InputError unless a text can be written to `output`, and is not in `read`.

    None is no output, and no file that is read.
    """
    require_output(output)
    if output is not None and output.suffix in COMPRESSED:
        raise InputError(f"--output={output} would be plain text; choose another name")
    is_there = output is not None and output.exists()
    for path in filter(None, read if is_there else ()):
        if path.exists() and output.samefile(path):
            raise InputError(
                f"--output={output} is a file of the text that is read; choose another "
                "name"
            )


def with_tag(tokenizer: AnyTokenizer, sentences: Sequence[str], tag: str) -> list[str]:
    """Begin sentences that have no tag with `tag`, if it is not "".

    Raises InputError if it is not in the vocabulary.
    """
    if tokenizer.language_code(tag) != tag:
        raise InputError(f"the vocabulary has no tag {tag!r}")
    return [tagged(each, tag, tokenizer.language_code) for each in sentences]
