"""README.md and the pages of docs/: links, commands, names of functions, the site."""

import functools
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from jaxformer.commands import command_line
from jaxformer.commands.flags import COMMANDS
from jaxformer.reports.run_report import render
from jaxformer.runs.config_files import read_config_file
from tests import browser

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
MADE = {"multi30k.html"}  # when the site is built
BLOCK = re.compile(r"^ *```[^\n]*\n(.*?)^ *```$", re.M | re.S)

driver = browser.driver
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text_of(page):
    return page.read_text(encoding="utf-8")


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.M)
    plain = (re.sub(r"[^\w -]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@each_page
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text_of(page))):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if re.match(r"https?:", target) or file.name in MADE:
            continue
        assert file.exists(), target
        assert not anchor or anchor in anchors(text_of(file)), target


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
    """The arguments of every jaxformer command in the page's blocks of code.

    Also those of the scripts of launch/ that take a config and a run.
    """
    names = "|".join(COMMANDS)
    start = rf"(?:^|\s)(?:jaxformer|-m jaxformer(?:\.main)?)(?= --| (?:{names})\b)(.*)"
    script = r"launch/\S*(?:run|train|prepare|local)\.(?:sh|sbatch) (\S+) (\S+)(.*)"
    for block in BLOCK.findall(text_of(page)):
        for command in re.split(r"&&|\||\n", block.replace("\\\n", " ")):
            if command.count('"') % 2:  # the end of a command for ssh
                command = command.rpartition('"')[0]
            if found := re.search(script, command):
                command = "jaxformer train --config={} {}{}".format(*found.groups())
            if found := re.search(start, command):
                words = shlex.split(re.split(" [<>] ", found[1])[0], comments=True)
                yield [word for word in words if word not in ("...", "&")]


@each_page
def test_commands_have_flags_and_keys_that_exist(page, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    values = read_config_file("demo")
    tutorial = text_of(ROOT / "docs" / "tutorial.md")
    mine = tmp_path / "mine.py"
    mine.write_text(re.search(r"`mine.py`:\n\n```python\n(.*?)```", tutorial, re.S)[1])
    for arguments in commands_of(page):
        arguments = [word.replace("mine.py", str(mine)) for word in arguments]
        if not {"--help", "--version"} & set(arguments):
            parsed = command_line.parse(arguments)
            parsed.flags["config"].resolve(values)


def test_the_front_page_is_short_and_in_a_readers_order():
    readme = text_of(ROOT / "README.md")
    assert len(readme.splitlines()) <= 150
    order = (
        "](docs/attention/picture.png)", "Use something else", "git clone",
        "jaxformer new --train", "jaxformer.main --config=configs/demo.py",
        "<!-- the test command -->",
    )  # fmt: skip
    assert [*map(readme.index, order)] == sorted(map(readme.index, order))
    one, two = re.findall(r"translations exactly right \((\d+\.\d %)\)", readme)
    results = text_of(ROOT / "docs" / "results.md")
    row = re.search(r"^\| built-in grammar.*$", results, re.M)[0]
    assert (one in row, two in row) == (True, True)
    quoted = re.findall(r"\*\*(\d\d\.\d+)", readme)  # BLEU, in README's few sentences
    assert len(quoted) >= 2
    assert all(f"**{score}" in results for score in quoted)


def quoted_scripts(page):
    """The benchmarks that the page's code starts, with their flags."""
    blocks = "\n".join(BLOCK.findall(text_of(page))).replace("\\\n", " ")
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text_of(page)))
    for line in [*blocks.splitlines(), *spans]:
        if found := re.search(r"python3? benchmarks/(\w+)\.py(.*)", line):
            yield found[1], shlex.split(found[2], comments=True)


@each_page
def test_quoted_scripts_have_flags_that_exist(page, monkeypatch):
    """A script that `harness.run` starts is parsed and measures nothing."""
    monkeypatch.setattr(harness, "machine", dict)
    for name, words in quoted_scripts(page):
        main = importlib.import_module(f"benchmarks.{name}").main
        if isinstance(main, functools.partial):
            given = main.args[0], lambda options: {}, words
            assert main.func(*given, **main.keywords) == 0, name


def test_the_example_of_a_report_renders():
    """Its data were written by an earlier version and lie in docs/."""
    data = json.loads(text_of(ROOT / "docs" / "reports" / "multi30k.json"))
    assert all(run["name"] in render(data) for run in data["runs"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; a warning, such as one of a dead link, is an error."""
    site = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", site],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return site


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site):
    pages = list(site.rglob("index.html"))
    assert len(pages) > 20
    for page in pages:
        for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", text_of(page)):
            if not re.search(r"rel=\"?(canonical|next|prev|alternate)", tag):
                assert not re.search(r"(?:src|href)=\"?[^\" >]*//", tag), (page, tag)
    assert "--beam_size" in text_of(site / "commands" / "index.html")
    assert (site / "reports" / "multi30k.html").is_file()


WIDER = """
return [...document.querySelectorAll(arguments[0])]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.innerText.slice(0, 60));
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "width", "parts"),
    [
        ("speed", 1280, ".md-typeset__scrollwrap, .language-bash code"),
        ("results", 1280, ".md-typeset__scrollwrap, .language-bash code"),
        ("commands", 390, "html, dt, dd"),
        ("config_keys", 390, "html, dt, dd"),
    ],
)
def test_pages_fit_their_windows(page, width, parts, site, driver):
    """Tables in a window of 1280 pixels, keys and flags on a telephone."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        driver.get((site / page / "index.html").as_uri())
        present = "return document.querySelectorAll(arguments[0]).length"
        assert driver.execute_script(present, parts) > 5
        assert driver.execute_script(WIDER, parts) == []
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
