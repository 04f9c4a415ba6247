"""The commands behind the figures of the documentation, for benchmarks/all.py.

{runs} and {data} are folders. Each command of a measurement can be repeated: trainings
resume, and finished ones end at once. Rows with several corpora, `fine_tuned_mixed` and
`six_directions`, read the folder data/ that their config names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxformer.configs import multi30k_architectures, multi30k_rows, tatoeba_rows

SEEDS = 1, 2, 3
PEERS = "--only='ours,PyTorch,PyTorch compiled,Flax port'"
TORCH = "--only='ours,PyTorch,PyTorch compiled'"
TEXT = "{data}/multi30k"
TEST = TEXT + "/test_2016_flickr"
SETS = {"captions": TEST, "everyday": "{data}/tatoeba_ende/test"}
SCALED = "d_model", "layers", "length", "vocabulary", "microbatch", "devices"
ORDERS = "base", "rotary_positions", "relative_positions"  # kinds of positions
PAIRS = [(a, b) for a in ("en", "de", "fr") for b in ("en", "de", "fr") if a != b]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Commands for `sh`, run in the root of the repository."""

    before: Sequence[str] = ()  # train and make text; what they print is not kept
    commands: Sequence[str]  # print the tables
    timed: bool = True  # the commands need a machine without other work

    @property
    def depends_on_code(self) -> bool:
        """Whether other code gives other figures; finished trainings do not change."""
        return self.timed or not self.before


def train(config: str, workdir: str, text: str = TEXT, flags: str = "") -> str:
    """The command that trains a config; no `text`, for that of the config."""
    config, _, seed = config.partition(" ")
    words = [f"jaxformer --config=configs/{config}"]
    words += [f"--config.training.seed={seed}"] if seed else []
    words += [f"--config.data.directory={text}"] if text else []
    return " ".join([*words, *filter(None, [flags]), f"--workdir={{runs}}/{workdir}"])


def evaluate(workdir: str, what: str, file: str = "test") -> str:
    """The command that scores a run and writes the scores to a file in its folder."""
    folder = f"{{runs}}/{workdir}"
    return f"jaxformer --mode=evaluate --workdir={folder} {what} > {folder}/{file}.json"


def evaluate_files(workdir: str, name: str) -> str:
    """The command that scores a run with a text of SETS."""
    text = SETS[name]
    return evaluate(workdir, f"--source={text}.en.gz --reference={text}.de.gz", name)


def rows(folder: str, flags: str) -> str:
    return f"python benchmarks/rows.py {{runs}}/{folder} {flags}".strip()


def by_length(runs: Sequence[str]) -> str:
    folders = ",".join(f"{{runs}}/{run}" for run in runs)
    return f"python benchmarks/lengths.py --text={TEXT} --runs={folders}"


def speed() -> dict[str, Measurement]:
    """What is timed without a trained model, and what is counted."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        flag = f"--dtype={dtype}"
        for model in ("base", "small"):
            command = f"train.py --model={model} {flag} {PEERS}"
            found[f"train_{model}_{dtype}"] = command
        found[f"decode_{dtype}"] = f"decode.py {flag}"
    found |= {
        "train_lstm": "train.py --model=lstm --only=ours,PyTorch --repeats=9",
        "train_convs2s": "train.py --model=convs2s --only=ours,PyTorch --repeats=9",
        "checkpoints": "checkpoints.py",
        "table1": "table1.py",
        "pipeline": "pipeline.py",
        "pipeline_sampling": "pipeline.py --subword_sampling=0.1",
        **{f"scaling_{each}": f"scaling.py --only={each}" for each in SCALED},
        "prepare": "prepare.py --text={data}/tatoeba_ende/train --join=4",
        "large_corpus": f"large_corpus.py --text={TEXT}/train",
        "faults": "faults.py --kills=30",
    }  # fmt: skip
    return {
        name: Measurement(
            commands=[f"python benchmarks/{command}"],
            timed=name not in ("scaling_devices", "faults"),
        )
        for name, command in found.items()
    }


def captions() -> dict[str, Measurement]:
    """What is timed with the model of configs/multi30k.py and its text."""
    workdir = "--workdir={runs}/multi30k"
    updates = f"train.py --model=small {workdir} {TORCH} --batches=2"
    decoding = f"decode.py {workdir} --text={TEST}.en.gz --reference={TEST}.de.gz"
    found = {
        "train_captions_float32": f"{updates} --repeats=25",
        "train_captions_bfloat16": f"{updates} --repeats=25 --dtype=bfloat16",
        "decode_captions_float32": f"{decoding} --dtype=float32",
        "decode_captions_bfloat16": f"{decoding} --dtype=bfloat16",
        "load": f"load.py {workdir} --sentences={TEST}.en.gz --large",
    }
    training = train("multi30k.py", "multi30k")
    text = f"{training} --mode=prepare"
    return {
        name: Measurement(
            before=[text if name.startswith("train_") else training],
            commands=[f"python benchmarks/{command}"],
        )
        for name, command in found.items()
    }


def startup() -> dict[str, Measurement]:
    """What is timed with the model of configs/demo.py."""
    command = "python benchmarks/startup.py --multi30k={data}/multi30k"
    return {
        "startup": Measurement(
            before=[train("demo.py", "demo", text="")],
            commands=[f"{command} --workdir={{runs}}/demo"],
        )
    }


def trained(before: Sequence[str], *commands: str) -> Measurement:
    return Measurement(before=before, commands=commands, timed=False)


def scores() -> dict[str, Measurement]:
    """Tables of BLEU, by row and seed."""
    architectures = [
        f"{row}_{seed}" for seed in SEEDS for row in multi30k_architectures.ROWS
    ]
    trainings = {
        run: train(
            f"multi30k_architectures.py:{run[:-2]} {run[-1]}", f"architectures/{run}"
        )
        for run in architectures
    }
    scored = [evaluate(f"architectures/{run}", "--split=test") for run in trainings]
    return {
        "claims": trained(
            [
                train(f"multi30k_rows.py:{row} {seed}", f"rows/{row}_{seed}")
                for seed in SEEDS
                for row in multi30k_rows.ROWS
            ],
            rows("rows", ""),
        ),
        "architectures": trained(
            [*trainings.values(), *scored],
            rows("architectures", "--base=transformer --scores=test.json"),
        ),
        "lengths": lengths(),
        "positions": positions(),
        "fine_tuning": fine_tuning(),
        "distillation": distillation(list(trainings.values())),
        "directions": directions(),
        "model_sizes": model_sizes(),
    }


def lengths() -> Measurement:
    longer = "--config.training.steps=4200 --config.data.max_length=128"
    longer += " --config.batches.row_length=128"
    kinds = dict.fromkeys(("lstm_fixed", "lstm_additive", "transformer"), longer)
    kinds["convs2s"] = f"{longer} --config.model.max_positions=160"
    text = "{runs}/joined"
    before = [f"python benchmarks/lengths.py --text={TEXT} --join={text}"]
    before += [
        train(f"multi30k_architectures.py:{row} 1", f"lengths/{row}", text, flags)
        for row, flags in kinds.items()
    ]
    return trained(before, by_length([f"lengths/{row}" for row in kinds]))


def positions() -> Measurement:
    text, flags = "{runs}/joined_2", "--config.training.steps=1500"
    runs = {f"positions/{row}_{seed}": (row, seed) for row in ORDERS for seed in SEEDS}
    before = [f"python benchmarks/lengths.py --text={TEXT} --join={text} --most=2"]
    before += [
        train(f"multi30k_rows.py:{row} {seed}", workdir, text, flags)
        for workdir, (row, seed) in runs.items()
    ]
    return trained(before, by_length(list(runs)))


def fine_tuning() -> Measurement:
    before = []
    for seed in SEEDS:
        first = f"--init_from={{runs}}/fine_tuning/everyday_{seed}"
        for row, text, flags in (
            ("everyday", "{data}/tatoeba_ende", ""),
            ("captions", TEXT, ""),
            ("fine_tuned", TEXT, first),
            ("fine_tuned_mixed", "", first),
        ):
            workdir = f"fine_tuning/{row}_{seed}"
            before.append(train(f"own_text_rows.py:{row} {seed}", workdir, text, flags))
            before += [evaluate_files(workdir, name) for name in SETS]
    flags = "--base=everyday --scores="
    return trained(
        before, *(rows("fine_tuning", f"{flags}{name}.json") for name in SETS)
    )


def model_sizes() -> Measurement:
    """Of three models by the number of pairs; base rows take days without a GPU."""
    script, text = "python benchmarks/model_sizes.py", "{runs}/tatoeba"
    before = [f"{script} --text={{data}}/tatoeba_ende --write={text}"]
    for seed in SEEDS:
        for row in tatoeba_rows.ROWS:
            workdir = f"model_sizes/{row}_{seed}"
            before.append(train(f"tatoeba_rows.py:{row} {seed}", workdir, text))
            before.append(evaluate(workdir, "--split=test"))
    flags = "--runs={runs}/model_sizes --output=docs/model_size.svg"
    return trained(before, f"{script} {flags}")


def distillation(teachers: Sequence[str]) -> Measurement:
    """Of a student and of one whose text an ensemble of `teachers` has translated."""
    first, *others = (f"{{runs}}/architectures/transformer_{seed}" for seed in SEEDS)
    made = "{runs}/distilled"
    before = [each for each in teachers if ":transformer " in each]
    before.append(
        f"jaxformer --mode=translate_corpus --workdir={first} "
        f"--ensemble={','.join(others)} --source={TEXT}/train.en.gz --output={made}"
    )
    splits = f"--config.data.dev={TEXT}/val --config.data.test={TEST}"
    for seed in SEEDS:
        for row, text, flags in (("student", TEXT, ""), ("distilled", made, splits)):
            workdir = f"distillation/{row}_{seed}"
            before.append(train(f"own_text_rows.py:{row} {seed}", workdir, text, flags))
            before.append(evaluate(workdir, "--split=test"))
    return trained(before, rows("distillation", "--base=student --scores=test.json"))


def directions() -> Measurement:
    """Of one model of six directions, and of six models of one direction each."""
    before = []
    for seed in SEEDS:
        six = f"directions/six_{seed}"
        before.append(train(f"own_text_rows.py:six_directions {seed}", six, ""))
        for a, b in PAIRS:
            alone = f"directions/{a}_{b}_{seed}"
            before.append(train(f"own_text_rows.py:{a}_{b} {seed}", alone))
            before.append(evaluate(six, f"--split={a}-{b}/test", f"{a}-{b}"))
            before.append(evaluate(alone, "--split=test", f"{a}-{b}"))
    flags = "--base=six --scores="
    return trained(
        before, *(rows("directions", f"{flags}{a}-{b}.json") for a, b in PAIRS)
    )


MEASUREMENTS = speed() | captions() | startup() | scores()
