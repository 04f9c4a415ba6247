"""The page in a real browser, by keyboard and mouse, with the network watched."""

import json
import os
import re
import shutil
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from .conftest import HEADS, LAYERS, pieces, turned, weights

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
SENTENCE = "Yesterday the teacher gave the children two extraordinary books"
LONG = " ".join(f"word{n}" for n in range(40))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and CHROMEDRIVER), reason="needs chromium and chromedriver"
    ),
]


class Browser:
    """A page in Chromium, and what a person does with it."""

    def __init__(self, driver, server) -> None:
        self.driver, self.server = driver, server
        self.wait = WebDriverWait(driver, 20, 0.05).until
        driver.get(server.url)
        self.wait(lambda _: "German" in driver.title)

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        (found,) = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]

    def press(self, *keys: str) -> None:
        """Press keys where the focus is, as a keyboard would."""
        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self):
        return self.driver.switch_to.active_element

    def until_shown(self, translation: str) -> None:
        self.wait(lambda _: self.one("#translation").text == translation)
        self.wait(lambda _: self.one("#attention").is_displayed())
        self.wait(lambda _: self.one("#status").text == "")

    def read(self, property: str, selector: str) -> str:
        """A computed style."""
        return self.one(selector).value_of_css_property(property)

    def run(self, script: str):
        return self.driver.execute_script(f"return {script}")

    def complaints(self) -> list[str]:
        """What the console has said."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def hosts(self) -> set[str]:
        """Whom the page has asked for anything."""
        sent = [
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")
        ]
        urls = [
            urlsplit(event["params"]["request"]["url"])
            for event in sent
            if event["method"] == "Network.requestWillBeSent"
        ]
        return {url.netloc for url in urls if url.scheme != "data"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-dev-shm-usage", "--window-size=1000,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    started = webdriver.Chrome(options, Driver(CHROMEDRIVER))
    yield started
    started.quit()


@pytest.fixture
def browser(driver, serve):
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")  # forget other tests
    server = serve(max_request_bytes=10_000)
    browser = Browser(driver, server)
    yield browser
    assert browser.hosts() == {urlsplit(server.url).netloc}


def test_the_keyboard_alone_gets_a_translation_and_its_attention(browser):
    assert browser.focused == browser.one("textarea")
    browser.press(SENTENCE, Keys.ENTER)
    browser.until_shown(turned(SENTENCE))
    names = [piece.replace("\u2581", "") for piece in pieces(turned(SENTENCE))]
    assert browser.texts("#pieces button") == [*names[:-1], "end"]
    assert browser.texts("#heads h3")[0].startswith("Head 1")
    assert len(browser.all("#heads li")) == HEADS

    stops = []
    while not stops or browser.focused not in browser.all("#pieces button"):
        browser.press(Keys.TAB)
        stops.append(browser.focused.tag_name)
        assert len(stops) < 10, stops
    before = browser.one("#heads li:first-child p").get_attribute("innerHTML")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    pressed = browser.one("#pieces button[aria-pressed=true]")
    assert pressed == browser.focused == browser.all("#pieces button")[2]
    assert browser.one("#heads li:first-child p").get_attribute("innerHTML") != before
    browser.press(Keys.END)
    assert browser.focused.text == "end"
    browser.press(Keys.HOME)
    assert browser.focused == browser.all("#pieces button")[0]
    assert browser.complaints() == []


def test_pointing_at_a_piece_shows_where_each_head_looks(browser):
    browser.press(SENTENCE, Keys.ENTER)
    browser.until_shown(turned(SENTENCE))
    third = browser.all("#pieces button")[2]
    ActionChains(browser.driver).move_to_element(third).perform()
    assert third.get_attribute("aria-pressed") == "true"
    shown = browser.all("#heads li:first-child i")
    assert len(shown) == len(pieces(SENTENCE))
    expected = weights(len(pieces(turned(SENTENCE))), len(shown))[-1, 0, 2]
    colours = [each.value_of_css_property("background-color") for each in shown]
    alphas = [[float(n) for n in re.findall(r"[\d.]+", each)][3:] for each in colours]
    assert [alpha[0] if alpha else 1.0 for alpha in alphas] == pytest.approx(
        expected, abs=0.005
    )
    percents = [each.get_attribute("title").rpartition(": ")[2] for each in shown]
    assert percents == [f"{round(100 * float(weight))} %" for weight in expected]
    best = int(expected.argmax())
    summary = browser.one("#heads li:first-child p").get_attribute("aria-label")
    assert summary.startswith(f"{shown[best].text} {percents[best]}, ")


def test_layers_and_kinds_of_attention_can_be_chosen(browser):
    browser.press(SENTENCE, Keys.ENTER)
    browser.until_shown(turned(SENTENCE))
    layers = browser.all("input[name=layer]")
    assert [layer.is_selected() for layer in layers] == [False] * (LAYERS - 1) + [True]
    cards = browser.one("#heads").get_attribute("innerHTML")
    layers[0].click()
    assert browser.one("#heads").get_attribute("innerHTML") != cards
    browser.one("input[value=encoder]").click()
    assert len(browser.all("#pieces button")) == len(pieces(SENTENCE))
    browser.one("input[value=decoder]").click()
    first = browser.all("#heads li:first-child i")
    assert first[0].text == "start"
    assert len(first) == len(pieces(turned(SENTENCE)))


def test_another_candidate_can_be_looked_at(browser):
    browser.press("ab cd", Keys.ENTER)
    browser.until_shown("ba dc")
    browser.one("summary").click()
    candidates = browser.all("#candidates input")
    assert len(candidates) == 3
    candidates[1].click()
    browser.until_shown("ba dc!")
    assert browser.texts("#pieces button") == ["ba", "dc!", "end"]


def test_an_error_is_shown_and_goes_away(browser):
    browser.press("w " * 51, Keys.ENTER)
    browser.wait(lambda _: browser.one("#error").is_displayed())
    assert browser.one("#error").text == ("The sentence has 51 pieces, more than 50.")
    assert [each for each in browser.complaints() if "400" not in each] == []
    browser.one("textarea").click()
    browser.one("textarea").send_keys(Keys.CONTROL, "a")
    browser.press("ab", Keys.ENTER)
    browser.until_shown("ba")
    assert not browser.one("#error").is_displayed()


def test_markup_in_a_sentence_is_text(browser):
    browser.press("<img src=x onerror=alert(1)> <b>", Keys.ENTER)
    browser.until_shown(turned("<img src=x onerror=alert(1)> <b>"))
    assert browser.all("main img, main b") == []
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1000])
@pytest.mark.parametrize("text", ["ab", SENTENCE, LONG, "x" * 300])
def test_it_is_readable_whatever_the_width_and_the_length(browser, text, width, scheme):
    """Nothing overlaps or runs out of the window, and contrasts are WCAG's."""
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    command = browser.driver.execute_cdp_cmd
    command("Emulation.setEmulatedMedia", {"features": media})
    command(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        browser.press(text, Keys.ENTER)
        browser.until_shown(turned(text))
        browser.one("summary").click()
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OVERLAPS) == []
        assert browser.run(FAINT) == []
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})


# Pairs of boxes that overlap though neither is inside the other.
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll(
    "h1, h2, h3, label, textarea, button, summary, legend, .hint, #translation, li"
  )].filter((each) => each.checkVisibility());
  const overlap = (a, b) => {
    const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    return Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
      && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1;
  };
  return boxes.flatMap((a, at) => boxes.slice(at + 1)
    .filter((b) => !a.contains(b) && !b.contains(a) && overlap(a, b))
    .map((b) => [a.outerHTML, b.outerHTML]));
})()"""

# Texts whose contrast with what is behind them is below 4.5, as WCAG 2 counts it.
FAINT = """(() => {
  const numbers = (color) => {
    const found = color.match(/[\\d.]+/g).map(Number);
    return found.length > 3 ? found : [...found, 1];
  };
  const over = (front, back) => [0, 1, 2].map(
    (at) => front[at] * front[3] + back[at] * (1 - front[3]));
  const behind = (element) => element === null ? [255, 255, 255] : over(
    numbers(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  const luminance = (color) => color.slice(0, 3)
    .map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility()
      && [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((each) => {
      const tones = [numbers(getComputedStyle(each).color), behind(each)]
        .map(luminance).sort((a, b) => b - a);
      return [each.outerHTML, (tones[0] + 0.05) / (tones[1] + 0.05)];
    })
    .filter(([, contrast]) => contrast < 4.5);
})()"""
