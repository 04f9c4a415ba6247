"""--mode=serve: translations over HTTP, and a page to try them."""

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.data.text import read_lines
from jaxformer.errors import InputError
from jaxformer.run import open_run, open_translator


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    host: str,
    port: int,
    warm_up: int,
    **options: Any,
) -> dict:
    """Serve until asked to stop; return the numbers of requests and sentences."""
    if processes.are_several():
        raise InputError(
            "--mode=serve is for one process; start one server a machine, each with "
            "--num_processes=1, behind a load balancer"
        )
    try:
        from jaxformer.serving.server import Limits, Service, listen
    except ModuleNotFoundError as error:
        raise InputError(
            f"--mode=serve needs {error.name}, which is not installed; "
            "pip install 'jaxformer[serve]', or -e '.[serve]' in a checkout"
        ) from error
    limits = Limits(**{name: options.pop(name) for name in Limits._fields})
    if limits.max_sentences > limits.max_queue:
        raise InputError(
            f"--max_sentences={limits.max_sentences} exceeds "
            f"--max_queue={limits.max_queue}, so the largest request is never "
            "accepted; lower it"
        )
    with closing(listen(host, port)) as opened:
        # Requests may ask for as many candidates as the beam is wide.
        beam_size = open_run(workdir, config).config.decoding.beam_size
        n_best = options.get("beam_size", beam_size)
        options = {"n_best": n_best, "split_sentences": True, **options}
        this, translator = open_translator(workdir, config, **options)
        direction = this.config.data.direction
        groups = warm_up_groups(this.workdir.path, warm_up)
        settings = {"direction": direction, "limits": limits, "warm_up": groups}
        return Service(translator, opened, **settings).run_until_stopped()


def warm_up_groups(workdir: Path, count: int) -> list[list[str]]:
    """Return groups of dev sentences: a few alone, by length, then all together."""
    file = workdir / "corpus" / "dev.source.txt"
    if file.is_file():
        sentences = list(islice(read_lines(file), count))
    else:  # an imported run has no corpus
        sentences = [" ".join(map(str, range(n % 16))) for n in range(count)]
    by_length = sorted(sentences, key=len)
    few = [*by_length[: -1 : max(1, len(by_length) // 7)], *by_length[-1:]]
    return [*([sentence] for sentence in few), sentences]
