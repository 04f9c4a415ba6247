"""The sizes of the programs of continuous batching: which are used, and when.

Programs are compiled when they are needed, for one of many shapes. A server limits the
shapes to few, compiles them beforehand, and uses each one once it is compiled.
"""

import operator
from collections.abc import Sequence
from typing import NamedTuple

SHORTEST_BUCKET = 16  # tokens
MOST_SLOTS = 64  # of a device: enough for fast products; refills of more take longer
SHORTEST_LENGTH = 32  # tokens, of the search: steps of 16 take as long
SHRINK_AFTER = 16  # advances after which a shape that is too large shrinks
# Batches of waiting tasks that repay a shape half as large:
REPAID_AFTER = 32  # if its programs must be compiled
MOVED_AFTER = 4  # if it was used before, so that only a resize is compiled


class ProgramShape(NamedTuple):
    """The sizes of compiled programs."""

    slots: int  # B
    source: int  # S
    ring: int  # L, N, and P

    @property
    def size(self) -> int:
        """What a step reads: the encodings and the keys and values of all slots."""
        return self.slots * (self.source + self.ring)


def bucket_length(length: int) -> int:
    """Round a length up to one of few: 16, 24, 32, 48, 64, 96, 128, ... tokens."""
    power = max(SHORTEST_BUCKET, 1 << (length - 1).bit_length())
    middle = power * 3 // 4
    return middle if SHORTEST_BUCKET < length <= middle else power


class Shapes:
    """The shapes of an engine, with at most `most` slots on each device.

    `batch_tokens` bounds slots x source length, padding included, except that each of
    `devices` has at least one slot, and that a search in progress may grow to the
    largest of limited shapes. `sharing` engines divide it and MOST_SLOTS equally.
    """

    def __init__(self, batch_tokens: int, devices: int, sharing: int = 1) -> None:
        self.batch_tokens, self._devices = max(1, batch_tokens // sharing), devices
        self.most = MOST_SLOTS // sharing
        # Those to use, if they are limited, by length, then slots.
        self.all: list[ProgramShape] = []
        self.begin()

    def limit(
        self, *, source: int, output: int, slots: int, is_one: bool = False
    ) -> list[ProgramShape]:
        """Use few shapes; return them in the order in which to compile and `add` them.

        They hold sources and outputs of so many tokens, in at most `slots` of each
        device. The first one is enough for every task. `is_one`: only the largest.
        """
        self.most = min(slots, self.most)
        lengths = [SHORTEST_LENGTH]
        while lengths[-1] < output:
            lengths.append(2 * lengths[-1])
        lengths[-1] = output
        shapes = [
            ProgramShape(self._devices << power, min(length, source), length)
            for length in reversed(lengths)
            for power in range(0, self.most.bit_length(), 2)
        ]
        if is_one:
            most = self.most_slots(source)
            shapes = [max(s for s in shapes if s.ring == output and s.slots <= most)]
        self.most = 0
        return shapes

    def add(self, shape: ProgramShape) -> None:
        """Use a shape of `limit` as well, whose programs are compiled."""
        self.all = sorted([*self.all, shape], key=lambda each: (each.ring, each.slots))
        self.most = max(self.most, shape.slots // self._devices)

    def most_slots(self, source: int) -> int:
        """The most slots for a source length: a power of two, or four, a device."""
        each = min(self.most, max(1, self.batch_tokens // source // self._devices))
        power = each.bit_length() - 1
        return self._devices << (power // 2 * 2 if self.all else power)

    def room(self, source: int, ring: int) -> int:
        """The most slots in which a search with these lengths begins."""
        return self.most_slots(self.smallest(1, source, ring).source)

    def smallest(self, tasks: int, source: int, ring: int) -> ProgramShape:
        """The smallest shape that has room for so many tasks in flight."""
        slots = self._devices
        while slots < tasks:
            slots *= 2
        if not self.all:
            lengths = (max(each, SHORTEST_LENGTH) for each in (source, ring))
            return ProgramShape(slots, *map(bucket_length, lengths))
        length = max(source, ring)
        return min(s for s in self.all if s.slots >= slots and s.ring >= length)

    def begin(self) -> None:
        """Forget the shapes used so far: a search does not depend on earlier ones."""
        self._used: set[ProgramShape] = set()  # if they are not limited

    def fitted(
        self, old: ProgramShape, new: ProgramShape, ages: Sequence[int], waiting: int
    ) -> ProgramShape:
        """The shape to use when `new` is needed, and so many tasks wait.

        `ages` are the numbers of calls since which each size of `old` has been too
        large. Resizing moves data, and a shape that was not used before is compiled,
        which takes longer than many steps of a larger one:

        - A shape is kept until a size must grow, or was too large for SHRINK_AFTER
          calls.
        - Then a size shrinks if half of it is enough. Unless another size grows, it
          must have been too large for SHRINK_AFTER / 2 calls.
        - A shape that was used before is used again if each of its sizes is less than
          twice the needed one.
        - A ring that grows at least doubles.
        - A smaller shape that was not used before must be worth compiling: see
          REPAID_AFTER. The more it saves, the fewer tasks have to wait for it.
          Otherwise the smallest that was used before and has room is used again.
        """
        largest = ProgramShape(*map(max, old, new))
        is_due, grows = max(ages) >= SHRINK_AFTER, largest != old
        if self.all:
            return new if is_due else largest
        self._used.add(old)
        if not grows and not is_due:
            return old
        may_shrink = (grows or 2 * age >= SHRINK_AFTER for age in ages)
        sizes = (
            less if may and 2 * less <= more else max(less, more)
            for less, more, may in zip(new, old, may_shrink, strict=True)
        )
        wanted = ProgramShape(*sizes)
        if wanted.slots > self.most_slots(wanted.source):
            wanted = new
        has_room = [s for s in self._used if all(map(operator.le, wanted, s))]
        near = (
            used
            for used in has_room
            if all(b < 2 * a for a, b in zip(wanted, used, strict=True))
        )
        if found := min(near, default=None):
            return found

        def repays(shape: ProgramShape, after: int) -> bool:
            saved = old.size / shape.size - 1
            return waiting * saved >= after * old.slots

        if not grows and not repays(wanted, REPAID_AFTER):
            known = [shape for shape in has_room if repays(shape, MOVED_AFTER)]
            return min(known, key=lambda shape: shape.size, default=old)
        if wanted.ring > old.ring:
            wanted = wanted._replace(ring=max(wanted.ring, 2 * old.ring))
        self._used.add(wanted)
        return wanted

    def next(self, old: ProgramShape, new: ProgramShape) -> ProgramShape:
        """The next shape on the way from `old` to `new`: a neighbour, if limited."""
        if not self.all:
            return new
        # Few slots are resized faster, so they shrink first and grow last.
        if new.slots < old.slots or new.ring == old.ring:
            line = [shape for shape in self.all if shape.ring == old.ring]
            step = 1 if new.slots > old.slots else -1
        else:
            line = [shape for shape in self.all if shape.slots == old.slots]
            step = 1 if new.ring > old.ring else -1
        return line[line.index(old) + step]
