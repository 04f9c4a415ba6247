"""jaxformer train: prepare what is missing, then train or resume.

SIGTERM and Ctrl-C end it early, with the step saved.
"""

import logging
import shlex
import sys
from pathlib import Path

import jax

from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.job import Job
from jaxformer.runs.run import keep_compiled, prepare_run
from jaxformer.runs.trainer import train_past_divergence
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import StoppedError
from jaxformer.system.stopping import stop_requests
from jaxformer.training.sharding import make_mesh

logger = logging.getLogger(__name__)


def run(*, config: ConfigRequest, workdir: Path) -> dict:
    """Train; returns the final validation scores and the speed.

    A run that was asked to stop returns its step and "stopped".
    """
    # A program that a CPU is given in advance already holds its temporary memory: the
    # heap then grows to three times that of one program.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_compiled(in_training=True)
    folder = Workdir(workdir)
    try:
        with stop_requests() as stop:
            stop.all_saved = True  # until the first update is made
            make_mesh(**vars(folder.resolve(config, folder.recorded()).mesh))
            with prepare_run(workdir, config) as (this, prepared):
                result = train_past_divergence(Job(this, prepared, stop))
        given = shlex.join(sys.orig_argv[:3])  # such as "python -m jaxformer.main"
        program = given if " -m jaxformer" in given else "jaxformer"
        command = f"translate {shlex.quote(str(workdir))}"
        logger.info("finished; to translate:\n  %s %s", program, command)
        return result
    except StoppedError:
        checkpoints = folder.open_checkpoints(folder.recorded())
    saved = reversed(checkpoints.steps())
    step = next(filter(checkpoints.is_intact, saved), 0)
    logger.info(
        f"stopped at step {step:,}, which is saved; the same command resumes from there"
        if step
        else "stopped before the first update; the same command starts again"
    )
    return {"step": step, "stopped": True}
