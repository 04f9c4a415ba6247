"""Static batches as a peer of the engine of slots: each ends with its last sentence."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxformer.batch import PAD
from jaxformer.decoding.engine import bucket_length
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import search_translations


class StaticBatches:
    """Translate what waits batch by batch, with the methods of `Translator`.

    A batch has at most `rows` sentences and `batch_tokens` entries. Shapes are few:
    rows are a power of two, and lengths those of the engine. `search_translations`
    rearranges the decoder's weights for every batch, which the engine does once.
    """

    def __init__(
        self, model: Any, params: dict, tokenizer: Any, decoding: dict, rows: int
    ) -> None:
        self._tokenizer, self._rows = tokenizer, rows
        self._batch_tokens = decoding["batch_tokens"]
        self._waiting: deque = deque()
        self._params = jax.device_put(params)
        options = SearchOptions(**{k: decoding[k] for k in ("beam_size", "alpha")})
        self._search = jax.jit(
            lambda params, source: search_translations(
                [model], [params], source, options=options,
                extra_length=decoding["extra_length"],
            ).tokens[:, 0]
        )  # fmt: skip

    def __call__(self, lines: Sequence[str]) -> list[str]:
        """Translate lines, longest first."""
        found = [""] * len(lines)
        lengths = list(map(len, self._tokenizer.encode(lines)))
        for i in sorted(range(len(lines)), key=lambda i: -lengths[i]):
            self.submit(lines[i], lambda text, i=i: found.__setitem__(i, text))
        while self.advance():
            pass
        return found

    def submit(self, sentence: str, done: Callable[[str], None]) -> None:
        """Let a sentence wait; `done` gets its translation."""
        self._waiting.append((self._tokenizer.encode([sentence])[0], done))

    def advance(self) -> bool:
        """Translate a batch of those that wait longest; False if none is left."""
        batch, width = [], 0
        while self._waiting and len(batch) < self._rows:
            wider = max(width, bucket_length(len(self._waiting[0][0])))
            if batch and wider * (len(batch) + 1) > self._batch_tokens:
                break
            batch.append(self._waiting.popleft())
            width = wider
        if batch:
            source = np.full((1 << (len(batch) - 1).bit_length(), width), PAD, np.int32)
            for row, (ids, _) in zip(source, batch, strict=False):
                row[: len(ids)] = ids
            found = np.asarray(self._search(self._params, source)).tolist()
            for (_, done), tokens in zip(batch, found, strict=False):
                done(self._tokenizer.decode(tokens))
        return bool(self._waiting)
