"""What several processes must have in common before they train one run.

Devices whose processes differ in a config value would update their parts of the
parameters differently, without a word.
"""

import uuid

from jaxformer.config.sections import Config
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.runs.workdir import Workdir, installed_versions
from jaxformer.system import processes
from jaxformer.system.errors import InputError


def require_one_folder(folder: Workdir) -> None:
    """Raise InputError in all processes if one does not see the folder of process 0.

    Each process has its own copy of a folder in an object store.
    """
    if not processes.are_several():
        return
    path, urls = folder.path, processes.gather(folder.url)
    for number, url in enumerate(urls):
        if url != urls[0]:
            raise InputError(
                f"process {number} has the run folder {url or path}, and process 0 has "
                f"{urls[0] or path}; give all processes one run folder"
            )
    if urls[0]:
        return
    mark = path / f".{processes.from_first(uuid.uuid4().hex)}"
    with processes.sharing_mistakes():
        if processes.is_first():
            mark.touch()
    is_seen = processes.gather(mark.exists())
    if processes.is_first():
        mark.unlink()
    if not all(is_seen):
        raise InputError(
            f"process {is_seen.index(False)} has another folder {path} than process 0; "
            "give all processes one run folder, on a file system that they share"
        )


def require_one_run(config: Config, prepared: PreparedCorpus) -> None:
    """Raise InputError in all processes if one differs from process 0.

    Compares the versions of packages, the text, the tokeniser and the config, except
    how batches are read ahead and where text and tokeniser lie.
    """
    data, sections = config.data, config.as_dict()
    del sections["data"], sections["batches"]["executor"]
    weights = {name: [*part.weights.items()] for name, part in data.parts.items()}
    sections["data"] = {
        **data.prepared_by(),
        "temperature": data.temperature,
        "max_length": data.max_length,
        "corpora.weight": weights,
    }
    own = {
        "versions": installed_versions(),
        "text": prepared.report["text"],
        "tokenizer": prepared.tokenizer.hash,
    }
    own |= {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in values.items()
    }
    first, *others = processes.gather(own)
    for number, other in enumerate(others, start=1):
        for name, value in first.items():
            theirs = other.get(name)  # another version may lack a key
            if theirs != value:
                raise InputError(
                    f"process {number} has {name}={theirs!r}, and process 0 has "
                    f"{value!r}; give all processes the same config and versions"
                )
