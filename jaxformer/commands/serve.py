"""--mode=serve: a run's translations over HTTP, and a page to try it."""

import atexit
import dataclasses
from contextlib import closing
from itertools import islice
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import open_run, open_translator
from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError
from jaxformer.workdir import direction


def run(options: Options) -> dict:
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
    flags, names = options.serve, [field.name for field in dataclasses.fields(Limits)]
    limits = Limits(**{name: flags[name] for name in names})
    if limits.max_sentences > limits.max_queue:
        raise InputError(
            f"--max_sentences={limits.max_sentences} exceeds --max_queue="
            f"{limits.max_queue}, so the largest request is never accepted; lower it"
        )
    with closing(listen(flags["host"], flags["port"])) as opened:
        # Requests may ask for as many candidates as the beam is wide.
        beam_size = open_run(options).config["decoding"]["beam_size"]
        search = {"n_best": beam_size, **options.search}
        options = dataclasses.replace(options, search=search)
        opened_run, translator = open_translator(options)
        service = Service(
            translator,
            opened,
            direction=direction(opened_run.config),
            limits=limits,
            warm_up=warm_up_groups(opened_run.workdir.path, flags["warm_up"]),
        )
        try:
            return service.run_until_stopped()
        finally:
            if service.batcher.is_alive():
                # A usual exit would crash in the compiled program that still runs.
                atexit.register(processes.end, 130 if service.force_exit else 0)


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
