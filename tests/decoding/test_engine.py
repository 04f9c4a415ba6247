"""Sentences that start and end at any time, against each of them alone."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.decoding import shapes
from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.phrases import distinct
from jaxformer.decoding.slots import SlotPrograms
from jaxformer.models.sequence_model import pad, resize_ring
from jaxformer.tokens import EOS
from tests.decoding.tables import (
    STATES,
    Wanted,
    assert_same,
    empty_cache,
    hypotheses_of,
    plain_search,
    random_tables,
    score_of,
    table_step,
    wanted_sentences,
)

SEARCHES = {
    "beam": SearchOptions(beam_size=3, alpha=0.6, n_best=3),
    "samples": SearchOptions(
        beam_size=2, alpha=1.0, temperature=0.8, no_repeat_ngram=3
    ),
}
pytestmark = pytest.mark.usefixtures("small_sizes")
BATCH_TOKENS = 40  # four slots of eight pieces, or two of twelve


class Tables:
    """A stand-in for models: a source selects a table and an offset in it.

    Weights are the tables, and memories are the sources. The offset depends on every
    token of the source.
    """

    def encode(self, weights, source):
        return source

    empty_cache = staticmethod(empty_cache)

    def resize_memory(self, memory, *, length):
        return pad(memory, 0, length - memory.shape[1], axis=1)

    def resize_cache(self, cache, clock, *, width, length):
        return resize_ring(cache, clock, axis=2, length=length)

    def step(self, weights, memory, cache, newest):
        factors = jnp.arange(1, memory.shape[1] + 1, dtype=jnp.int32)
        shift = (memory * factors[None]).sum(axis=1, keepdims=True)  # [B, 1]
        return table_step(weights[memory[:, 0] % len(weights)], cache, newest, shift)


def rows_of(devices: int) -> NamedSharding:
    """Slots on so many devices."""
    mesh = jax.make_mesh(
        (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return NamedSharding(mesh, P("data"))


def engine_of(options: SearchOptions, devices: int = 1, **how) -> Engine:
    programs = SlotPrograms(Tables(), options, rows_of(devices))
    return Engine(programs, BATCH_TOKENS, **how)


class Client:
    """Submits tasks to an engine, and checks its answers."""

    def __init__(self, engine: Engine, options: SearchOptions):
        self.engine, self.options = engine, options
        self.tables = random_tables(seed=3, batch=4)
        self.submitted, self.answers = 0, Counter()
        engine._programs.weights = jnp.asarray(self.tables)

    def submit(self, wanted: Wanted, source, **of_request) -> None:
        number = self.submitted
        self.submitted += 1

        def done(found):
            self.answers[number] += 1
            shift = sum((index + 1) * token for index, token in enumerate(source))
            table = self.tables[source[0] % len(self.tables)]
            score = score_of(np.roll(table, -(shift % STATES), axis=0))
            expected = plain_search(score, wanted, self.options)
            assert_same(hypotheses_of(found), expected)

        constraints = wanted.limit, wanted.least, wanted.prefix, wanted.seed
        task = Task(source, *constraints, done, **of_request)
        own = {"phrases": distinct(wanted.phrases), "unscored": wanted.unscored}
        self.engine.submit(task._replace(**own))

    def advance(self, most=None) -> bool:
        more = self.engine.advance(most)
        shape, devices = self.engine._shape, self.engine._programs.devices
        assert len(self.engine._tasks) <= shape.slots
        assert shape.slots % devices == 0
        limited = self.engine.shapes.all
        is_small = shape.slots * shape.source <= BATCH_TOKENS
        assert shape.slots == devices or shape in limited or is_small
        assert not limited or shape in [*limited, (0, 0, 0)]
        return more

    def finish(self) -> None:
        """Advance until all tasks are answered, each once."""
        for _ in range(300):
            self.advance()
        assert self.answers == Counter(range(self.submitted))
        assert len(self.engine._tasks) == 0
        assert not self.advance()


@pytest.fixture(scope="module", params=SEARCHES.values(), ids=SEARCHES)
def shared(request) -> tuple[Engine, SearchOptions]:
    """One engine for many tests, so that state left by one of them would show."""
    return engine_of(request.param), request.param


def source_of(*numbers: int, length: int):
    """A source of `length` tokens, EOS included."""
    tokens = [EOS + 1 + n for n in numbers]
    return [*(tokens * length)[: length - 1], EOS]


numbers, lengths = st.integers(0, 9), st.sampled_from([2, 5, 8, 12])
tasks = st.tuples(
    wanted_sentences(least_limit=1, limit=12, prefix=3),
    st.builds(source_of, numbers, numbers, length=lengths),
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(events=st.lists(tasks | st.sampled_from([None, 1, 3]), max_size=14))
def test_every_task_has_the_result_it_has_alone(shared, events):
    """Events are tasks, and advances: of a number of steps, or without a limit."""
    shared[0].clear()
    client = Client(*shared)
    for event in events:
        if isinstance(event, tuple):
            client.submit(*event)
        else:
            client.advance(event)
    client.finish()


def test_long_and_short_sentences_share_an_engine(shared):
    """More sentences than slots; then a long one joins; then more short ones."""
    engine, _ = shared
    client = Client(*shared)
    for seed in range(6):
        client.submit(Wanted(1 + seed, seed=seed), source_of(seed, length=4))
    client.advance(2)
    shapes = {engine._shape}
    client.submit(Wanted(12, least=11), source_of(1, 2, length=12))
    for seed in range(7):
        client.submit(Wanted(3, prefix=(4,), seed=seed), source_of(seed, length=3))
        while client.advance(1) and seed == 3:
            shapes.add(engine._shape)
    client.finish()
    assert {shape.source for shape in shapes} == {8, 12}
    assert {shape.ring for shape in shapes} == {8, 12}
    assert len({shape.slots for shape in shapes}) > 1


def test_an_empty_slot_of_a_new_shape_is_done(shared):
    engine = Client(*shared).engine
    engine.submit(Task(source_of(1, length=4), max_length=8, min_length=8))
    engine.advance(1)
    engine._resize(engine._shape._replace(slots=4))
    assert engine._state.done.tolist() == [False, True, True, True]
    engine.clear()


def test_more_slots_than_one_program_fills_are_free_at_once(shared):
    client = Client(*shared)
    client.submit(Wanted(8, least=8), source_of(1, length=4))
    for seed in range(6):  # three end after one step, and three wait
        client.submit(Wanted(1, seed=seed), source_of(seed, length=4))
    client.finish()


def test_a_ring_has_room_for_the_oldest_sentence_and_for_a_prefix(shared):
    """A second sentence starts when the first has used 5 of the 8 slots of the ring."""
    client = Client(*shared)
    client.submit(Wanted(12, least=11), source_of(1, length=4))
    client.advance(5)
    client.submit(Wanted(6, least=6), source_of(2, length=4))
    client.finish()
    client.submit(Wanted(12, prefix=(4, 5) * 5), source_of(3, length=2))
    client.finish()


def test_the_answer_of_a_task_may_submit_another(shared):
    client = Client(*shared)

    def done(found):
        client.submit(Wanted(5), source_of(client.submitted, length=5))

    for number in range(4):
        source = source_of(number, length=2)
        shared[0].submit(Task(source, max_length=2 + number, done=done))
    client.finish()
    assert client.submitted == 4


def test_dropped_tasks_get_no_answer_and_do_not_affect_later_ones(shared):
    engine, _ = shared
    dropped = Client(*shared)
    for number in range(9):
        dropped.submit(Wanted(9, least=9), source_of(number, length=5))
    assert dropped.advance(1)
    assert len(engine._tasks) > 0
    engine.clear()
    client = Client(*shared)
    client.finish()  # no task is left
    client.submit(Wanted(6), source_of(1, length=6))
    client.finish()
    assert not dropped.answers


def test_a_cancelled_request_frees_its_slots_and_changes_no_other(shared):
    engine, _ = shared
    dropped, client = Client(*shared), Client(*shared)
    for number in range(6):
        dropped.submit(Wanted(9, least=9), source_of(number, length=5), request=dropped)
    client.submit(Wanted(9), source_of(1, 2, length=5))
    dropped.advance(2)
    assert engine.load == (3, 4)
    engine.cancel(dropped)
    assert engine.load == (1, 0)
    client.submit(Wanted(7), source_of(3, length=4))
    client.finish()
    assert not dropped.answers


def test_requests_take_turns_by_their_tokens(shared):
    """A short request does not wait for the rest of longer ones before it."""
    engine, ended = Client(*shared).engine, []

    def submit(name: str, count: int, length: int) -> None:
        for number in range(count):
            task = Task(source_of(number, length=length), 3, 3, turn=number * length)
            engine.submit(task._replace(done=lambda _: ended.append(name)))

    submit("long", 40, length=5)
    engine.advance(1)
    submit("late", 1, length=5)
    submit("half", 10, length=10)
    while len(ended) < 20:
        engine.advance(1)
    submit("last", 1, length=5)
    while engine.advance(1):
        pass
    assert ended.index("late") < 9
    assert ended.index("last") < 29
    last = len(ended) - ended[::-1].index("half")
    assert ended[:last].count("long") == pytest.approx(20, abs=5)


def test_later_requests_do_not_delay_an_earlier_one_for_ever(shared):
    engine, ended = shared[0], []
    task = Task(source_of(0, length=5), 3, 3, done=lambda _: None)
    engine.submit(task)
    engine.submit(task._replace(turn=5, done=lambda _: ended.append("second part")))
    for _ in range(300):
        while engine.load[0] < 8:
            engine.submit(task)
        engine.advance(1)
    engine.clear()
    assert ended == ["second part"]


def test_limited_shapes_change_no_result():
    options = SEARCHES["beam"]
    engine = engine_of(options)
    client = Client(engine, options)
    shapes = engine.shapes.limit(source=12, output=15, slots=4)
    assert shapes == [(1, 12, 15), (4, 12, 15), (1, 8, 8), (4, 8, 8)]
    used = set()
    for number in range(15):
        if number % 2 == 0 and number < 8:  # one after the other, during the search
            engine.shapes.add(shapes[number // 2])
        long = number % 5 == 0
        wanted = Wanted(15 if long else 4, least=14 * long, prefix=(4,) * (number % 3))
        client.submit(wanted, source_of(number, length=12 if long else 3))
        client.advance(3)
        used.add(engine._shape)
    client.finish()
    assert {(4, 8, 8), (1, 12, 15)} <= used <= set(shapes)


def test_a_shape_shrinks_when_only_its_sources_are_too_long(monkeypatch):
    engine = engine_of(SEARCHES["beam"])
    engine._shape, short = shapes.ProgramShape(1, 32, 64), shapes.ProgramShape(1, 8, 64)
    engine._waiting = [None] * 4 * shapes.REPAID_AFTER
    monkeypatch.setattr(engine, "_needed_shape", lambda group: short)
    monkeypatch.setattr(engine, "_resize", lambda new: setattr(engine, "_shape", new))
    for _ in range(shapes.SHRINK_AFTER - 1):
        engine._fit([])
    assert engine._shape == (1, 32, 64)
    engine._fit([])
    assert engine._shape == short


@pytest.mark.parametrize(("devices", "phrases"), [(2, ()), (3, ()), (2, ((4, 5),))])
def test_slots_on_several_devices_change_nothing(devices, phrases):
    options = SEARCHES["beam"]
    engine = engine_of(options, devices, with_phrases=bool(phrases))
    client, programs = Client(engine, options), engine._programs
    whole = NamedSharding(rows_of(devices).mesh, P())
    programs.weights = jax.device_put(programs.weights, whole)
    for seed in range(7):
        client.submit(Wanted(3 + seed, phrases=phrases), source_of(seed, length=4))
    client.advance(2)
    tokens = engine._state.tokens
    assert len(tokens.sharding.device_set) == devices
    assert not tokens.is_fully_replicated
    client.submit(Wanted(12), source_of(1, 2, length=12))
    client.finish()


def test_bucket_lengths_grow_by_at_most_a_half(monkeypatch):
    monkeypatch.setattr(shapes, "SHORTEST_BUCKET", 16)
    ladder = sorted({shapes.bucket_length(length) for length in range(1, 200)})
    assert ladder == [16, 24, 32, 48, 64, 96, 128, 192, 256]


def test_a_program_runs_while_another_shape_is_compiled():
    """And threads that need one shape at once compile it once."""
    begun, gate, compiled = threading.Event(), threading.Event(), []

    class Slow(Tables):
        def encode(self, weights, source):
            compiled.append(source.shape)
            if source.shape == (2, 8):
                begun.set()
                gate.wait(20)
            return source

    encode = SlotPrograms(Slow(), SEARCHES["beam"], rows_of(1)).encode
    small, large = (np.ones(shape, np.int32) for shape in ((1, 4), (2, 8)))
    encode(None, small)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(encode, None, large) for _ in range(2)]
        assert begun.wait(20)
        assert pool.submit(encode, None, small).result(10).shape == (1, 4)
        assert not wait(found, 0.2).done
        gate.set()
        assert [each.result(20).shape for each in found] == [(2, 8)] * 2
    assert compiled == [(1, 4), (2, 8)]
