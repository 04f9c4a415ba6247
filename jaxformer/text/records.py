"""Stream sentence pairs from Parquet files and JSON lines, as corpora are published."""

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name
from jaxformer.text.lines import read_lines
from jaxformer.text.locations import open_bytes

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

Columns = Sequence[str]  # such as ("translation.en", "translation.de")
_ROWS = 8192  # that are in memory at a time
LINE_ENDS = str.maketrans("\r\n", "  ")  # a text is one line
_OUTER = "translation"  # the column that often holds one column for each language


def read_json_lines(
    path: Path, columns: Columns, languages: Columns
) -> Iterator[tuple[str, str]]:
    """Stream the pairs of a file with one JSON object a line, plain or compressed.

    `columns` are those of the source and of the target; a dot leads into an object.
    Empty: the languages, at the top or within "translation". Raises InputError for a
    line that has no such texts. A null is a blank text; a pair is blank if its line is,
    and, with a warning, if it has lone surrogates.
    """
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{file_name(path)}, line {number}"
        if not line.strip():
            yield "", ""
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON: {error}") from None
        columns = columns or _named(record, languages)
        pair = _pair(record, columns, where)
        try:
            "".join(pair).encode()
        except UnicodeEncodeError:
            _warn_of_surrogates(file_name(path))
            pair = "", ""
        yield pair


@cache
def _warn_of_surrogates(name: str) -> None:
    """Log once for each file, which is read several times."""
    log.warning("%s: pairs with lone surrogates count as empty", name)


def read_parquet(
    path: Path, columns: Columns, languages: Columns
) -> Iterator[tuple[str, str]]:
    """Stream the pairs of a Parquet file, as `read_json_lines` does."""
    import pyarrow
    import pyarrow.parquet as parquet

    name, row = file_name(path), 0
    try:
        with open_bytes(path) as opened, parquet.ParquetFile(opened) as file:
            known = {field.name: _describe(field.type) for field in file.schema_arrow}
            columns = columns or _named(known, languages)
            for each in columns:
                _inner(known, each, name)
            for batch in file.iter_batches(_ROWS, columns=list(columns)):
                for record in batch.to_pylist():
                    row += 1
                    yield _pair(record, columns, f"{name}, row {row}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a text after row {row} is not UTF-8: {error}"
        ) from None
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{name} cannot be read as Parquet: {reason}") from None
    if not row:
        raise InputError(f"{name} is empty")


def _describe(kind: "pyarrow.DataType") -> str | dict:
    """Return the columns within a struct by name, and the name of any other type."""
    import pyarrow

    if not pyarrow.types.is_struct(kind):
        return str(kind)
    return {field.name: _describe(field.type) for field in kind}


def _named(record: object, languages: Columns) -> Columns:
    """Return the columns that are named as the languages."""
    is_inner = isinstance(record, dict) and isinstance(record.get(_OUTER), dict)
    return [f"{_OUTER}.{each}" if is_inner else each for each in languages]


def _inner(record: object, column: str, where: str) -> object:
    """Return a record's value at a column, or None if an object above it is null."""
    found = record
    is_outer = isinstance(record, dict) and column in record
    for key in [column] if is_outer else column.split("."):
        if found is None:
            return None
        if not isinstance(found, dict) or key not in found:
            known = ", ".join(_paths(record)) or "none"
            raise InputError(
                f"{where}: there is no column {column}; set data.columns to those of "
                f"the source and of the target, of {known}"
            )
        found = found[key]
    return found


def _paths(record: object, before: str = "") -> list[str]:
    if not isinstance(record, dict):
        return [before] if before else []
    return [
        path
        for key, value in record.items()
        for path in _paths(value, f"{before}.{key}" if before else key)
    ]


def _pair(record: object, columns: Columns, where: str) -> tuple[str, ...]:
    """Return the texts of a record's columns, each as one line."""
    texts = []
    for column in columns:
        text = _inner(record, column, where)
        if text is None:
            text = ""
        if not isinstance(text, str):
            raise InputError(
                f"{where}: column {column} is {text!r:.50}; it must be text"
            )
        texts.append(text.translate(LINE_ENDS))
    return tuple(texts)
