"""The page in a real browser, by keyboard and mouse."""

import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests import browser as chromium

from .conftest import ENCODER_LAYERS, EXAMPLES, HEADS, LAYERS, reverse, tokens, weights

driver = chromium.driver
SENTENCE = "Yesterday the teacher gave the children two extraordinary books"
MARKUP = "<i>x x>i<"  # also when words are reversed

pytestmark = pytest.mark.slow


class Browser(chromium.Browser):
    def __init__(self, driver, address) -> None:
        super().__init__(driver)
        driver.get("http://{}:{}/".format(*address))
        self.wait(lambda _: driver.title == "English to German")

    def choose(self, selector: str, value: str) -> None:
        Select(self.all(selector)[0]).select_by_value(value)

    def translate(self, text: str) -> None:
        self.press(text)
        self.send()
        self.until_shown(reverse(text))

    def send(self) -> None:
        chord = ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER)
        chord.key_up(Keys.CONTROL).perform()

    def until_shown(self, translation: str) -> None:
        shown = ["", "", translation]
        self.wait(lambda _: self.read("#status, #error, #translation") == shown)


@pytest.fixture
def browser(driver, serve):
    return Browser(driver, serve().address)


def test_the_keyboard_alone_gets_a_translation_and_its_attention(browser):
    browser.translate(SENTENCE)  # the focus is in the text
    names = [token.replace("\u2581", "") for token in tokens(reverse(SENTENCE))]
    assert browser.read("#tokens label") == [*names[:-1], "end"]
    assert browser.read("#heads b") == [f"Head {n + 1}" for n in range(HEADS)]
    before = browser.read("#heads span")
    radios = browser.all("#tokens input")
    for _ in range(10):
        browser.press(Keys.TAB)
        if browser.driver.switch_to.active_element == radios[0]:
            break
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.driver.switch_to.active_element == radios[2]
    assert browser.read("#heads span") != before
    assert browser.driver.get_log("browser") == []  # such as of a blocked style


def test_attention_is_shown_of_the_chosen_token_layer_kind_and_candidate(browser):
    browser.translate(SENTENCE)
    browser.point_at(browser.all("#tokens label")[2])
    browser.wait(lambda _: browser.all("#tokens input")[2].is_selected())
    first = "#heads li:first-child mark"
    colours = browser.read(first, "getComputedStyle(each).backgroundColor")
    alphas = [float(re.findall(r"[\d.]+", f"{colour} 1")[3]) for colour in colours]
    expected = weights(len(tokens(reverse(SENTENCE))), len(tokens(SENTENCE)))[:, 0, 2]
    assert alphas == pytest.approx(expected[LAYERS - 1], abs=0.005)
    browser.choose("#layer", "0")
    titles = browser.read(first, "each.title")
    percents = [f"{round(100 * float(weight))} %" for weight in expected[0]]
    assert [title.rpartition(": ")[2] for title in titles] == percents
    browser.choose("#layer", f"{LAYERS - 1}")
    browser.choose("#kind", "encoder")
    assert len(browser.all("#tokens label")) == len(tokens(SENTENCE))
    assert browser.read("#layer option") == [f"{n + 1}" for n in range(ENCODER_LAYERS)]
    browser.choose("#kind", "decoder")
    assert browser.read("#layer option") == [f"{n + 1}" for n in range(LAYERS)]
    assert browser.read(first)[0] == "start"
    browser.choose("#candidates", f"{reverse(SENTENCE)}!")
    browser.until_shown(f"{reverse(SENTENCE)}!")


def test_a_tag_begins_the_text_that_is_translated_and_attended_to(driver, serve):
    browser = Browser(driver, serve(tags=[">>de<<", ">>fr<<"]).address)
    browser.press("two dogs")
    browser.choose("#tag", ">>fr<<")
    browser.all("#form button")[0].click()
    browser.until_shown(reverse(">>fr<<two dogs"))
    browser.choose("#kind", "encoder")
    assert browser.read("#tokens label") == [">>f", "r<<two", "dogs", "end"]


def test_an_error_is_shown_and_markup_is_text(browser):
    browser.press("w " * 51)
    browser.send()
    error = ["Failed: the sentence has 51 tokens, more than 50."]
    browser.wait(lambda _: browser.read("#error") == error)
    browser.all("#text")[0].send_keys(Keys.CONTROL, "a")
    browser.translate(MARKUP)
    assert browser.all("main i") == []


def test_enter_makes_a_new_line_and_examples_and_copies_take_a_click(browser):
    browser.press("a", Keys.ENTER, "b")
    assert browser.read("#text", "each.value") == ["a\nb"]
    browser.send()
    browser.until_shown("a b")
    assert browser.read("#examples button") == EXAMPLES
    browser.all("#examples button")[1].click()
    browser.until_shown(reverse(EXAMPLES[1]))
    browser.all("#copy")[0].click()
    browser.wait(lambda _: browser.read("#copied") == ["copied"])
    browser.all("#text")[0].send_keys(Keys.CONTROL, "a")
    browser.all("#text")[0].send_keys(Keys.CONTROL, "v")
    assert browser.read("#text", "each.value") == [reverse(EXAMPLES[1])]


def test_a_translation_without_attention_is_shown(browser):
    text = "\n".join(["w " * 25] * 6).strip()
    browser.driver.execute_script(
        "document.getElementById('text').value = arguments[0]", text
    )
    browser.all("#text")[0].click()
    browser.send()
    browser.wait(lambda _: "128 pieces" in browser.read("#unshown")[0])
    assert not browser.all("#attention")[0].is_displayed()


@pytest.mark.parametrize("text", [SENTENCE, "x" * 100])
def test_nothing_runs_out_of_a_narrow_window(browser, text):
    with browser.seen_by(width=320):
        browser.translate(text)
        assert browser.read("html", "each.scrollWidth - each.clientWidth") == [0]
