"""jaxformer import: a published model as a run that can be trained on and used.

Reads a checkpoint of Hugging Face, of Marian (OPUS-MT), M2M-100 or NLLB-200, and writes
a workdir whose checkpoint 0 holds its parameters and a new optimiser. Only dropout,
dtype and fused_attention of the config's section `model` count; the checkpoint gives
the rest. `jaxformer train RUN` then prepares the text with the model's own tokeniser
and trains on.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.exports.m2m100 import tag_of_language
from jaxformer.exports.reading import read_checkpoint
from jaxformer.models.sequence_model import parameter_count
from jaxformer.runs.config_files import ConfigRequest, parse_config
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import new_folder
from jaxformer.text.given_tokenizer import require_symbols
from jaxformer.text.tokenizer import Tokenizer, pack_tokenizer
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import fresh_state

logger = logging.getLogger(__name__)


def run(*, config: ConfigRequest, workdir: Path, input: Path | None) -> dict:
    """Import the checkpoint `input` into the new `workdir`."""
    if input is None:
        raise InputError("--input is missing; give the folder of a checkpoint")
    if config.values is None:
        raise InputError(
            "--config is missing; it says on which text and how the imported model "
            "is trained, for example --config=configs/parallel_text.py"
        )
    logger.info("importing %s", input)
    checkpoint = read_checkpoint(input)
    values = config.resolve(None)
    is_shared = len(checkpoint.vocabularies) == 1
    data = {**values.get("data", {}), "shared_vocabulary": is_shared}
    model = {**values.get("model", {}), **checkpoint.model}
    given = {**values, "data": data, "model": model}
    parse_config(given)  # refuses corpora that have no languages to look up
    imported = parse_config({**given, "data": data | _tags(data, checkpoint.tags)})
    if imported.data.tokenizer:
        raise InputError(
            f"leave out data.tokenizer={imported.data.tokenizer}: the checkpoint has "
            "its own tokeniser"
        )
    training = imported.training
    sizes = {"d_model": imported.model.d_model, "steps": training.steps}
    optimizer, _ = make_optimizer(imported.optimizer, **sizes)
    params = jax.tree.map(jnp.asarray, checkpoint.params)
    state = fresh_state(params, optimizer, training)
    models = [Tokenizer.load(file).source_model for file in checkpoint.models]
    others = {file.name: file.read_bytes() for file in checkpoint.files}
    tokenizer = pack_tokenizer(*models, *checkpoint.vocabularies, others=others)
    require_symbols(Tokenizer(tokenizer), imported.data)
    with new_folder(workdir) as folder:
        made = Workdir(folder)
        made.tokenizer_file.write_bytes(tokenizer)
        kept = Tokenizer.load(made.tokenizer_file)
        record = made.write_record(imported, kept, imported=input.resolve().name)
        with made.open_checkpoints(record, keep=1) as checkpoints:
            checkpoints.save(0, state)
    size, vocab_size = parameter_count(params), len(checkpoint.vocabularies[-1])
    sizes = f"{size:,} parameters, a vocabulary of {vocab_size:,} pieces"
    train = f"train it with jaxformer train {workdir}"
    direction = imported.data.direction
    logger.info("imported %s: %s, %s; %s", input, direction, sizes, train)
    found = {"step": 0, "parameters": size, "vocab_size": vocab_size}
    return {**found, "direction": direction}


def _tags(data: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    """Return the tags of a corpus's languages, where a model has any and none is given.

    If there are several corpora, return them with their tags. Raises InputError for a
    language that the model lacks.
    """
    if not tags:
        return {}
    if data.get("corpora"):
        shared = {**data, "corpora": ()}
        each = ({**own, **_tags({**shared, **own}, tags)} for own in data["corpora"])
        return {"corpora": tuple(each)}
    sides = {"tag": "source_language", "target_tag": "target_language"}
    return {
        key: data.get(key) or tag_of_language(tags, str(data[side]), f"data.{side}")
        for key, side in sides.items()
    }
