"""Imports go down only and have no effect, and each library has few doors.

Imports inside functions count. A process without TensorFlow trains and searches.
"""

import ast
import copy
import graphlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import checked, measures

ROOT = Path(__file__).parents[1]

# Each room, from the ground up: its modules ("jaxformer." left out; the longest prefix
# counts) and the rooms below that it may import, besides itself.
ROOMS = {
    "system": ("system", ""),  # knows nothing of translation
    "processes": (
        "system.allocator system.first system.lost_peers system.processes "
        "system.progress system.stopping",
        "system",
    ),
    "contract": ("batch tokens", "system"),  # between rooms
    "config": ("config", "system contract"),
    "configs": ("configs", "system"),
    "remote": ("remote", "system"),
    "grammar": ("grammar", "system"),
    "models": ("models", "system contract config"),  # protocols and layers
    "transformer": ("models.transformer", "system contract config models"),
    "recurrent": ("models.recurrent", "system contract config models"),
    "convolutional": ("models.convolutional", "system contract config models"),
    "hybrid": (
        "models.hybrid",
        "system contract config models transformer recurrent convolutional",
    ),
    "architectures": (
        "models.architectures",
        "system config models transformer recurrent convolutional hybrid",
    ),
    "text": ("text", "system processes contract config remote grammar"),
    "corpus": ("corpus", "system processes contract config remote text"),
    "optimizer": ("training.optimizer", "config models"),  # equation 3, section 5.3
    "update": (  # pure functions of a model and a batch
        "training.divergence training.frozen training.loss training.loss_kernel "
        "training.reinforce "
        "training.sharded_optimizer training.sharding training.step "
        "training.update_kernels",
        "system contract config models",
    ),
    "training": (  # it is handed its batches
        "training", "system processes contract config models optimizer update",
    ),
    "decoding": ("decoding", "system processes contract config models"),
    "evaluation": (
        "evaluation",
        "system processes contract config models text corpus update decoding",
    ),
    "inspection": ("inspection", "system contract config text corpus"),
    "exports": (
        "exports",
        "system contract config text models transformer architectures decoding",
    ),
    "documents": ("documents", "system contract decoding"),  # text with markup
    "serving": ("serving", "system decoding"),
    "reports": ("reports", "system config corpus decoding evaluation"),
    "runs": (
        "runs",
        "system processes contract config remote grammar models architectures text "
        "corpus optimizer update training decoding evaluation",
    ),
    "accelerators": (
        "accelerators",
        "system contract config models architectures update training decoding runs",
    ),
    "commands": (
        "commands",
        "system processes config models architectures text corpus optimizer update "
        "training decoding evaluation inspection exports documents serving "
        "reports runs accelerators",
    ),
    "main": ("main __main__", "system processes remote commands"),
    "api": ("api", "system processes decoding documents reports runs commands"),
}  # fmt: skip

# A library, and the only modules that may import it.
DOORS = {
    "tensorflow": "corpus.pipeline text.tfds",
    "apache_beam": "corpus.beam",
    "tensorflow_datasets": "text.tfds",
    "orbax": "training.checkpoint_files",
    "filelock": "system.files remote.copy",
    "fsspec": "remote.object_store",
    "sentencepiece": "text.tokenizer text.vocabulary text.word_sampler",
    "sacrebleu": "evaluation",
    "sacremoses": "evaluation.metrics",
    "comet": "evaluation.comet_process",
    "py3langid": "text.languages",
    "sentencex": "decoding.parts",
    "langcodes": "config.languages",
    "altair": "reports",
    "jinja2": "reports.page",
    "polib": "documents.lines",
    "vl_convert": "reports.page",
    "ctranslate2": "exports.ctranslate2 decoding.ctranslate2_search",
    "huggingface_hub": "exports.model_card",
    "safetensors": "exports.huggingface exports.m2m100 exports.marian",
    "yaml": "exports.marian_npz",
    "starlette": "serving.app",
    "uvicorn": "serving.server",
    "h11": "serving.server",
    "prometheus_client": "serving",
    "optax": "training.optimizer training.step",
    "tqdm": "system.progress",
    "tensorboardX": "training.tensorboard_log",
    "wandb": "training.wandb_log",
    "xxhash": "remote.copy remote.object_store system.files "
    "text.duplicates text.text_hash",
    "ml_collections": "configs",
    "jaxtyping": "models decoding",
    "flax": "models training.frozen training.average_cache training.optimizer "
    "training.sharding training.sharded_optimizer exports.parameters",
}


class Import(NamedTuple):
    """One imported module, and where it is imported."""

    module: str
    name: str  # what is imported
    line: int
    inside_function: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "configs":  # jaxformer/configs is a link to it
        parts = ("jaxformer", *parts)
    return ".".join(parts).removesuffix(".__init__")


SOURCES = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8"))
    for root in ("jaxformer", "configs")
    for path in sorted((ROOT / root).rglob("*.py"))
}


def imports_of(module: str) -> list[Import]:
    nodes = list(ast.walk(SOURCES[module]))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    found = []
    for node in nodes:
        names = set()
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"  # which may name a module
                names.add(whole if whole in SOURCES else node.module)
        found += [Import(module, name, node.lineno, node in inside) for name in names]
    return found


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


IMPORTS = [imported for module in SOURCES for imported in imports_of(module)]
OWN = [each for each in IMPORTS if is_within(each.name, "jaxformer")]


def room_of(module: str) -> str | None:
    """The room of a module; None for the package itself."""
    name = module.removeprefix("jaxformer.")
    rooms = {part: room for room, (parts, _) in ROOMS.items() for part in parts.split()}
    matches = [part for part in rooms if is_within(name, part)]
    return rooms[max(matches, key=len)] if matches else None


def imported_by(module: str) -> set[str]:
    return {each.name for each in OWN if each.module == module}


def test_the_table_has_every_module_and_goes_only_downwards():
    below = set()
    for room, (_, imported) in ROOMS.items():
        assert below.issuperset(imported.split()), room
        below.add(room)
    assert {room_of(module) for module in SOURCES.keys() - {"jaxformer"}} == {*ROOMS}


# What `tests.measures` counts, at most. Who needs more moves a number and says why.
BUDGETS = {
    "loose files at the top": 8,
    "their lines": 900,
    "rooms": 24,
    "arrows between rooms": 124,
    "lines of the package": 34_750,
    "lines of tests": 33_210,
    "lines of benchmarks": 4_470,
    "lines of docs": 3_350,
    "files that know of object stores": 4,
    "files that know of ranks": 10,
    "annotations with Any": 6,
    "config keys": 123,
    "flags": 65,
    "lines of the first evening": 1_930,
}


def test_the_house_is_no_larger_than_its_budgets():
    found = measures.static()
    assert found.keys() == BUDGETS.keys()
    assert {k: v for k, v in found.items() if v > BUDGETS[k]} == {}


def test_imports_go_only_downwards():
    for each in OWN:
        if each.module == "jaxformer":  # the public names
            assert each.name == "jaxformer.api"
        elif each.name != "jaxformer":  # its version
            here = room_of(each.module)
            assert room_of(each.name) in (here, *ROOMS[here][1].split()), each


def test_few_modules_know_of_object_stores():
    """Run folders, text and Beam's shared folder; `main` for the names in messages."""
    users = {each.module for each in OWN if room_of(each.name) == "remote"}
    assert {module for module in users if room_of(module) != "remote"} == {
        "jaxformer.corpus.shared_folder", "jaxformer.main", "jaxformer.runs.workdir",
        "jaxformer.text.locations",
    }  # fmt: skip


def test_folders_are_listed_by_functions_that_raise():
    """`glob` and `walk` skip what cannot be listed: a run would seem new."""
    lists = re.compile(r"\.[ir]?glob\(|\bwalk\(")
    files = (ROOT / "jaxformer").rglob("*.py")
    found = {file.name for file in files if lists.search(file.read_text())}
    assert found == {"allocator.py"}  # device files


def test_the_grammar_is_imported_only_where_a_config_asks_for_it():
    users = [each for each in OWN if room_of(each.name) == "grammar"]
    users = [each for each in users if room_of(each.module) != "grammar"]
    assert {each.module for each in users if each.inside_function} == {
        "jaxformer.runs.validation", "jaxformer.text.sources",
    }  # fmt: skip
    assert all(each.inside_function for each in users)


def test_no_two_modules_import_each_other():
    graph = {module: imported_by(module) for module in SOURCES}
    del graph["jaxformer"]  # which imports its names on first use
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_the_search_sees_a_step_function_and_never_a_model():
    modules, rooms = ["jaxformer.decoding.search"], set()
    protocol = {"jaxformer.models.sequence_model"}  # the arguments of a step
    for module in modules:
        names = imported_by(module) - protocol
        rooms |= {room_of(name) for name in names}
        modules += [name for name in names - {*modules} if room_of(name) == "decoding"]
    assert rooms == {"system", "contract", "config", "decoding"}


def code_of(module: str) -> str:
    """The code of a module without comments and docstrings, in lower case."""
    tree = copy.deepcopy(SOURCES[module])
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.unparse(tree).lower()


def test_only_models_exports_and_configs_name_an_architecture():
    """By an import, an identifier or a string; all others ask the model."""
    names = "transformer|recurrent|convolutional"
    named = {module for module in SOURCES if re.search(names, code_of(module))}
    assert {room_of(module) for module in named} == {
        "transformer", "recurrent", "convolutional", "hybrid", "architectures",
        "exports", "configs",
    }  # fmt: skip


def test_the_loop_takes_its_batches_and_never_builds_them():
    names = imported_by("jaxformer.training.loop")
    assert "jaxformer.batch" in names
    rooms = {room_of(name) for name in names}
    assert rooms == {"contract", "config", "update", "training"}


def test_arrays_of_models_and_of_the_search_have_shapes():
    """Annotations name dtypes and axes, which `tests.checked` checks."""
    shaped = r"\b(bool|float(32)?|u?int(32)?|key|shaped|pytree)\[array\b|^from .*"
    for module in SOURCES:
        if any(is_within(module, each) for each in checked.MODULES):
            code = re.sub(shaped, "", code_of(module), flags=re.M)
            assert not re.search(r"\b(array|any)\b(?!\()", code), module


@pytest.mark.parametrize("library", DOORS)
def test_each_library_has_few_doors(library):
    users = [each for each in IMPORTS if is_within(each.name, library)]
    assert users != []
    doors = [f"jaxformer.{door}" for door in DOORS[library].split()]
    for each in users:
        assert any(is_within(each.module, door) for door in doors), each
        assert each.inside_function or not library.startswith("tensorflow"), each


def test_of_flax_only_linen_and_nested_names_are_used():
    sources = [path.read_text("utf-8") for path in (ROOT / "jaxformer").rglob("*.py")]
    imports = re.findall(r"(?:from|import) flax.*", "\n".join(sources))
    assert {*imports} == {
        "from flax import linen as nn",
        "from flax.traverse_util import flatten_dict, unflatten_dict",
    }


# In processes of their own ------------------------------------------------------------


def run(program: str, *arguments: str, **environment: str) -> str:
    """Run Python code in a process; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True,
        text=True, env=environment or None,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WITHOUT_TENSORFLOW = """
import sys

for library in ("tensorflow", "tensorflow_datasets", "ml_collections"):
    sys.modules[library] = None  # importing it raises ImportError
import pytest
import jaxformer.commands.train
import jaxformer.commands.translate

chosen = ["-k", "convolutional and (device or samples)"]
quiet = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
tests = ["tests/models/test_architectures.py", *chosen, *quiet]
sys.exit(pytest.main(tests))
"""


@pytest.mark.slow
def test_training_and_search_run_where_tensorflow_is_not_installed():
    run(WITHOUT_TENSORFLOW)


WITHOUT_EFFECT = """
import importlib, logging, os, signal, sys, threading

import jax


def effects():
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdout, sys.stderr),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.Signals],
        "jax": dict(jax.config.values),
        "loggers": {
            name: (logger.level, logger.filters[:], logger.handlers[:])
            for name, logger in loggers.items()
            if isinstance(logger, logging.Logger)
            and (logger.level or logger.filters or logger.handlers)
        },
    }


libraries, modules = (names.split() for names in sys.argv[1:])
for name in libraries:  # may have effects of their own
    importlib.import_module(name)
before = effects()
for name in modules:
    importlib.import_module(name)
after = effects()
for name in before:
    assert after[name] == before[name], (name, before[name], after[name])
"""


@pytest.mark.slow
def test_importing_any_module_changes_nothing_of_the_process():
    """Hooks, streams, environment, signals, JAX's config and loggers stay the same."""
    outside = {*IMPORTS} - {*OWN}
    names = {each.name for each in outside if not each.inside_function}
    here = {name for name in names if find_spec(name.partition(".")[0])}  # by Python
    assert names - here <= {"backports", "compression"}
    libraries = " ".join(here)
    modules = " ".join(sorted(SOURCES.keys() - {"jaxformer.__main__"}))
    where = {"JAX_PLATFORMS": "cpu", "PATH": "", "HOME": str(ROOT)}
    run(WITHOUT_EFFECT, libraries, modules, **where)
