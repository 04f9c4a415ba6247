"""How many target tokens a second the input pipeline makes ready.

    python benchmarks/pipeline.py [--quick] [--repeats=5] [--step_rate=TOKENS_A_SECOND]
        [--source='corpus/*.en.gz' --target='corpus/*.de.gz']

Plan, gather, pad, batches in host memory, of real text: that of the files given, else
the built-in corpus. For both layouts, small and large microbatches and both executors:
one process on one core, one process on two cores, and one process on each of two cores,
each with microbatches of its own. They take turns, after one turn that is not counted.
Beside them, what a train step of the Multi30k model consumes on this CPU (measured
unless given), and how long an epoch takes to plan. Figures for 16 cores are
extrapolated, and say so. The last line is the same as JSON.
"""

import argparse
import glob
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.harness import figures, has, machine, print_table, take_turns
from benchmarks.readers import ROW_LENGTH, Work, plan_of, reader, turn
from configs import demo, multi30k
from jaxformer.batch import Batch
from jaxformer.commands.runs import Run, make_learner, make_model
from jaxformer.data.corpus import prepare
from jaxformer.data.pipeline import updates
from jaxformer.data.sources import CorpusConfig, read_lines
from jaxformer.data.store import TokenizedCorpus
from jaxformer.training.sharding import born_sharded, on_mesh, put_batch
from jaxformer.workdir import Workdir

REPEATS, QUICK_REPEATS = 5, 1
LAYOUTS = "packed", "buckets"
EXECUTORS = "tf.data", "python"
SIZES = 2048, 25_000  # places a side of a microbatch: of Multi30k, and of the paper
MANY_CORES = 16  # what the figures are extrapolated to
GOAL_TIMES_STEP, GOAL_RATE = 20, 1e6  # times what a step consumes; target tokens/s
STEPS = 4  # train steps timed


# What is measured ---------------------------------------------------------------------


def rates(folder: Path, options: argparse.Namespace) -> dict[str, dict]:
    """Target tokens a second of every contestant, by layout and size."""
    cores = sorted(os.sched_getaffinity(0))
    executors = options.executors.split(",")
    if "tf.data" in executors and not has("tensorflow"):
        executors.remove("tf.data")
    found: dict[str, dict] = {}
    with ExitStack() as stack:
        first = stack.enter_context(reader(folder, {cores[0]}))
        teams = {"1 process, 1 core": [first]}
        if len(cores) > 1:
            second = stack.enter_context(reader(folder, {cores[1]}))
            both = stack.enter_context(reader(folder, set(cores[:2])))
            teams["1 process, 2 cores"] = [both]
            teams["2 processes, 2 cores"] = [first, second]
        everybody = list(dict.fromkeys(itertools.chain(*teams.values())))
        for executor in executors:  # TensorFlow takes its time to start
            turn(everybody, Work(LAYOUTS[0], SIZES[0], executor, 1))()
        for layout, tokens in itertools.product(LAYOUTS, SIZES):
            turns = {
                f"{executor}, {team}": turn(
                    members, Work(layout, tokens, executor, options.microbatches)
                )
                for executor in executors
                for team, members in teams.items()
            }
            amounts = {name: each() for name, each in turns.items()}  # not counted
            rounds = take_turns(turns, options.repeats)
            beside = f"{executors[-1]}, 1 process, 1 core"
            found[f"{layout}, {tokens:,}"] = {
                name: figures(rounds, name, amounts[name], beside=beside)
                for name in turns
            }
    return found


def planning(corpus: TokenizedCorpus, options: argparse.Namespace) -> dict[str, dict]:
    """Seconds to plan a run, once, and to put an epoch in order, of many pairs."""
    found = {}
    for layout in LAYOUTS:
        work = Work(layout, SIZES[-1], "python", 0)
        rounds: dict[str, list[float]] = {"run": [], "epoch": []}
        for number in range(options.repeats):
            start = time.perf_counter()
            plan = plan_of(corpus, work, options.plan_pairs)
            planned = time.perf_counter()
            plan.epoch(seed=0, epoch=number)
            rounds["run"].append(planned - start)
            rounds["epoch"].append(time.perf_counter() - planned)
        found[layout] = {"pairs": options.plan_pairs} | {
            f"{name}_seconds": statistics.median(each) for name, each in rounds.items()
        }
    return found


def step_rate(corpus: TokenizedCorpus, vocab_size: int) -> float:
    """Target tokens a second that train steps of the Multi30k model consume."""
    work = Work("packed", SIZES[0], "python", 0)
    config = multi30k.get_config().to_dict()
    size = {"tokens_per_microbatch": work.tokens, "tokens_per_update": work.tokens}
    config["training"] |= size
    model = make_model(config, vocab_size)
    learner = make_learner(Run(Workdir(Path()), config, None, model))
    batches = updates(
        corpus, plan_of(corpus, work), seed=0, start=0, executor=work.executor
    )

    def next_update() -> tuple[Batch, ...]:
        return tuple(put_batch(learner.mesh, batch) for batch in next(batches))

    seconds = []
    with on_mesh(learner.mesh):
        state = born_sharded(learner.mesh, learner.init)
        for _ in range(STEPS + 1):  # the first one compiles
            update = next_update()
            start = time.perf_counter()
            state, report = learner.train_step(state, update)
            tokens = float(report.sums.tokens)
            seconds.append((time.perf_counter() - start) / tokens)
    batches.close()
    return 1 / statistics.median(seconds[1:])


# The text, and the report -------------------------------------------------------------


def corpus_config(options: argparse.Namespace, folder: Path) -> dict:
    """The section `data`: the files given, or the built-in text of the demo."""
    config = demo.get_config().data.to_dict()
    if options.source:
        config |= {
            "corpus": "files", "train_source": options.source,
            "train_target": options.target, "test_source": "", "test_target": "",
        }  # fmt: skip
        for side in ("source", "target"):  # a dev text there must be: the first line
            file = min(glob.glob(getattr(options, side)))
            line = next(iter(read_lines(Path(file))))
            config[f"dev_{side}"] = str(folder / f"dev.{side}")
            (folder / f"dev.{side}").write_text(f"{line}\n")
    config |= {"vocab_size": options.vocabulary, "max_length": ROW_LENGTH}
    if options.quick and not options.source:
        config |= {"builtin_pairs": 10_000, "builtin_eval_pairs": 2}
    return config


def goals(outcome: dict) -> dict[str, float | bool]:
    """How the slowest of the contestants stand to what was aimed at.

    The rate of many cores is that of two processes, times half as many: an
    extrapolation, which takes for granted that memory keeps up.
    """

    def slowest(team: str) -> float | None:
        return min(
            (
                each["per_second"]
                for found in outcome["rates"].values()
                for name, each in found.items()
                if team in name
            ),
            default=None,
        )

    alone, pair = slowest("1 process, 1 core"), slowest("2 processes")
    times_step = alone / outcome["step_rate"]
    many = MANY_CORES / 2 * pair if pair else None
    return {
        "least_times_step": times_step,
        "extrapolated_cores": MANY_CORES,
        "extrapolated_least_per_second": many,
        "met": times_step >= GOAL_TIMES_STEP and (many or alone) >= GOAL_RATE,
    }


def report(outcome: dict) -> None:
    """Print the tables."""
    consumed, rows = outcome["step_rate"], []
    for label, found in outcome["rates"].items():
        for name, each in found.items():
            rows.append(
                f"| {label} | {name} | {each['per_second'] / 1e6:.2f} "
                f"| {100 * each['spread']:.0f} % | {each['ratio']:.2f} "
                f"({each['ratio_least']:.2f} - {each['ratio_most']:.2f}) "
                f"| {each['per_second'] / consumed:,.0f} |"
            )
    header = (
        "layout, places a microbatch", "who", "million target tokens/s", "spread",
        "times python, 1 process, 1 core", f"times a step of {consumed:,.0f} tokens/s",
    )  # fmt: skip
    print_table(header, rows)
    rows = [
        f"| {layout} | {each['pairs']:,} | {each['run_seconds']:.2f} "
        f"| {each['epoch_seconds']:.2f} |"
        for layout, each in outcome["planning"].items()
    ]
    header = "layout", "pairs", "s to plan a run, once", "s to put an epoch in order"
    print_table(header, rows)
    found, many = outcome["goals"], outcome["goals"]["extrapolated_least_per_second"]
    print(
        f"the slowest on one core makes {found['least_times_step']:,.0f} times what a "
        f"train step consumes; aimed at: {GOAL_TIMES_STEP}"
    )
    if many is not None:
        print(
            f"the slowest of two processes, times {MANY_CORES // 2}: {many / 1e6:.1f} "
            f"million tokens/s on {MANY_CORES} cores (extrapolated, not measured); "
            f"aimed at: {GOAL_RATE / 1e6:.0f}"
        )


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, little text")
    parser.add_argument("--repeats", type=int, help=f"rounds, by default {REPEATS}")
    parser.add_argument("--source", help="a path or glob of source sentences")
    parser.add_argument("--target", help="their translations, line by line")
    parser.add_argument("--step_rate", type=float, help="target tokens/s of training")
    parser.add_argument("--vocabulary", type=int, help="pieces, by default 8000 or 500")
    parser.add_argument("--microbatches", type=int, help="of each turn")
    parser.add_argument("--plan_pairs", type=int, help="pairs to time planning with")
    parser.add_argument(
        "--executors", default=",".join(EXECUTORS), help="separated by commas"
    )
    options = parser.parse_args(argv)
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target go together: give both, or neither")
    defaults = {
        "repeats": (REPEATS, QUICK_REPEATS), "vocabulary": (8000, 500),
        "microbatches": (400, 100), "plan_pairs": (10**6, 10**5),
    }  # fmt: skip
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its outcome; returns the exit code."""
    options = parse(argv)
    outcome: dict = {"machine": machine(), "repeats": options.repeats}
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="jaxformer-pipeline-") as name:
        folder = Path(name)
        config = CorpusConfig(**corpus_config(options, folder))
        prepared = prepare(config, folder)
        train = prepared.train
        outcome["corpus"] = {
            "text": options.source or config.corpus, "pairs": len(train.target),
            "target_tokens": int(train.target.offsets[-1]),
        }  # fmt: skip
        consumed = options.step_rate or step_rate(train, prepared.tokenizer.vocab_size)
        outcome["step_rate"] = consumed
        outcome["rates"] = rates(folder / "corpus" / "train", options)
        outcome["planning"] = planning(train, options)
    outcome["goals"] = goals(outcome)
    report(outcome)
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
