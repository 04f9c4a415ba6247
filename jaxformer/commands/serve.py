"""jaxformer serve: translations over HTTP, and a page to try them."""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from jaxformer.commands.flags import read_address
from jaxformer.config.languages import language_name, matching_codes
from jaxformer.decoding.forced import LinksOf
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import Hypothesis, split_tag
from jaxformer.decoding.placeholders import Placeholders
from jaxformer.decoding.request_queue import RequestQueue
from jaxformer.documents.document import Document, placeholders_of
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.directions import directions_of
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tags
from jaxformer.system.errors import InputError, packages_of
from jaxformer.text.languages import most_probable
from jaxformer.text.lines import read_lines

EXAMPLES, EXAMPLE_LENGTH = 5, 100  # sentences of the page, and their characters


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    listen: str,
    host_names: str | None,
    origins: str | None,
    api_keys: Path | None,
    max_batch: int,
    max_queue: int,
    request_timeout: float,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Serve until asked to stop; return the numbers of requests and sentences."""
    with packages_of("serve"):
        from jaxformer.serving.app import Site
        from jaxformer.serving.batching import MAX_ATTENTION_PIECES, Limits
        from jaxformer.serving.keys import Keys, read_keys
        from jaxformer.serving.libretranslate import Languages
        from jaxformer.serving.server import Service
        from jaxformer.serving.server import listen as open_port
    host, port = read_address(listen)
    # Large requests fill half of the queue, which then holds four of these.
    limits = Limits(max_queue // 8, max_queue, request_timeout, request_timeout)
    names, pages = (_listed(each) for each in (host_names, origins))
    for name in names:
        if not re.fullmatch(r"[a-z0-9._-]+|\*", name):
            raise InputError(
                f"--host_names has {name!r}; write names as in URLs, in lower case and "
                "without port"
            )
    for page in pages:
        if not re.fullmatch(r"https?://[a-z0-9._:\[\]-]+|\*", page):
            raise InputError(
                f"--origins has {page!r}; write https://NAME, in lower case and "
                "without a path, or *"
            )
    keys = Keys(read_keys(api_keys)) if api_keys else None
    with closing(open_port(host, port)) as opened:
        whole = open_run(workdir, config, models.dtype)
        this = of_tags(whole, options)
        # Requests may ask for as many candidates as the beam is wide.
        n_best = options.resolve(this.config).beam_size
        found = options.resolve(this.config, n_best=n_best, split_sentences=True)
        translator = open_translator(this, models, found)
        requests = RequestQueue(
            translator, slots=max_batch, attention=MAX_ATTENTION_PIECES
        )
        data, only_tag = this.config.data, whole.config.data.only_tag
        # Only a run with one tag adds it to a text.
        tag_of = this.tokenizer.language_code if only_tag else lambda _: ""
        directions = directions_of(whole.config.data, requests.text.tags)
        site = Site(
            hosts={host.lower(), *names},
            origins=pages,
            keys=keys,
            languages=Languages(
                directions, language_name, most_probable, matching_codes
            ),
            markup=partial(_read_document, placeholders_of(this.tokenizer)),
            examples=examples_of(this.workdir.path, tag_of),
        )
        languages = data.source_language, data.target_language
        return Service(
            requests, opened, languages=languages, limits=limits, site=site
        ).run_until_stopped()


def _read_document(
    placeholders: Placeholders, links_of: LinksOf | None, markup: str, text: str
) -> tuple[list[str], Callable[[Sequence[Hypothesis]], tuple[str, list[str]]]]:
    document = Document(text, markup, placeholders)
    return document.texts, partial(document.write, links_of=links_of)


def _listed(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def examples_of(workdir: Path, tag_of: Callable[[str], str]) -> list[str]:
    """Return short sentences of the validation text; none for an imported run.

    `tag_of` returns the tag of a line or "", which the sentence lacks.
    """
    file = workdir / "corpus" / "dev.source.txt"
    lines = islice(read_lines(file), 1000) if file.is_file() else ()
    lines = (split_tag(line, tag_of)[1] for line in lines)
    short = (line for line in lines if line.strip() and len(line) <= EXAMPLE_LENGTH)
    return list(islice(dict.fromkeys(short), EXAMPLES))
