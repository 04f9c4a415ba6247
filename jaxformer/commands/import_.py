"""--mode=import: a published model as a run that can be trained on and used.

Reads a Marian checkpoint of Hugging Face and writes a workdir whose checkpoint 0 holds
its parameters and a new optimiser. Only dropout, dtype and fused_attention of the
config's section `model` count; the checkpoint gives the rest. `--mode=train
--workdir=...` then prepares the text with the model's own tokeniser and trains on.
"""

import logging
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import build, require_sections, require_usable
from jaxformer.data.tokenizer import Tokenizer, pack_tokenizer
from jaxformer.errors import InputError
from jaxformer.export.marian_import import read_marian
from jaxformer.files import new_folder
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.loop import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import parameter_count
from jaxformer.training.step import fresh_state
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
    tokenizer = pack_tokenizer(
        checkpoint.source_model, checkpoint.target_model, checkpoint.pieces
    )
    training = build(TrainingConfig, config, "training")
    optimizer, _ = build(make_optimizer, config, "optimizer", d_model=model["d_model"])
    params = jax.tree.map(jnp.asarray, checkpoint.params)
    ema = training.ema_decay is not None
    state = fresh_state(params, optimizer, seed=training.seed, ema=ema)
    with new_folder(options.workdir) as folder:
        workdir = Workdir(folder)
        workdir.tokenizer_file.write_bytes(tokenizer)
        workdir.write_record(config, Tokenizer.load(workdir.tokenizer_file))
        with Checkpoints(workdir.checkpoints, keep=1, scores={}) as checkpoints:
            checkpoints.save(0, state)
    parameters = parameter_count(params)
    logger.info(
        "imported %s: %s, %s parameters, a vocabulary of %s pieces; train it with "
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
