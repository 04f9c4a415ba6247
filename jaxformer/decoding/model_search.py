"""The search of section 6.1 with a model, or an ensemble, on the local devices."""

from collections.abc import Callable, Sequence

import jax

from jaxformer.decoding.engine import Task, run_tasks
from jaxformer.decoding.forced import TeacherForcing
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.slots import Scorer, SlotPrograms
from jaxformer.models.sequence_model import Model, Parameters, parameter_hash
from jaxformer.tokens import AnyTokenizer


class ModelSearch:
    """The programs of a search, and the scorer of given translations, `forcing`.

    `models` and `params` are the members of an ensemble, mostly one. `rows` shards the
    rows of a batch over devices of this process. Up to `searches` searches share the
    sentences, each in a thread of its own.
    """

    def __init__(
        self,
        models: Sequence[Model],
        params: Sequence[Parameters],
        tokenizer: AnyTokenizer,
        options: TranslateOptions,
        *,
        rows: jax.sharding.NamedSharding,
        searches: int,
    ) -> None:
        self._models, self._searches = models, searches
        self._batch_tokens = tokens = options.batch_tokens
        positions = [model.longest for model in models if model.longest]
        self.positions = min(positions, default=None)
        scorer = Scorer(models)
        self._weights = jax.jit(scorer.weights)
        self.programs = SlotPrograms(scorer, options, rows)
        self.forcing = TeacherForcing(models[0], tokenizer, batch_tokens=tokens)
        self.params = params

    @property
    def params(self) -> Sequence[Parameters]:
        """The members' parameters; they may be replaced between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Parameters]) -> None:
        self._params, self.programs.weights = params, self._weights(params)

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""
        self._params = self.programs.weights = None

    def identity(self) -> dict[str, object]:
        """Return what tells these parameters from others, as JSON can hold it."""
        dtypes = [model.dtype for model in self._models]
        return {"parameters": parameter_hash(self.params), "dtypes": dtypes}

    def run(self, tasks: Sequence[Task], check_stop: Callable[[], None]) -> None:
        """Pass the result of each task to its `done`; `check_stop` may raise."""
        how = {"batch_tokens": self._batch_tokens, "searches": self._searches}
        run_tasks(self.programs, tasks, **how, check_stop=check_stop)
