"""jaxformer serve: translations over HTTP, and a page to try them."""

import re
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

from jaxformer.commands.flags import read_address
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import split_tag
from jaxformer.decoding.request_queue import RequestQueue
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tags
from jaxformer.system.errors import InputError, packages_of
from jaxformer.text.lines import read_lines

EXAMPLES, EXAMPLE_LENGTH = 5, 100  # sentences of the page, and their characters


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    listen: str,
    host_names: str | None,
    max_batch: int,
    max_queue: int,
    request_timeout: float,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Serve until asked to stop; return the numbers of requests and sentences."""
    with packages_of("serve"):
        from jaxformer.serving.batching import MAX_ATTENTION_PIECES, Limits
        from jaxformer.serving.server import Service
        from jaxformer.serving.server import listen as open_port
    host, port = read_address(listen)
    # Large requests fill half of the queue, which then holds four of these.
    limits = Limits(max_queue // 8, max_queue, request_timeout, request_timeout)
    names = [name.strip() for name in (host_names or "").split(",") if name.strip()]
    for name in names:
        if not re.fullmatch(r"[a-z0-9._-]+|\*", name):
            raise InputError(
                f"--host_names has {name!r}; write names as in URLs, in lower case and "
                "without port"
            )
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
        return Service(
            requests,
            opened,
            languages=(data.source_language, data.target_language),
            limits=limits,
            hosts={host.lower(), *names},
            examples=examples_of(this.workdir.path, tag_of),
        ).run_until_stopped()


def examples_of(workdir: Path, tag_of: Callable[[str], str]) -> list[str]:
    """Return short sentences of the validation text; none for an imported run.

    `tag_of` returns the tag of a line or "", which the sentence lacks.
    """
    file = workdir / "corpus" / "dev.source.txt"
    lines = islice(read_lines(file), 1000) if file.is_file() else ()
    lines = (split_tag(line, tag_of)[1] for line in lines)
    short = (line for line in lines if line.strip() and len(line) <= EXAMPLE_LENGTH)
    return list(islice(dict.fromkeys(short), EXAMPLES))
