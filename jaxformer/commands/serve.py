"""--mode=serve: a run's translations over HTTP, and a page to try it."""

import atexit
import dataclasses
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import open_run, open_translator
from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError
from jaxformer.workdir import direction

ALONE = 8  # of the sentences to warm up with: as from one client, short to long


def run(options: Options) -> dict:
    """Serve until asked to stop; returns how much was answered.

    Raises InputError for several processes, of which each would need a port, if the
    packages are missing that serving needs, and for a port that cannot be had.
    """
    if processes.are_several():
        raise InputError(
            "--mode=serve is for one process; start one server a machine, each with "
            "--num_processes=1, behind a load balancer"
        )
    try:
        from jaxformer.serving.app import About, Limits
        from jaxformer.serving.server import Capacity, Service, listen
    except ModuleNotFoundError as error:
        raise InputError(
            f"--mode=serve needs {error.name}, which is not installed; "
            "pip install 'jaxformer[serve]', or -e '.[serve]' in a checkout"
        ) from error
    flags = options.serve
    if flags["max_sentences"] > flags["max_queue"]:
        raise InputError(
            f"--max_sentences={flags['max_sentences']} would never find room in "
            f"--max_queue={flags['max_queue']}; lower it, or let more wait"
        )
    with closing(listen(flags["host"], flags["port"])) as opened:
        this_run, translator = open_translator(_with_candidates(options))
        service = Service(
            translator,
            opened,
            about=About(
                direction=direction(this_run.config), n_best=translator.options.n_best
            ),
            limits=Limits(
                max_request_bytes=flags["max_request_bytes"],
                max_sentences=flags["max_sentences"],
                request_timeout=flags["request_timeout"],
            ),
            capacity=Capacity(
                max_batch=flags["max_batch"],
                max_queue=flags["max_queue"],
                shutdown_timeout=flags["shutdown_timeout"],
            ),
            warm_up=warm_up_groups(
                dev_sentences(this_run.workdir.path, flags["warm_up"])
            ),
        )
        code = 130
        try:
            result = service.run()
            code = 0
        finally:
            if not service.has_ended:
                # Python would take the interpreter from under the program that it runs.
                atexit.register(processes.end, code)
        return result


def _with_candidates(options: Options) -> Options:
    """Let requests ask for as many candidates as the beam is wide, if no flag says."""
    beam_size = open_run(options).config["decoding"]["beam_size"]
    search = {"n_best": beam_size, **options.search}
    return dataclasses.replace(options, search=search)


def dev_sentences(workdir: Path, most: int) -> list[str]:
    """Some sentences of a run's dev text; an imported run has none, and gets others."""
    file = workdir / "corpus" / "dev.source.txt"
    if file.is_file():
        return list(islice(read_lines(file), most))
    return [" ".join(map(str, range(n % 16))) for n in range(most)]


def warm_up_groups(sentences: Sequence[str]) -> list[list[str]]:
    """Some alone, from the shortest to the longest, then all at the same time."""
    by_length = sorted(sentences, key=len)
    places = {n * (len(sentences) - 1) // max(ALONE - 1, 1) for n in range(ALONE)}
    alone = [[by_length[place]] for place in sorted(places)] if sentences else []
    return [*alone, list(sentences)]
