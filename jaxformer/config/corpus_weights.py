"""Read the weight of a corpus: a number, or numbers that hold from certain updates."""

from jaxformer.system.errors import InputError


def read_weights(where: str, given: object) -> dict[int, float]:
    """Read a weight or pairs of updates and weights. Raises InputError."""
    pairs = given if type(given) is list else [[0, given]]
    for pair in pairs:
        match pair:
            case [update, weight] if (
                type(update) is int
                and type(weight) in (int, float)
                and update >= 0
                and 0 <= weight <= 1000
            ):
                continue
        raise InputError(
            f"{where} has the weight {given!r}; use a number from 0 to 1000, or pairs "
            "of updates and numbers, as in [[0, 1.0], [20000, 0.5]]"
        )
    weights = {update: float(weight) for update, weight in pairs}
    if len(weights) < len(pairs):
        raise InputError(f"{where} has two weights at one update; leave one out")
    if 0 not in weights:
        raise InputError(f"{where} has no weight at update 0; add [0, 1.0]")
    return weights
