"""Who may know whom: imports go downwards, and each library has one door.

Read from the source of every module, imports inside functions included. Then a process
without TensorFlow takes a train step and a beam search.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = ("jaxformer", "configs")

# Each room, from the ground up: the modules it is made of (the longest prefix counts,
# "jaxformer." left out) and the rooms below that it may know, besides itself.
ROOMS = {
    "contract": (  # what everybody shares knows nobody
        ("batch", "config", "errors", "files", "settings"),
        (),
    ),
    "published": (("published",), ("contract",)),  # what others printed
    "processes": (("processes", "lost_peers"), ("contract",)),
    "configs": (("configs",), ("contract",)),  # values; table3 refuses unknown rows
    "models": (("models",), ("contract",)),
    "optimizer": (("training.optimizer",), ("contract",)),  # equation 3, section 5.3
    "update": (  # section 5 as pure functions of a model and a batch
        tuple(
            f"training.{name}"
            for name in ("divergence", "loss", "sharding", "step")
        ),
        ("contract", "models"),
    ),
    "training": (  # the loop, its checkpoints and its log; it is handed its batches
        ("training",),
        ("contract", "processes", "update"),
    ),
    "data": (("data",), ("contract", "processes")),
    "decoding": (("decoding",), ("contract", "processes", "models")),
    "evaluation": (  # translations and references to scores
        ("evaluation",),
        ("contract", "processes", "models", "update", "data", "decoding"),
    ),
    "inspection": (("inspection",), ("contract", "data")),  # what a corpus holds
    "export": (("export",), ("contract", "models", "training", "decoding")),
    # HTTP around a translator, which it is handed
    "serving": (("serving",), ("contract", "decoding")),
    "reports": (  # pages and pictures; they are handed what a run has found
        ("reports",),
        ("contract", "published", "data", "decoding", "evaluation"),
    ),
    "workdir": (("workdir",), ("contract", "data")),  # it opens the run's tokeniser
    "config files": (("config_files",), ("contract", "models")),
    "run": (  # the one way into a workdir
        ("run", "trainer", "estimates"),
        (
            "contract", "processes", "models", "optimizer", "update", "training",
            "data", "decoding", "evaluation", "workdir", "config files",
        ),
    ),
    "commands": (  # assembles all of them
        ("commands",),
        (
            "contract", "processes", "models", "optimizer", "update", "training",
            "data", "decoding", "evaluation", "inspection", "export", "serving",
            "reports", "workdir",
            "published", "config files", "run",
        ),
    ),
    "command line": (
        ("main", "cli", "flags", "__main__"),
        ("contract", "processes", "published", "decoding", "config files", "commands"),
    ),
    "api": (  # the same from Python
        ("api",),
        ("contract", "decoding", "reports", "command line", "run"),
    ),
}  # fmt: skip

# A library, and the only modules that may import it.
DOORS = {
    "tensorflow": ("jaxformer.data",),
    "tensorflow_datasets": ("jaxformer.data",),
    "orbax": ("jaxformer.training.storage",),
    "sentencepiece": ("jaxformer.data.tokenizer",),
    "sacrebleu": ("jaxformer.evaluation.metrics", "jaxformer.evaluation.significance"),
    "sacremoses": ("jaxformer.evaluation.moses",),
    "py3langid": ("jaxformer.inspection.languages",),
    "altair": ("jaxformer.reports",),
    "jinja2": ("jaxformer.reports.page",),
    "vl_convert": ("jaxformer.reports.page",),
    "ctranslate2": ("jaxformer.export.ctranslate2",),
    "safetensors": ("jaxformer.export.marian", "jaxformer.export.marian_import"),
    "starlette": ("jaxformer.serving.app",),
    "uvicorn": ("jaxformer.serving.server",),
    "prometheus_client": ("jaxformer.serving.metrics",),
    "optax": ("jaxformer.training.optimizer", "jaxformer.training.step"),
    "tqdm": ("jaxformer.training.log",),
    "tensorboardX": ("jaxformer.training.log",),
    "ml_collections": ("jaxformer.configs",),
    # Linen is for modules and for the names of their axes.
    "flax": ("jaxformer.models", "jaxformer.training.sharding"),
}


class Import(NamedTuple):
    """One imported module, and where it is imported."""

    module: str
    name: str  # what is imported
    line: int
    inside_function: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "configs":  # jaxformer/configs is a link to it
        parts = ("jaxformer", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8"))
    for root in ROOTS
    for path in sorted((ROOT / root).rglob("*.py"))
}


def imports_of(module: str) -> list[Import]:
    found = []

    def visit(node: ast.AST, inside_function: bool) -> None:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is a relative import"
            names = [  # `from package import module` names a module, too
                whole if whole in SOURCES else node.module
                for whole in (f"{node.module}.{alias.name}" for alias in node.names)
            ]
        found.extend(
            Import(module, name, node.lineno, inside_function)
            for name in dict.fromkeys(names)
        )
        inside_function |= isinstance(node, ast.FunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, inside_function)

    visit(SOURCES[module], False)
    return found


IMPORTS = [imported for module in SOURCES for imported in imports_of(module)]


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room_of(module: str) -> str | None:
    """The room of a module; None for the package itself."""
    matches = {
        part: room
        for room, (parts, _) in ROOMS.items()
        for part in parts
        if is_within(module.removeprefix("jaxformer."), part)
    }
    return matches[max(matches, key=len)] if matches else None


def own(imports: list[Import]) -> list[Import]:
    return [each for each in imports if is_within(each.name, "jaxformer")]


def test_the_table_itself_goes_only_downwards():
    below = set()
    for room, (_, may_know) in ROOMS.items():
        assert below.issuperset(may_know), room
        below.add(room)


def test_every_module_belongs_to_a_room():
    rooms = {module: room_of(module) for module in SOURCES.keys() - {"jaxformer"}}
    assert [module for module, room in rooms.items() if room is None] == []
    assert set(rooms.values()) >= ROOMS.keys()


def test_imports_go_only_downwards():
    upwards = []
    for each in own(IMPORTS):
        if each.module == "jaxformer":  # the front door, to what is public
            assert each.name == "jaxformer.api"
            continue
        if each.name == "jaxformer":  # its version
            continue
        here, there = room_of(each.module), room_of(each.name)
        if here is None or (there != here and there not in ROOMS[here][1]):
            upwards.append(str(each))
    assert upwards == []


def test_no_two_modules_import_each_other():
    graph = {}
    for each in own(IMPORTS):
        graph.setdefault(each.module, set()).add(each.name)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_the_search_sees_a_step_function_and_never_a_model():
    own_parts = {f"jaxformer.decoding.{name}" for name in ("candidates", "options")}
    for module in ("jaxformer.decoding.search", *own_parts):
        names = {each.name for each in own(imports_of(module))}
        assert {room_of(name) for name in names - own_parts} == {"contract"}


MAY_NAME_ARCHITECTURES = ("jaxformer.models", "jaxformer.export", "jaxformer.configs")


def names_in_code(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers and strings of a module with their lines; docstrings are left out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    }
    for node in set(ast.walk(tree)) - docstrings:
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            if isinstance(name := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), name


def test_only_models_exports_and_configs_name_an_architecture():
    """By an import, an identifier or a string; all others ask the model."""
    named = [
        f"{module}:{line} {name}"
        for module, tree in SOURCES.items()
        if not any(is_within(module, room) for room in MAY_NAME_ARCHITECTURES)
        for line, name in names_in_code(tree)
        if "transformer" in name.lower()
    ]
    assert named == []


def test_the_loop_takes_its_batches_and_never_builds_them():
    names = {each.name for each in own(imports_of("jaxformer.training.loop"))}
    assert "jaxformer.batch" in names
    assert {room_of(name) for name in names} == {"contract", "update", "training"}


@pytest.mark.parametrize("library", DOORS)
def test_each_library_has_one_door(library):
    users = [each for each in IMPORTS if is_within(each.name, library)]
    assert users != []
    elsewhere = [
        str(each)
        for each in users
        if not any(is_within(each.module, door) for door in DOORS[library])
    ]
    assert elsewhere == []


def test_tensorflow_is_imported_only_when_it_is_used():
    at_once = [
        str(each)
        for each in IMPORTS
        if each.name.startswith("tensorflow") and not each.inside_function
    ]
    assert at_once == []


def test_of_flax_only_linen_is_used():
    assert {each.name for each in IMPORTS if is_within(each.name, "flax")} == {"flax"}
    names = {
        alias.name
        for tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "flax"
        for alias in node.names
    }
    assert names == {"linen"}


WITHOUT_TENSORFLOW = """
import sys

for library in ("tensorflow", "tensorflow_datasets", "ml_collections"):
    sys.modules[library] = None  # importing it raises ImportError

import jax.numpy as jnp
import numpy as np

import jaxformer.commands.train  # all that training needs, down to its data
import jaxformer.commands.translate
from jaxformer.batch import EOS, Batch
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.models.architectures import config_type, make_model
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import born_sharded, make_mesh, on_mesh
from jaxformer.training.step import TrainStep, init_state

config = config_type("transformer")(
    architecture="transformer", encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8,
    num_heads=2, d_k=4, d_v=4, dropout=0.1, positions="sinusoidal", max_positions=16,
    norm_first=False, dtype="float32", attention_bias=False, activation="relu",
    logits_bias=False, layer_norm_epsilon=1e-6, attention_window=None,
    fused_attention=False,
)
model = make_model(config, vocab_size=16, rematerialise=False)
optimizer, _ = make_optimizer(
    d_model=8, warmup_steps=10, learning_rate_scale=1.0, beta1=0.9, beta2=0.98,
    epsilon=1e-9, clip_norm=None,
)
ids = jnp.array([[5, 6, EOS], [7, EOS, 0]])
segments = (ids != 0).astype(jnp.int32)
mesh = make_mesh(data=-1, fsdp=1, tensor=1)
with on_mesh(mesh):
    state = born_sharded(
        mesh, lambda: init_state(model, optimizer, seed=0, ema=False)
    )
    step = TrainStep(
        model, optimizer, label_smoothing=0.1, ema_decay=None, max_bad_steps=1
    )
    state, (sums, _) = step(state, (Batch(ids, ids, segments, segments),))
    found = search_translations(
        [model], [state.params], ids, options=SearchOptions(beam_size=2, alpha=0.6),
        extra_length=2,
    )
assert int(state.step) == 1 and int(sums.tokens) == 5 and np.isfinite(sums.loss)
assert (np.asarray(found.lengths)[:, 0] > 0).all()
print("trained and searched")
"""


@pytest.mark.slow
def test_training_and_search_run_where_tensorflow_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        cwd=ROOT,
        env={  # one device, and a compiler in a hurry
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("trained and searched\n", 0), done.stderr
