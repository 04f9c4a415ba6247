"""README.md and the pages of docs/: links, commands, names of functions, the site."""

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jaxformer import cli
from jaxformer.config_files import read_config_file

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
GENERATED = {"index.md", "commands.md", "config_keys.md", "modules.md"}
REPORT = "reports/multi30k.html"  # rendered when the site is built

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text_of(page):
    return page.read_text(encoding="utf-8")


def without_code(text):
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)


@each_page
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page))):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if file.name in GENERATED or target == REPORT:
            assert file.parent in (ROOT / "docs", ROOT / "docs" / "reports")
            continue
        assert file.exists(), target
        assert not anchor or anchor in anchors(text_of(file)), target


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    plain = (re.sub(r"[^\w -]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@each_page
def test_named_files_and_functions_exist(page):
    """`models/layers.py:Sublayer` is a name in a file of the package."""
    for name, symbol in re.findall(r"`([\w/]+\.py)(?::(\w+)[.`])?", text_of(page)):
        folders = [ROOT, ROOT / "jaxformer", ROOT / "configs"]
        files = [folder / name for folder in folders if (folder / name).is_file()]
        assert files or "NAME" in name or name == "mine.py", name
        if symbol and files[0].parent != ROOT / "configs":
            assert re.search(rf"(def|class) {symbol}\b", text_of(files[0])), symbol


def commands_of(page):
    """The arguments of every jaxformer command in the page's blocks of code."""
    start = r"(?:^|\s)(?:jaxformer|-m jaxformer(?:\.main)?)(?= --)(.*)"
    for block in re.findall(r"^ *```[^\n]*\n(.*?)^ *```$", text_of(page), re.M | re.S):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            for command in re.split(r"&&|\|", line):
                if found := re.search(start, command):
                    words = shlex.split(found[1].split(" < ")[0], comments=True)
                    yield [word for word in words if word not in ("...", "&")]


@each_page
def test_commands_have_flags_and_keys_that_exist(page, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    values = read_config_file("demo")
    tutorial = text_of(ROOT / "docs" / "tutorial.md")
    mine = tmp_path / "mine.py"
    mine.write_text(re.search(r"```python\n(.*?)```", tutorial, re.S)[1], "utf-8")
    for arguments in commands_of(page):
        arguments = [word.replace("mine.py", str(mine)) for word in arguments]
        if not {"--help", "--version", "--mode=COMMAND"} & set(arguments):
            parsed = cli.parse([*arguments, "--workdir=runs/any"])
            parsed.flags["config"].resolve(values)


def test_the_front_page_is_short_and_its_results_are_those_of_the_demo():
    readme = text_of(ROOT / "README.md")
    assert len(readme.splitlines()) <= 200
    printed = re.findall(r"translations exactly right \((\d+\.\d %)\)", readme)
    row = re.search(r"^\| built-in grammar.*$", readme, re.M)[0]
    assert len(printed) == 2
    assert all(share in row for share in printed)
    assert '--8<-- "README.md:results"' in text_of(ROOT / "docs" / "results.md")


class Loaded(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        kinds = ("stylesheet", "preconnect", "icon")
        if tag in ("script", "img", "iframe") or given.get("rel") in kinds:
            self.addresses += filter(None, (given.get("src"), given.get("href")))


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q"]
    built = subprocess.run(
        [*command, f"--site-dir={tmp_path / 'site'}"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("index.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = Loaded()
        loaded.feed(text_of(page))
        others = [address for address in loaded.addresses if "//" in address]
        assert not others, page
    reference = text_of(tmp_path / "site" / "commands" / "index.html")
    assert "--beam_size" in reference
    assert (tmp_path / "site" / "reports" / "multi30k.html").is_file()
