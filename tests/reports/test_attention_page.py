"""The attention page in a real browser, from the disk, by mouse and keyboard."""

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_data import LEVELS, matrix_of

from .synthetic_attention import HEADS, LAYERS, attended

pytestmark = pytest.mark.slow

FOUND = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim", "Füchse wandern heim")
LONG = " ".join(f"word{n}" if n % 3 else "a" for n in range(44))  # 60 pieces or so
SENTENCES = [
    attended("Two foxes wander home", *FOUND),
    attended(LONG, LONG),
    attended("<b>", "<i>& x"),
]


@pytest.fixture
def page(browser, tmp_path):
    """Open the page with a hash."""
    AttentionView(SENTENCES).save(tmp_path / "attention.html")
    return lambda fragment="": browser.open(tmp_path / "attention.html", fragment)


def click(browser, selector: str, at: int = 0) -> None:
    """Click, and wait until what that changes is on the screen."""
    turn = "document.documentElement.dataset.shown"
    before = browser.run(turn)
    browser.all(selector)[at].click()
    browser.wait(lambda _: browser.run(turn) != before)


def require_column(browser, kind: str, layer: int, query: int) -> list[str]:
    """Require that the table says of each head: the largest weight, and its piece."""
    matrix = matrix_of(SENTENCES[0].alternatives[0].attention, kind, layer)
    weights = np.rint(matrix.weights[:, query] * LEVELS) / LEVELS
    best = [f"{matrix.keys[row.argmax()]} {100 * row.max():.0f} %" for row in weights]
    cells = browser.texts("#table tr td:nth-of-type(1)")
    assert [text.replace("\n", " ") for text in cells] == best
    return best


def coloured(browser) -> int:
    """How many pixels of the figure are coloured."""
    return browser.driver.execute_script("""
        const shown = document.querySelector("#figure canvas");
        const copy = new OffscreenCanvas(shown.width, shown.height).getContext("2d");
        copy.drawImage(shown, 0, 0);
        const { data } = copy.getImageData(0, 0, shown.width, shown.height);
        let count = 0;
        for (let at = 0; at < data.length; at += 4) {
          const [r, g, b, a] = data.slice(at, at + 4);
          if (a > 8 && Math.max(r, g, b) - Math.min(r, g, b) > 20) count += 1;
        }
        return count;""")


def test_pieces_are_pointed_at_by_mouse_and_keyboard(page, browser):
    page("#layer=1")
    pieces, heading = browser.all("#query button"), browser.one("h1")
    everything = coloured(browser)
    browser.point_at(pieces[2])
    browser.wait(lambda _: browser.texts("#query .on") == [pieces[2].text])
    best = require_column(browser, "cross", 1, 2)
    browser.wait(lambda _: coloured(browser) < everything / 2)
    browser.point_at(heading)
    browser.wait(lambda _: coloured(browser) > everything * 0.9)
    assert browser.all(".pieces .on") == []

    canvas, mouse = browser.one("#figure canvas"), ActionChains(browser.driver)
    left, top = (-canvas.size[side] // 2 for side in ("width", "height"))
    mouse.move_to_element_with_offset(canvas, left + 15, top + 30)  # beside the text
    mouse.click().perform()
    browser.wait(lambda _: browser.all("#query [aria-pressed=true]"))
    browser.point_at(heading)
    assert browser.texts("#query .on") == ["Zwei"]
    browser.press(Keys.ESCAPE)
    browser.wait(lambda _: browser.all(".pieces .on") == [])

    browser.driver.execute_script("document.querySelector('#query button').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.texts("#query .on") == [pieces[2].text]
    heads = [f"head {head}: {each}" for head, each in enumerate(best, start=1)]
    assert browser.read("#spoken")[0].endswith(", ".join(heads))
    browser.press(Keys.END, Keys.TAB)
    assert browser.texts("#key .on") == ["Two"]
    assert "is attended to by" in browser.one("#table caption").text


def test_choices_change_what_is_shown_and_a_link_keeps_them(page, browser):
    page()
    found = browser.texts("#alternatives label > span:nth-child(2)")
    assert found == [*FOUND[:2], f"Zwei {FOUND[2]}"]  # with what the best one has more
    assert browser.texts("#alternatives :is(ins, del)") == ["gehen", "Zwei"]
    numbers = browser.texts("#alternatives .numbers")
    assert numbers[0] == "score \u22120.50 · log P \u22121.50 · 7 pieces"
    everything = coloured(browser)
    click(browser, "[data-head]", 1)
    one = coloured(browser)
    click(browser, "[data-head]", 3)
    assert "heads 2, 4:" in browser.one("#caption").text
    assert 0 < one < coloured(browser) < everything
    click(browser, "#all")
    assert coloured(browser) == pytest.approx(everything, rel=0.01)
    for kind, layer in (("decoder", 1), ("encoder", LAYERS + 1)):
        click(browser, f"input[value={kind}]")
        click(browser, "input[name=layer]", layer - 1)
        require_column(browser, kind, layer, 0)
    click(browser, "input[value=cross]")  # which has one layer less
    require_column(browser, "cross", LAYERS, 0)
    click(browser, "input[name=alternative]", 1)
    click(browser, "input[value=heat_map]")
    several = browser.one("#figure canvas").size["width"]
    click(browser, "[data-head]", 2)
    assert 0 < browser.one("#figure canvas").size["width"] < several
    assert coloured(browser) > 500
    caption = browser.one("#caption").text
    assert f"layer {LAYERS} of {LAYERS}, head 3: the translation (rows)" in caption

    page(browser.run("location.hash"))
    assert browser.one("#caption").text == caption
    assert browser.texts("#query button")[-4:-2] == ["·se", "gehen"]
    page("#sentence=9&layer=0&heads=7,x&view=pie&attention=__proto__")
    found = browser.one("#caption").text
    assert f"layer {LAYERS} of {LAYERS}, all {HEADS} heads" in found
    page("#sentence=3")
    assert browser.one("#source").text == "<b>"
    assert browser.all("main b, main i") == []


@pytest.mark.parametrize(
    ("fragment", "width", "scheme", "other"),
    [
        ("#sentence=2&view=lines", 360, "light", "dark"),
        ("#sentence=1&view=heat_map", 360, "dark", "light"),
    ],
)
def test_nothing_runs_out_of_the_window(page, browser, fragment, width, scheme, other):
    with browser.seen_by(scheme=scheme, width=width):
        page(fragment)
        assert coloured(browser) > 300
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.driver.execute_script("document.querySelector('canvas').id = 'old'")
    with browser.seen_by(scheme=other, width=width):  # another scheme draws again
        browser.wait(lambda _: not browser.all("#old"))
        assert coloured(browser) > 300
