"""Tokenisers that a run is given: read and checked before they are used."""

from pathlib import Path

from jaxformer.config.data import DataConfig
from jaxformer.system.errors import InputError
from jaxformer.text.lines import normalise
from jaxformer.text.tokenizer import Tokenizer, pair_of
from jaxformer.tokens import BOS, EOS, PAD, UNK


def are_files(given: str) -> bool:
    """Whether `data.tokenizer` names a file, or files, that exist."""
    return bool(given) and all(path.is_file() for path in _paths(given))


def _paths(given: str) -> list[Path]:
    if Path(given).is_file():  # its name may have a comma
        return [Path(given)]
    return [Path(each.strip()) for each in given.split(",")]


def load_given(config: DataConfig) -> Tokenizer:
    """Read the file, or the file of each language, that `data.tokenizer` names.

    Raises InputError as `Tokenizer.load` does, and for another number of files.
    """
    paths = _paths(config.tokenizer)
    if len(paths) == 1:
        return Tokenizer.load(*paths)
    if config.shared_vocabulary or len(paths) > 2:
        raise InputError(
            f"data.tokenizer names {len(paths)} files; give one, or two with "
            "data.shared_vocabulary=False, the source's first"
        )
    source, target = map(Tokenizer.load, paths)
    names = [side[: EOS + 1] for side in (source.pieces(), target.pieces())]
    if names[0] != names[1]:
        raise InputError(
            f"data.tokenizer: the first pieces of {paths[0]} are {' '.join(names[0])}, "
            f"and of {paths[1]} {' '.join(names[1])}; train both with one name of each"
        )
    return pair_of(source.source_model, target.target_model)


def require_symbols(tokenizer: Tokenizer, config: DataConfig) -> None:
    """Raise InputError if a given tokeniser lacks a tag or a symbol of a config.

    Also if it lacks the bytes of `data.byte_fallback`, or if the languages share its
    vocabulary and not the config's, or the reverse.
    """
    if tokenizer.is_shared != config.shared_vocabulary:
        has = "one vocabulary" if tokenizer.is_shared else "a vocabulary of each"
        raise InputError(
            f"the tokeniser has {has} of the languages, and data.shared_vocabulary is "
            f"{config.shared_vocabulary}; set it to {tokenizer.is_shared}, or use "
            "another tokeniser"
        )
    if config.byte_fallback and not tokenizer.has_bytes:
        raise InputError(
            "the tokeniser has no pieces of bytes, which data.byte_fallback asks for; "
            "set it to False, or use a tokeniser trained with --byte_fallback"
        )
    needed = [(symbol, tokenizer.source_pieces()) for symbol in config.tags]
    needed += [(symbol, tokenizer.pieces()) for symbol in config.target_tags]
    for pieces in (tokenizer.source_pieces(), tokenizer.pieces()):
        needed += [(symbol, pieces) for symbol in config.user_defined_symbols]
    for symbol, pieces in needed:
        if symbol not in pieces:
            raise InputError(
                f"the tokeniser has no piece {symbol!r}, which data.tag, "
                "data.target_tag or data.user_defined_symbols names; leave it out, or "
                "begin anew with a tokeniser that has it"
            )


def require_usable(tokenizer: Tokenizer, path: Path, vocab_size: int) -> None:
    """Raise InputError unless a new model can use the tokeniser of a user's `path`.

    A SentencePiece model needs the reserved ids and must not change any character.
    """
    text = normalise(" ".join(filter(str.isprintable, map(chr, range(0x110000)))))
    for side in tokenizer.sides:
        size, processor = len(side.pieces), side.processor
        names = ("pad", "unk", "bos", "eos")
        ids = [getattr(processor, f"{name}_id")() for name in names]
        if size > vocab_size:
            fault = f"it has {size:,} ids, more than data.vocab_size={vocab_size}"
            remedy = f"set data.vocab_size={size}"
        elif ids != [PAD, UNK, BOS, EOS]:
            fault = f"its ids of PAD, UNK, BOS and EOS are {ids}"
            remedy = "train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
        elif processor.normalize(text) != "▁" + text.replace(" ", "▁"):
            fault = "it changes characters or the spaces between words"
            remedy = (
                "train it with --normalization_rule_name=identity "
                "--add_dummy_prefix=true"
            )
        else:
            continue
        raise InputError(
            f"{path} cannot be used: {fault}; {remedy}, or remove the file"
        )
