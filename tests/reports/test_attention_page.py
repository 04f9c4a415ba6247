"""The attention page in a real browser, from the disk, by mouse and keyboard."""

import json
import re

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_data import LEVELS, matrix_of

from .synthetic_attention import HEADS, LAYERS, attended

pytestmark = pytest.mark.slow

SHORT = "Two foxes wander home"
FOUND = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim", "Füchse wandern heim")
LONG = " ".join(f"word{n}" if n % 3 else "a" for n in range(44))  # 60 pieces or so
SENTENCES = [attended(SHORT, *FOUND), attended(LONG, LONG), attended("<b>", "<i>& x")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "attention.html"
    AttentionView(SENTENCES, "Attention of a test").save(path)
    return path


@pytest.fixture
def page(browser, path):
    """Open the page with a hash."""
    return lambda fragment="": browser.open(path, fragment)


def after(browser, act) -> None:
    """Act, and wait until what that changes is on the screen."""
    turn = "document.documentElement.dataset.shown"
    before = browser.run(turn)
    act()
    browser.wait(lambda _: browser.run(turn) != before)


def first_column(browser) -> list[str]:
    """What the table says of each head: the piece of the largest weight, and it."""
    cells = browser.texts("#table tr td:nth-of-type(1)")
    return [text.replace("\n", " ") for text in cells]


def expected_column(kind: str, layer: int, query: int) -> list[str]:
    found = SENTENCES[0].alternatives[0].attention
    matrix = matrix_of(found, kind, layer)
    weights = np.rint(matrix.weights[:, query] * LEVELS) / LEVELS
    return [f"{matrix.keys[row.argmax()]} {100 * row.max():.0f} %" for row in weights]


def coloured(browser) -> int:
    """How many pixels of the figure are coloured."""
    return browser.driver.execute_script("""
        const shown = document.querySelector("#figure canvas");
        const canvas = new OffscreenCanvas(shown.width, shown.height);
        const copy = canvas.getContext("2d");
        copy.drawImage(shown, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let at = 0; at < data.length; at += 4) {
          const [r, g, b, a] = data.slice(at, at + 4);
          if (a > 8 && Math.max(r, g, b) - Math.min(r, g, b) > 20) count += 1;
        }
        return count;""")


def test_the_page_begins_with_all_heads_of_the_last_layer(page, browser):
    page()
    assert browser.driver.title == "Attention of a test"
    found = browser.texts("#alternatives label > span:nth-child(2)")
    assert found == [*FOUND[:2], f"Zwei {FOUND[2]}"]  # with what the best one has more
    assert browser.texts("#alternatives ins") == ["gehen"]
    assert browser.texts("#alternatives del") == ["Zwei"]
    numbers = browser.texts("#alternatives .numbers")
    assert numbers[0] == "score \u22120.50 · log P \u22121.50 · 7 pieces"
    chosen = [each.get_attribute("value") for each in browser.all("input:checked")]
    assert chosen == ["1", "cross", str(LAYERS), "lines"]
    assert len(browser.all("#heads [data-head][aria-pressed=true]")) == HEADS
    assert coloured(browser) > 500
    page("#sentence=3")
    assert browser.one("#source").text == "<b>"
    assert browser.all("main b, main i") == []


def test_heads_are_shown_alone_and_together(page, browser):
    page()
    everything = coloured(browser)
    heads = browser.all("#heads [data-head]")
    after(browser, heads[1].click)
    states = [each.get_attribute("aria-pressed") for each in heads]
    assert states == ["false", "true", "false", "false"]
    assert "head 2:" in browser.one("#caption").text
    one = coloured(browser)
    assert 0 < one < everything
    after(browser, heads[3].click)
    assert "heads 2, 4:" in browser.one("#caption").text
    assert coloured(browser) > one
    after(browser, browser.one("#all").click)
    assert coloured(browser) == pytest.approx(everything, rel=0.01)
    after(browser, browser.one("input[value=heat_map]").click)
    several = browser.one("#figure canvas").size
    assert coloured(browser) > 500
    after(browser, heads[0].click)
    assert browser.one("#figure canvas").size["width"] < several["width"]
    assert coloured(browser) > 500


def test_a_piece_under_the_mouse_shows_where_each_head_looks(page, browser):
    page("#layer=1")
    pieces = browser.all("#query button")
    everything = coloured(browser)
    browser.point_at(pieces[2])
    browser.wait(lambda _: "on" in pieces[2].get_attribute("class").split())
    assert first_column(browser) == expected_column("cross", 1, 2)
    browser.wait(lambda _: coloured(browser) < everything / 2)
    browser.point_at(browser.one("h1"))
    browser.wait(lambda _: coloured(browser) > everything * 0.9)
    assert browser.all(".pieces .on") == []


def test_a_click_in_the_figure_keeps_a_piece_and_escape_releases_it(page, browser):
    page()
    canvas = browser.one("#figure canvas")
    size = canvas.size
    # The first column of pieces, at the upper edge.
    for at in range(-size["width"] // 2 + 5, 0, 8):
        ActionChains(browser.driver).move_to_element_with_offset(
            canvas, at, -size["height"] // 2 + 30
        ).perform()
        if browser.all("#query .on"):
            break
    assert browser.texts("#query .on") == ["Zwei"]
    ActionChains(browser.driver).click().perform()
    browser.wait(lambda _: browser.all("#query [aria-pressed=true]"))
    browser.point_at(browser.one("h1"))
    assert browser.texts("#query .on") == ["Zwei"]
    browser.press(Keys.ESCAPE)
    browser.wait(lambda _: browser.all(".pieces .on") == [])


def test_the_keyboard_reaches_pieces_and_a_screen_reader_is_told(page, browser):
    page("#attention=decoder&layer=2")
    assert browser.texts("#key button")[:2] == ["<start>", "Zwei"]
    browser.driver.execute_script("document.querySelector('#query button').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.texts("#query .on") == [browser.texts("#query button")[2]]
    spoken = browser.one("#spoken").get_attribute("textContent")
    for head, best in enumerate(expected_column("decoder", 2, 2), start=1):
        assert f"head {head}: {best}" in spoken
    browser.press(Keys.END)
    assert browser.texts("#query .on") == ["<end>"]
    browser.press(Keys.TAB)
    assert browser.texts("#key .on") == ["<start>"]
    assert "is attended to by" in browser.one("#table caption").text


def test_layers_candidates_and_attentions_change_what_is_shown(page, browser):
    page()
    for layer in (1, 3):
        after(browser, browser.all("input[name=layer]")[layer - 1].click)
        assert first_column(browser) == expected_column("cross", layer, 0)
    after(browser, browser.all("input[name=alternative]")[1].click)
    assert browser.texts("#query button")[-4:-2] == ["·se", "gehen"]
    after(browser, browser.one("input[value=encoder]").click)
    assert browser.texts("#query button")[0] == "Two"
    after(browser, browser.all("input[name=layer]")[LAYERS].click)
    assert f"layer {LAYERS + 1} of {LAYERS + 1}" in browser.one("#caption").text
    after(browser, browser.one("input[value=cross]").click)  # has one layer less
    assert f"layer {LAYERS} of {LAYERS}" in browser.one("#caption").text


def test_a_link_opens_the_same_view(page, browser):
    page()
    browser.all("#sentence option")[1].click()
    after(browser, browser.one("input[value=heat_map]").click)
    after(browser, browser.all("input[name=layer]")[1].click)
    after(browser, browser.all("#heads [data-head]")[2].click)
    caption = browser.one("#caption").text
    assert re.search(r"layer 2 .* head 3\b.*rows", caption)
    page(browser.run("location.hash"))
    assert (browser.one("#caption").text, browser.one("#source").text) == (
        caption,
        LONG,
    )
    page("#sentence=9&layer=0&heads=7,x&view=pie&attention=__proto__")
    found = browser.one("#caption").text
    assert f"layer {LAYERS} of {LAYERS}, all {HEADS} heads" in found


@pytest.mark.parametrize(
    ("fragment", "width", "scheme"),
    [
        ("#sentence=1&view=lines", 1200, "dark"),
        ("#sentence=2&view=lines", 360, "light"),
        ("#sentence=2&view=heat_map", 1200, "light"),
        ("#sentence=1&view=heat_map", 360, "dark"),
    ],
)
def test_nothing_runs_out_of_the_window(page, browser, fragment, width, scheme):
    with browser.seen_by(scheme=scheme, width=width):
        page(fragment)
        assert coloured(browser) > 300
        assert browser.run("document.documentElement.scrollWidth") <= width
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        lightness = sum(json.loads(f"[{paper[4:-1]}]")) / 3
        assert (lightness < 60) == (scheme == "dark")


def test_another_scheme_draws_the_figure_again(page, browser):
    with browser.seen_by(scheme="light"):
        page()
        marked = "document.querySelector('#figure canvas').dataset.marked"
        browser.driver.execute_script(f"{marked} = 'yes'")
    with browser.seen_by(scheme="dark"):
        browser.wait(lambda _: browser.run(marked) is None)
        assert coloured(browser) > 300
