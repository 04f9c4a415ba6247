"""Stream sentence pairs from Parquet files and JSON lines, as corpora are published."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxformer.system.errors import InputError
from jaxformer.system.files import file_name
from jaxformer.text.lines import read_lines
from jaxformer.text.locations import open_bytes

Columns = Sequence[str]  # such as ("translation.en", "translation.de")
_ROWS = 8192  # that are in memory at a time
_OUTER = "translation"  # the column that often holds one column for each language


def read_json_lines(
    path: Path, columns: Columns, languages: Columns
) -> Iterator[tuple[str, str]]:
    """Stream the pairs of a file with one JSON object a line, plain or compressed.

    `columns` are those of the source and of the target; a dot leads into an object.
    Empty: the languages, at the top or within "translation". Raises InputError for a
    line that has no such texts. A null is a blank text.
    """
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{file_name(path)}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON: {error}") from None
        if not columns:
            columns = _named(record, languages)
        yield tuple(_text(_inner(record, each, where), each, where) for each in columns)


def read_parquet(
    path: Path, columns: Columns, languages: Columns
) -> Iterator[tuple[str, str]]:
    """Stream the pairs of a Parquet file, as `read_json_lines` does."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    name = file_name(path)
    try:
        with open_bytes(path) as opened, parquet.ParquetFile(opened) as file:
            schema, row = file.schema_arrow, 0
            known = {field.name: _describe(field.type) for field in schema}
            columns = columns or _named(known, languages)
            for each in columns:
                _inner(known, each, name)
            for batch in file.iter_batches(_ROWS, columns=list(columns)):
                sides = []
                for each in columns:
                    outer, *inner = [each] if each in known else each.split(".")
                    side = batch.column(outer)
                    side = compute.struct_field(side, inner) if inner else side
                    sides.append(side.to_pylist())
                for pair in zip(*sides, strict=True):
                    row += 1
                    named = zip(pair, columns, strict=True)
                    yield tuple(
                        _text(*each, f"{file_name(path)}, row {row}") for each in named
                    )
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a text after row {row} is not UTF-8: {error}"
        ) from None
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{name} cannot be read as Parquet: {reason}") from None
    if not row:
        raise InputError(f"{name} is empty")


def _describe(kind: Any) -> Any:
    """Return the columns within a struct by name, and the name of any other type."""
    import pyarrow

    if not pyarrow.types.is_struct(kind):
        return str(kind)
    return {field.name: _describe(field.type) for field in kind}


def _named(record: Any, languages: Columns) -> Columns:
    """Return the columns that are named as the languages."""
    is_inner = isinstance(record, dict) and isinstance(record.get(_OUTER), dict)
    return [f"{_OUTER}.{each}" if is_inner else each for each in languages]


def _inner(record: Any, column: str, where: str) -> Any:
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


def _paths(record: Any, before: str = "") -> list[str]:
    if not isinstance(record, dict):
        return [before] if before else []
    return [
        path
        for key, value in record.items()
        for path in _paths(value, f"{before}.{key}" if before else key)
    ]


def _text(value: Any, column: str, where: str) -> str:
    """Return a text as one line."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column} is {value!r:.50}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: column {column} is not Unicode: {error}") from None
    return value.replace("\r", " ").replace("\n", " ")
