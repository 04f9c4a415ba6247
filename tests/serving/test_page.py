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
        driver.get_log("browser")  # of earlier tests
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
        if translation:
            self.wait(lambda _: self.all("#attention")[0].is_displayed())

    def focused(self):
        return self.driver.switch_to.active_element

    def tab_to(self, element) -> None:
        for _ in range(20):
            self.press(Keys.TAB)
            if self.focused() == element:
                return
        raise AssertionError("the keyboard does not get there")


@pytest.fixture
def browser(driver, serve):
    return Browser(driver, serve().address)


def test_the_keyboard_alone_gets_a_translation_and_its_attention(browser):
    browser.translate(SENTENCE)  # the focus is in the text
    browser.tab_to(browser.all("#copy")[0])
    names = [token.replace("\u2581", "") for token in tokens(reverse(SENTENCE))]
    assert browser.read("#tokens label") == [*names[:-1], "end"]
    assert browser.read("#heads b") == [f"Head {n + 1}" for n in range(HEADS)]
    before = browser.read("#heads span")
    radios = browser.all("#tokens input")
    browser.tab_to(radios[0])
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.focused() == radios[2]
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
    browser.all("#alternatives label")[1].click()
    browser.until_shown(f"{reverse(SENTENCE)}!")


def test_a_tag_begins_the_text_that_is_translated_and_attended_to(driver, serve):
    browser = Browser(driver, serve(tags=[">>de<<", ">>fr<<"]).address)
    browser.press("two dogs")
    browser.choose("#tag", ">>fr<<")
    browser.all("#form .main")[0].click()
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
    browser.all("#text")[0].send_keys(Keys.CONTROL, "a")
    browser.press(Keys.BACKSPACE)  # no text has no translation
    browser.until_shown("")
    assert not browser.all("#answer")[0].is_displayed()
    assert not browser.all("#sentence")[0].is_displayed()


def test_a_translator_is_told_what_the_start_means_for_a_text(driver, start):
    server = start()
    server.translator.more.clear()
    browser = Browser(driver, server.address)
    browser.wait(lambda _: browser.read("#progress") == ["starting; please wait"])
    server.until_ready()
    said = ["just started: short texts are translated at once, long ones take longer"]
    browser.wait(lambda _: browser.read("#progress") == said)
    server.translator.more.set()
    browser.wait(lambda _: browser.read("#progress") == [""])


def test_enter_makes_a_new_line_and_examples_and_copies_take_a_click(browser):
    browser.press("a", Keys.ENTER, "b")
    assert browser.read("#text", "each.value") == ["a\nb"]
    browser.send()
    browser.until_shown("a\nb")
    assert browser.read("#examples button") == EXAMPLES
    browser.all("#examples button")[1].click()
    browser.until_shown(reverse(EXAMPLES[1]))
    browser.all("#copy")[0].click()
    browser.wait(lambda _: browser.read("#copied") == ["copied"])
    browser.all("#text")[0].send_keys(Keys.CONTROL, "a")
    browser.all("#text")[0].send_keys(Keys.CONTROL, "v")
    assert browser.read("#text", "each.value") == [reverse(EXAMPLES[1])]


TEXT = "ab cd. The extraordinary teacher\ngh"
PARTS = ["ab cd.", "The extraordinary teacher", "gh"]


def test_sentences_are_linked_by_mouse_and_keyboard_and_have_alternatives(browser):
    browser.press(TEXT)
    browser.send()
    translation = "\n".join([" ".join(map(reverse, PARTS[:2])), "hg"])
    browser.until_shown(translation)
    nodes = browser.all("#translation [role=button]")
    assert [node.text for node in nodes] == [reverse(each) for each in PARTS]
    linked = "#mirror .linked, #translation .linked"
    for number, source in enumerate(PARTS):
        browser.point_at(nodes[number])
        assert browser.read(linked) == [source, reverse(source)]
    browser.point_at(browser.all("#mirror span")[1])  # the text box is above it
    assert browser.read(linked) == [PARTS[1], reverse(PARTS[1])]
    browser.point_at(browser.all("#direction")[0])
    assert browser.read(linked) == []
    browser.press(Keys.HOME)  # of the last line of the text
    assert browser.read(linked) == ["gh", "hg"]
    browser.tab_to(nodes[0])
    browser.press(Keys.ARROW_RIGHT)
    assert browser.read(linked) == [PARTS[1], reverse(PARTS[1])]
    browser.press(Keys.ENTER)
    assert browser.read("[aria-pressed=true]") == [reverse(PARTS[1])]
    browser.tab_to(browser.all("#alternatives input")[0])
    browser.press(Keys.ARROW_DOWN)
    browser.until_shown(translation.replace("\n", "!\n"))
    names = [
        token.replace("\u2581", "") for token in tokens("ehT yranidroartxe rehcaet!")
    ]
    browser.wait(lambda _: browser.read("#tokens label") == [*names[:-1], "end"])
    browser.all("#text")[0].send_keys("x")  # another text: nothing is linked to it
    assert browser.all("#mirror span") == []
    assert browser.driver.get_log("browser") == []


def test_words_are_shaded_by_their_probability(browser):
    browser.translate("ab extraordinary cd")
    words = "#translation .word"
    browser.wait(lambda _: browser.all(words))
    # Pieces have 1, 1/2, 1/3 and 1/4; the second word has two of them.
    titles = ["ba: 100 %", "yranidroartxe: 17 %", "dc: 25 %"]
    assert browser.read(words, "each.title") == titles
    background = "getComputedStyle(each).backgroundColor"
    clear, dark, lighter = browser.read(words, background)
    assert clear == "rgba(0, 0, 0, 0)"
    assert float(dark.split()[-1][:-1]) > float(lighter.split()[-1][:-1]) > 0.7
    browser.all("#shade")[0].click()
    assert {*browser.read(words, background)} == {clear}


def test_the_box_grows_with_the_text_and_a_long_one_says_why_there_is_no_attention(
    browser,
):
    height = "each.clientHeight"
    (before,) = browser.read("#text", height)
    browser.driver.execute_script("about.pair_tokens = 20")
    text = " ".join(["word"] * 50)
    browser.press(text)
    browser.send()
    said = "Attention is shown of up to 20 pieces; this sentence has more."
    browser.wait(lambda _: browser.read("#unshown") == [said])
    assert not browser.all("#attention")[0].is_displayed()
    assert browser.read("#translation") == [reverse(text)]
    browser.all("#text")[0].send_keys("\n" * 20)
    (after,) = browser.read("#text", height)
    assert after > 2 * before
    assert browser.read("#text", "each.scrollHeight - each.clientHeight") == [0]
    assert browser.driver.get_log("browser") == []


@pytest.mark.parametrize(
    ("width", "scheme", "text"),
    [(320, "light", "x" * 100), (390, "dark", SENTENCE), (1280, "dark", SENTENCE)],
)
def test_two_panes_are_beside_or_below_each_other_in_every_window(
    browser, width, scheme, text
):
    with browser.seen_by(width=width, scheme=scheme):
        browser.translate(text)
        assert browser.read("html", "each.scrollWidth - each.clientWidth") == [0]
        left, right = browser.read(".pane", "each.getBoundingClientRect().top")
        assert (left == right) == (width == 1280)
        (ink,) = browser.read("#translation", "getComputedStyle(each).color")
        assert (int(re.findall(r"\d+", ink)[0]) > 200) == (scheme == "dark")
