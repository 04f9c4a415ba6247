"""--mode=import: a published model becomes a run, which can be trained on and used.

Reads a Marian checkpoint of Hugging Face and writes a workdir whose checkpoint 0 holds
its parameters, with an optimiser that has seen nothing. Of the config's section `model`
only dropout, dtype and fused_attention count; the rest is the checkpoint's. The workdir
appears whole or not at all. `--mode=train --workdir=...` then prepares the text with
the model's own tokeniser and goes on from there.
"""

import logging
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import build, require_sections, require_usable
from jaxformer.data.tokenizer import Tokenizer, pack_tokenizer
from jaxformer.errors import InputError
from jaxformer.export.marian_import import MarianCheckpoint, read_marian
from jaxformer.models.sequence_model import parameter_count
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.loop import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import TrainState, fresh_state
from jaxformer.workdir import Workdir, direction

logger = logging.getLogger(__name__)


def run(options: Options) -> dict:
    """Import the checkpoint --input into the new --workdir; returns what it is."""
    if options.input is None:
        raise InputError("--input is missing; give the folder of a Marian checkpoint")
    if options.config is None:
        raise InputError(
            "--config is missing; it says on which text and how the imported model "
            "will be trained, for example --config=configs/parallel_text.py"
        )
    if processes.are_several():
        raise InputError(
            "--mode=import runs in one process; start it once, and then train in many"
        )
    require_sections(options.config)
    checkpoint = read_marian(Path(options.input))
    model = {**options.config["model"], **checkpoint.model}
    config = {**options.config, "model": model}
    require_usable(config)
    content = pack_tokenizer(
        checkpoint.source_model, checkpoint.target_model, checkpoint.pieces
    )
    write_workdir(options.workdir, config, content, new_state(config, checkpoint))
    parameters = parameter_count(checkpoint.params)
    logger.info(
        "imported %s: %s, %s parameters, a vocabulary of %s pieces; go on with "
        "--mode=train --workdir=%s",
        options.input,
        direction(config),
        f"{parameters:,}",
        f"{len(checkpoint.pieces):,}",
        options.workdir,
    )
    return {
        "step": 0,
        "parameters": parameters,
        "vocab_size": len(checkpoint.pieces),
        "direction": direction(config),
    }


def new_state(config: dict, checkpoint: MarianCheckpoint) -> TrainState:
    """The state from which training goes on, before its first update."""
    training = build(TrainingConfig, config, "training")
    optimizer, _ = build(
        make_optimizer, config, "optimizer", d_model=config["model"]["d_model"]
    )
    return fresh_state(
        jax.tree.map(jnp.asarray, checkpoint.params),
        optimizer,
        seed=training.seed,
        ema=training.ema_decay is not None,
    )


def write_workdir(
    path: Path, config: dict, tokenizer: bytes, state: TrainState
) -> None:
    """Write a run that has made no update, whole or not at all.

    Raises InputError if `path` is there already and not an empty folder, or if there is
    no place for it.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(
            f"--workdir={path} is not empty; import into a new one, or remove it"
        )
    partial = Workdir(path.with_name(f".{path.name}.{os.getpid()}.partial"))
    partial.create()
    try:
        partial.tokenizer_file.write_bytes(tokenizer)
        partial.write_record(config, Tokenizer.load(partial.tokenizer_file))
        with Checkpoints(partial.checkpoints, keep=1, scores={}) as checkpoints:
            checkpoints.save(0, state)
        os.replace(partial.path, path)
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)  # gone already if all is well
