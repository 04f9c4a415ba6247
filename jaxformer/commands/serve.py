"""--mode=serve: a run's translations over HTTP, and a page to try it."""

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.commands.evaluate import folders
from jaxformer.config_files import ConfigRequest
from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError
from jaxformer.run import open_run, open_translator


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    checkpoint: str | None,
    ensemble: str,
    host: str,
    port: int,
    warm_up: int,
    max_request_bytes: int,
    max_sentences: int,
    max_batch: int,
    max_queue: int,
    request_timeout: float,
    shutdown_timeout: float,
    **options: Any,
) -> dict:
    """Serve until asked to stop; returns how much was answered.

    Raises InputError for several processes, missing packages, and bad limits or ports.
    """
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
    if max_sentences > max_queue:
        raise InputError(
            f"--max_sentences={max_sentences} exceeds --max_queue={max_queue}, so the "
            "largest request is never accepted; lower it"
        )
    limits = Limits(
        max_request_bytes=max_request_bytes,
        max_sentences=max_sentences,
        max_batch=max_batch,
        max_queue=max_queue,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
    )
    with closing(listen(host, port)) as opened:
        # Requests may ask for as many candidates as the beam is wide.
        beam_size = open_run(workdir, config).config.decoding.beam_size
        options = {"n_best": options.get("beam_size", beam_size), **options}
        this, translator = open_translator(
            workdir,
            config,
            checkpoint=checkpoint,
            ensemble=folders(ensemble),
            **options,
        )
        service = Service(
            translator,
            opened,
            direction=this.config.data.direction,
            limits=limits,
            warm_up=warm_up_groups(this.workdir.path, warm_up),
        )
        return service.run_until_stopped()


def warm_up_groups(workdir: Path, count: int) -> list[list[str]]:
    """Groups of dev sentences: a few alone, shortest to longest, then all together."""
    file = workdir / "corpus" / "dev.source.txt"
    if file.is_file():
        sentences = list(islice(read_lines(file), count))
    else:  # an imported run
        sentences = [" ".join(map(str, range(n % 16))) for n in range(count)]
    by_length = sorted(sentences, key=len)
    few = [*by_length[: -1 : max(1, len(by_length) // 7)], *by_length[-1:]]
    return [*([sentence] for sentence in few), sentences]
