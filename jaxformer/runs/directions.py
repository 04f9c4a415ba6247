"""The directions that a run translates, for clients that name two languages."""

import itertools
from collections.abc import Iterable, Sequence

from jaxformer.config.data import DataConfig
from jaxformer.config.languages import language_and_script
from jaxformer.decoding.text_pipeline import Direction


def directions_of(
    data: DataConfig, tags: Sequence[str]
) -> dict[str, dict[str, Direction]]:
    """Return each direction of a run by the codes of source and target, such as "en".

    A trained run has those of its corpora. An imported model has those of all languages
    among `tags`, the pieces of its vocabulary.
    """
    own = {*data.tags, *data.target_tags}
    tags = [tag for tag in tags if tag not in data.user_defined_symbols]
    codes = {tag: tag[2:-2] for tag in tags}
    found: dict[tuple[str, str], Direction] = {}
    if data.target_tags and not own.issuperset(tags):  # M2M-100, NLLB-200
        for source, target in itertools.permutations(tags, 2):
            direction = Direction(codes[source], source, target)
            found[codes[source], codes[target]] = direction
    elif tags and not own:  # Marian's, whose tags are those of targets
        source = data.source_language
        found = {(source, codes[tag]): Direction(source, tag, "") for tag in tags}
    else:
        parts = [part.data for part in data.parts.values()]
        # First the corpora without a tag: a tag may mark synthetic text.
        for each in sorted(parts, key=lambda each: bool(each.tag)):
            direction = Direction(each.source_language, each.tag, each.target_tag)
            languages = each.source_language, each.target_language
            found.setdefault(languages, direction)
    sources, targets = (_short(side) for side in zip(*found, strict=True))
    named: dict[str, dict[str, Direction]] = {}
    for (source, target), direction in found.items():
        named.setdefault(sources[source], {})[targets[target]] = direction
    return named


def _short(languages: Iterable[str]) -> dict[str, str]:
    """Give each language the shortest code that no other one has.

    A code without a script, such as "zh", stands for the usual script, if a language
    among them has it. One that is such a code keeps it.
    """
    kinds = {name: language_and_script(name) for name in languages}
    found: dict[str, str] = {}
    for name in sorted(kinds, key=lambda name: name != kinds[name][0]):
        base, script = own = kinds[name]
        usual = language_and_script(base)
        is_only = [*kinds.values()].count(own) == 1
        codes = [base] if own == usual or usual not in kinds.values() else []
        codes += [f"{base}-{script}"] if is_only else []
        codes += [name.replace("_", "-")]
        taken = {*found.values()}
        found[name] = next((code for code in codes if code not in taken), codes[-1])
    return found
