"""The blocks of code of README, the tutorial and the how-tos run as printed.

Each page is one shell, in an empty folder that has the checkout where `git clone` would
put it. A block that cannot run has a mark with one of a few reasons before it; its
commands are parsed by tests/test_docs.py, like all others.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
INSTALL = """\
git clone https://github.com/jaxformer/jaxformer && cd jaxformer
python3 -m venv .venv && . .venv/bin/activate
pip install -e '.[serve,export,report]'
"""
REASONS = (
    "needs a cloud", "needs a cluster", "needs another environment",
    "needs text that is not here", "needs a model of hours", "takes minutes",
    "CI starts with it",
)  # fmt: skip
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>.*?) -->\s*)?(?:<!-- the \w+ command -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$",
    re.M | re.S,
)
READ = """
import sys
from jaxformer.runs.config_files import parse_config, read_config_file
parse_config(read_config_file(sys.argv[1]))
"""
SAVED = re.compile(r"[Ss]ave this as `(\S+)`:\s*$")


class Block(NamedTuple):
    """A block of code of a page."""

    code: str
    language: str
    reason: str | None  # why it is not run
    before: str  # the text above
    line: int


def how_tos():
    """README, the tutorial, and the pages of the site's sections "How to ..."."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    sections = {title: pages for each in nav for title, pages in each.items()}
    chosen = [pages for title, pages in sections.items() if title.startswith("How to")]
    names = [name for pages in chosen for page in pages for name in page.values()]
    return ["README.md", "docs/tutorial.md", *(f"docs/{name}" for name in names)]


def blocks_of(page):
    """The blocks that are meant to be typed: shell, Python, and lines after `$ `."""
    text = (ROOT / page).read_text("utf-8")
    for found in BLOCK.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.M)
        language = re.sub(r"[ {.}]", "", found["language"])
        if language in ("bash", "python") or "$ " in code[:2]:
            line = text[: found.start("code")].count("\n")
            before = text[: found.start()]
            yield Block(code, language, found["reason"], before, line)


def script_of(page):
    """What a reader of the page types."""
    yield "set -euo pipefail"
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        yield f"echo '{page}:{block.line}' >&2"
        if block.code.startswith("git clone"):
            yield from ["cd jaxformer", *block.code.splitlines()[3:]]
        elif block.language == "bash":
            yield block.code
        elif block.language == "python":
            saved = SAVED.search(block.before)
            command = f"cat > {saved[1]}" if saved else "python -"
            yield f"{command} <<'END OF BLOCK'\n{block.code}END OF BLOCK"
            if saved:  # a config
                yield f"python -c '{READ}' {saved[1]}"
        else:
            yield from re.findall(r"^\$ (.*)", block.code, re.M)


PAGES = how_tos()
RUN = [page for page in PAGES if any(block.reason is None for block in blocks_of(page))]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_installed_in_one_way_and_few_reasons_excuse_them(page):
    for block in blocks_of(page):
        assert block.reason is None or block.reason in REASONS, block.line
        if "git clone" in block.code:
            assert block.code.startswith(INSTALL), block.line
        if block.language == "python":
            compile(block.code, f"{page}:{block.line}", "exec")
    text = (ROOT / page).read_text("utf-8")
    assert not re.search(r"pip install '?jaxformer", text)  # which no index has
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for spelt in re.findall(r"pip install [^\n`]*-e ('[^']*'|\S+)", text):
        extras = re.fullmatch(r"'\.\[([\w,]+)\]'", spelt)
        assert extras, spelt
        assert project["optional-dependencies"].keys() >= {*extras[1].split(",")}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Return a function that runs a page's script in a folder of its own."""
    programs = tmp_path_factory.mktemp("bin")
    main = "from jaxformer.main import run_process; run_process()"
    for name, arguments in {"python": "", "jaxformer": f'-c "{main}"'}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        program.chmod(0o755)
    # One device, as a reader has.
    flags = re.sub(r"--xla_force\S*", "", os.environ["XLA_FLAGS"])
    path = f"{programs}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "XLA_FLAGS": flags}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}

    def run(page, folder):
        checkout = folder / "jaxformer"
        checkout.mkdir()
        kept = ".git", ".venv", "data", "runs", "build"
        for path in {*ROOT.iterdir()} - {ROOT / name for name in kept}:
            (checkout / path.name).symlink_to(path)
        script = "\n".join(script_of(page))
        start = folder if "cd jaxformer" in script else checkout
        return subprocess.run(
            ["bash", "-c", script], cwd=start, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_blocks_run_as_printed(page, shell, tmp_path):
    done = shell(page, tmp_path)
    assert done.returncode == 0, done.stdout
    # A printed line of the program begins with a word that the program still prints.
    printed = {line.partition(" ")[0] for line in done.stdout.splitlines()}
    for block in blocks_of(page):
        if block.reason is None and block.language == "":
            shown = re.findall(r"^[a-z]\S*(?= )", block.code, re.M)
            assert printed.issuperset(shown), block.line


def test_the_tutorial_runs_whole_and_most_reasons_are_used():
    assert all(block.reason is None for block in blocks_of("docs/tutorial.md"))
    reasons = Counter(block.reason for page in PAGES for block in blocks_of(page))
    assert reasons.keys() <= {None, *REASONS}
    assert reasons.keys() >= {*REASONS}
