"""The attention page in a real browser, from the disk, by mouse and keyboard."""

import json
import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_charts import legible, looks_of

from .looks import HEADS, LAYERS, viewed

pytestmark = pytest.mark.slow

SHORT = "Two foxes wander home"
FOUND = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim", "Füchse wandern heim")
LONG = " ".join(f"word{n}" if n % 3 else "a" for n in range(44))  # 60 pieces or so


@pytest.fixture(scope="module")
def view() -> AttentionView:
    return AttentionView(
        [viewed(SHORT, *FOUND), viewed(LONG, LONG), viewed("<b>", "<i>& x")],
        "Attention of a test",
    )


@pytest.fixture(scope="module")
def path(view, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "attention.html"
    view.save(path)
    return path


@pytest.fixture
def page(browser, path):
    """Open the page: a function of the hash."""

    def open_(fragment=""):
        browser.open(path, fragment)
        return browser

    return open_


def after(browser, act) -> None:
    """Act, and wait until what that changes is on the screen."""
    turn = "document.documentElement.dataset.shown"
    before = browser.run(turn)
    act()
    browser.wait(lambda _: browser.run(turn) != before)


def table(browser) -> list[list[str]]:
    """What the table says of each head: the piece and the percentage, most first."""
    return [
        [each.replace("\n", " ") for each in browser.texts(f"{row} td")]
        for row in (f"#table tr:nth-of-type({n})" for n in range(1, HEADS + 1))
    ]


def best_of(looks, query: int) -> list[str]:
    """What the first column of the table should say."""
    weights = looks.weights[:, query]
    best = weights.argmax(axis=1)
    return [
        f"{looks.keys[key]} {100 * weights[head, key]:.0f} %"
        for head, key in enumerate(best)
    ]


def drawn(browser) -> int:
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


def test_it_opens_with_everything_to_choose(page):
    browser = page()
    assert browser.driver.title == "Attention of a test"
    found = browser.texts("#alternatives label > span:nth-child(2)")
    assert found == [*FOUND[:2], f"Zwei {FOUND[2]}"]  # with what the best one has more
    assert browser.texts("#alternatives ins") == ["gehen"]
    assert browser.texts("#alternatives del") == ["Zwei"]
    numbers = browser.texts("#alternatives .numbers")
    minus = "\u2212"
    assert numbers[0] == f"score {minus}0.50 · log P {minus}1.50 · 6 pieces"
    chosen = [each.get_attribute("value") for each in browser.all("input:checked")]
    assert chosen == ["1", "cross", str(LAYERS), "lines"]
    pressed = browser.all("#heads [data-head][aria-pressed=true]")
    assert len(pressed) == HEADS
    assert drawn(browser) > 500


def test_a_click_on_a_head_leaves_that_head(page):
    browser = page()
    everything = drawn(browser)
    heads = browser.all("#heads [data-head]")
    after(browser, heads[1].click)
    states = [each.get_attribute("aria-pressed") for each in heads]
    assert states == ["false", "true", "false", "false"]
    assert "head 2:" in browser.one("#caption").text
    one = drawn(browser)
    assert 0 < one < everything
    after(browser, heads[3].click)
    assert "heads 2, 4:" in browser.one("#caption").text
    assert drawn(browser) > one
    after(browser, browser.one("#all").click)
    assert f"all {HEADS} heads" in browser.one("#caption").text
    assert drawn(browser) == pytest.approx(everything, rel=0.01)


def test_a_piece_under_the_mouse_shows_where_each_head_looks(page, view):
    browser = page("#layer=1")
    looks = looks_of(view.viewed[0].alternatives[0].attention, "cross", 1)
    pieces = browser.all("#query button")
    assert [piece.text for piece in pieces] == looks.queries
    everything = drawn(browser)
    browser.point_at(pieces[2])
    browser.wait(lambda _: "on" in pieces[2].get_attribute("class").split())
    assert [row[0] for row in table(browser)] == best_of(looks, 2)
    browser.wait(lambda _: drawn(browser) < everything / 2)
    browser.point_at(browser.one("h1"))
    browser.wait(lambda _: drawn(browser) > everything * 0.9)
    assert browser.all(".pieces .on") == []


def test_the_mouse_in_the_figure_does_the_same(page):
    browser = page()
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


def test_the_keyboard_reaches_pieces_and_says_what_heads_see(page, view):
    browser = page("#attention=decoder&layer=2")
    looks = looks_of(view.viewed[0].alternatives[0].attention, "decoder", 2)
    assert browser.texts("#key button") == looks.keys
    browser.driver.execute_script("document.querySelector('#query button').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.texts("#query .on") == [looks.queries[2]]
    heard = browser.one("#heard").get_attribute("textContent")
    for head, best in enumerate(best_of(looks, 2), start=1):
        assert f"head {head}: {best}" in heard
    browser.press(Keys.END)
    assert browser.texts("#query .on") == ["<end>"]
    browser.press(Keys.TAB)
    assert browser.texts("#key .on") == ["<start>"]
    assert "is looked at by" in browser.one("#table caption").text


def test_layers_and_candidates_change_what_is_shown(page, view):
    browser = page()
    for layer in (1, 3):
        after(browser, browser.all("input[name=layer]")[layer - 1].click)
        looks = looks_of(view.viewed[0].alternatives[0].attention, "cross", layer)
        assert [row[0] for row in table(browser)] == best_of(looks, 0)
    after(browser, browser.all("input[name=alternative]")[1].click)
    other = view.viewed[0].alternatives[1].attention
    assert browser.texts("#query button") == legible(other.target)
    after(browser, browser.one("input[value=encoder]").click)
    assert browser.texts("#query button") == legible(other.source)


def test_heat_maps_stand_side_by_side_and_one_is_larger(page):
    browser = page()
    after(browser, browser.one("input[value=heat_map]").click)
    several = browser.one("#figure canvas").size
    assert drawn(browser) > 500
    after(browser, browser.all("#heads [data-head]")[0].click)
    assert browser.one("#figure canvas").size["width"] < several["width"]
    assert drawn(browser) > 500
    assert "rows" in browser.one("#caption").text


def test_a_link_opens_the_same_view(page):
    browser = page()
    browser.all("#sentence option")[1].click()
    after(browser, browser.one("input[value=heat_map]").click)
    after(browser, browser.all("input[name=layer]")[1].click)
    after(browser, browser.all("#heads [data-head]")[2].click)
    link = browser.run("location.hash")
    caption = browser.one("#caption").text
    assert re.search(r"head 3\b", caption)
    again = page(link)
    assert again.one("#caption").text == caption
    assert again.one("#source").text == LONG
    nonsense = page("#sentence=9&layer=0&heads=7,x&view=pie&attention=__proto__")
    assert (
        f"layer {LAYERS} of {LAYERS}, all {HEADS} heads"
        in nonsense.one("#caption").text
    )


def test_markup_is_text(page):
    browser = page("#sentence=3")
    assert browser.one("#source").text == "<b>"
    assert browser.all("main b, main i") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("sentence", [1, 2])
@pytest.mark.parametrize("kind", ["lines", "heat_map"])
def test_nothing_runs_out_of_the_window(page, kind, sentence, width, scheme, browser):
    with browser.seen_by(scheme=scheme, width=width):
        page(f"#sentence={sentence}&view={kind}")
        assert drawn(browser) > 300
        assert browser.run("document.documentElement.scrollWidth") <= width
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        lightness = sum(json.loads(f"[{paper[4:-1]}]")) / 3
        assert (lightness < 60) == (scheme == "dark")


def test_another_scheme_draws_the_figure_anew(page, browser):
    with browser.seen_by(scheme="light"):
        page()
        marked = "document.querySelector('#figure canvas').dataset.marked"
        browser.driver.execute_script(f"{marked} = 'yes'")
    with browser.seen_by(scheme="dark"):
        browser.wait(lambda _: browser.run(marked) is None)
        assert drawn(browser) > 300
