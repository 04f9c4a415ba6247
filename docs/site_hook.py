"""Generate the pages of the site that are made from the package and from README.md.

MkDocs calls `on_files` before it reads the pages.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from jaxformer.commands.flags import CLUSTER, COMMANDS, FLAGS, Flag, paths
from jaxformer.config.settings import kind_of
from jaxformer.decoding.options import TranslateOptions
from jaxformer.runs.config_files import read_config_file, sections_of

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/jaxformer/jaxformer/blob/main"
PUBLIC_MODULES = (
    "config.sections", "decoding.options", "decoding.translator", "reports.attention",
    "models.sequence_model", "models.architectures", "models.transformer.config",
    "models.recurrent.config", "models.convolutional.config", "models.attention",
    "models.arrays", "models.masks", "models.layers", "batch",
    "training.optimizer", "training.loss", "training.sharding", "training.loop",
    "evaluation.metrics", "evaluation.significance", "text.sources", "system.errors",
)  # fmt: skip


# Pages of the site, and the files that a reader of the repository has in their place.
PAGES = {
    "../README.md": "index.md",
    "../jaxformer/commands/flags.py": "commands.md",
    "../jaxformer/config/sections.py": "config_keys.md",
    "../jaxformer": "modules.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "index.md": front_page(),
        "commands.md": commands_page(),
        "config_keys.md": config_keys_page(),
        "modules.md": modules_page(),
        "reports/multi30k.html": report_page(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files outside docs/ into links to pages or to the repository."""
    for file, page in PAGES.items():
        markdown = re.sub(rf"\]\({re.escape(file)}(?=[)#])", f"]({page}", markdown)
    return re.sub(r"\]\(\.\./(?!docs/)([^)]+)\)", rf"]({SOURCE}/\1)", markdown)


def front_page() -> str:
    """README.md with links relative to docs/, without pictures from other hosts."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^The documentation is in .*\n\n", "", text, flags=re.M)
    text = text.replace("](docs/", "](")
    text = re.sub(r"!\[(Open in Colab)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\]\((notebooks|configs)/", rf"]({SOURCE}/\1/", text)


def report_page() -> str:
    """The report of two Multi30k runs, as `jaxformer report` writes it."""
    from jaxformer.reports.run_report import render

    path = ROOT / "docs" / "reports" / "multi30k.json"
    return render(json.loads(path.read_text(encoding="utf-8")))


def commands_page() -> str:
    """Each command with its flags, from `jaxformer.commands.flags`."""
    lines = [
        "# Commands",
        "",
        "`jaxformer COMMAND [--config=FILE] RUN [flags]`, in any order. RUN is the "
        "run folder. `--mode=COMMAND` and `--workdir=RUN` mean the same; without "
        "a command it is `train`. A flag that a command does not use is an error. "
        "`--config.SECTION.KEY=VALUE` changes a value of the config "
        "([config keys](config_keys.md)).",
        "",
        "Results go to standard output: translations, alignments, or one last line of "
        "JSON. All other text goes to standard error. Wrong input or a full disk is "
        "one line on standard error and exit code 2 "
        "([all exit codes](resume.md#exit-codes)).",
        "",
    ]
    for name, command in COMMANDS.items():
        lines += [f"## {name}", "", command.summary, ""]
        if not command.needs_workdir:
            lines += ["RUN may be left out.", ""]
        lines += flag_list(FLAGS[flag] for flag in command.flags)
    lines += ["## Flags of every command", ""]
    lines += ["`--mode`, `--config`, `--help` and `--version`, and these:", ""]
    lines += flag_list(FLAGS[name] for name in ("workdir", *CLUSTER))
    return "\n".join(lines)


def flag_list(flags: Iterable[Flag]) -> list[str]:
    """Write a definition list of flags: name, type, default and meaning."""
    lines = []
    options = {field.name: field for field in dataclasses.fields(TranslateOptions)}
    for flag in flags:
        rule = flag._asdict()
        default = "" if flag.default in (None, ()) else f"; `{flag.default}`"
        if flag.name in options:
            option = options[flag.name]
            rule, value = option.metadata, option.default
            default = "" if value is None else f"; `{value}`"
            if value is dataclasses.MISSING:
                default = "; the config's"
        kind = value_of(flag.kind, rule) + default.replace("; ", "; default: ")
        lines += defined(f"--{flag.name}", kind, flag.meaning)
    return lines


def defined(name: str, values: str, meaning: str) -> list[str]:
    """Write an entry of a definition list, which is readable on a telephone."""
    return [f"`{name}`", "", f":   *{values}*  ", f"    {escaped(meaning)}", ""]


def config_keys_page() -> str:
    """List each key of a config, from the dataclasses of its sections."""
    values = read_config_file("wmt_base")
    sections = [(kind, values[name]) for name, kind in sections_of(values).items()]
    for name in ("lstm", "convs2s", "hybrid"):  # other architectures
        values = read_config_file(name)
        sections.append((sections_of(values)["model"], values["model"]))
    lines = [
        "# Config keys",
        "",
        "A config file's `get_config` returns a value for every key. "
        "`--config.SECTION.KEY=VALUE` replaces one. The examples are the values of "
        f"[`configs/wmt_base.py`]({SOURCE}/configs/wmt_base.py), the paper's base "
        "model, or of another architecture's config. A key says so if its value may "
        "change when a run [resumes](resume.md). Integers are at most "
        "2147483647 where no other bound is named; numbers are finite in "
        "float32, which they are rounded to.",
        "",
    ]
    for kind, values in sections:
        title = f"## {kind.section} {values.get('architecture', '')}".rstrip()
        lines += [title, "", inspect.getdoc(kind) or "", ""]
        for field in dataclasses.fields(kind):
            rule = field.metadata
            type_, may_be_none = kind_of(field)
            allowed = value_of(type_, rule) + (" or None" if may_be_none else "")
            change = "; may change" if rule["free"] else ""
            values_ = f"{allowed}; for example `{values[field.name]!r}`{change}"
            lines += defined(f"{kind.section}.{field.name}", values_, rule["meaning"])
    return "\n".join(lines)


def value_of(kind: type, rule: Mapping[str, Any]) -> str:
    """Write the type and the bounds of a value in words."""
    if rule.get("choices"):
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    names = {
        int: "integer",
        float: "number",
        bool: "true or false",
        Path: "path",
        paths: "paths",
        tuple[str, ...]: "list of texts",
        tuple[dict, ...]: "list",
        dict: "dict",
    }
    words = {"least": "≥", "above": ">", "most": "≤", "below": "<"}
    bounds = [f"{words[key]} {rule[key]}" for key in words if rule.get(key) is not None]
    return ", ".join([names.get(kind, "text"), *bounds])


def escaped(text: str) -> str:
    """Escape what Markdown would read as HTML."""
    return re.sub(r"<(?=\w)", "&lt;", text)


def modules_page() -> str:
    """The public modules, by mkdocstrings."""
    lines = ["# Modules", "", "The public modules, for use in your own programs.", ""]
    for name in PUBLIC_MODULES:
        lines += [f"::: jaxformer.{name}", ""]
    return "\n".join(lines)
