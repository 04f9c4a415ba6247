"""--mode=train: prepare what is missing, then train or resume.

SIGTERM and Ctrl-C end it early, with the step saved.
"""

import logging
from pathlib import Path

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.run import keep_compiled, prepare_run
from jaxformer.trainer import Job, train_past_divergence

logger = logging.getLogger(__name__)


def run(*, config: ConfigRequest, workdir: Path) -> dict:
    """Train; returns the final validation scores and the speed.

    A run that was asked to stop returns its step and "stopped".
    """
    if not processes.are_several():
        # If only process 0 used the cache, it would skip compiling and time out while
        # the other processes compile.
        keep_compiled()
    own = prepare_run(workdir, config)
    with own as (this, prepared), processes.stop_requests() as stop:
        try:
            return train_past_divergence(Job(this, prepared, stop))
        except processes.StoppedError as stopped:
            logger.info("%s", stopped)
            return {"step": stopped.step, "stopped": True}
