"""Chromium for pages that lie on the disk: console and network are watched."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from jaxformer.evaluation import significance

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")


@pytest.fixture(autouse=True, scope="module")
def few_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "RESAMPLES", 50)
        patch.setattr(significance, "TRIALS", 50)
        yield


class Browser:
    """A page in Chromium, and what a person does with it."""

    def __init__(self, driver) -> None:
        self.driver = driver
        self.wait = WebDriverWait(driver, 30, 0.05).until

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file, and wait until all of it is drawn."""
        self.driver.get("about:blank")  # else another fragment would load nothing
        self.driver.get(path.absolute().as_uri() + fragment)
        self.wait(lambda _: self.run("document.documentElement.dataset.drawn"))

    def run(self, expression: str):
        """The value of an expression of JavaScript."""
        return self.driver.execute_script(f"return {expression}")

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        (found,) = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def point_at(self, element) -> None:
        ActionChains(self.driver).move_to_element(element).perform()

    @contextmanager
    def seen_by(self, *, scheme: str = "light", width: int = 1200):
        """Emulate a window of that width and a user's choice of a colour scheme."""
        command = self.driver.execute_cdp_cmd
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        command("Emulation.setEmulatedMedia", {"features": media})
        command("Emulation.setDeviceMetricsOverride", size)
        yield
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})

    def requests(self) -> set[str]:
        """The URLs of all requests, besides what pages carry in themselves."""
        events = [
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")
        ]
        urls = {
            event["params"]["request"]["url"].partition("#")[0]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }
        return {url for url in urls if urlsplit(url).scheme not in ("data", "blob")}


@pytest.fixture(scope="session")
def driver(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    """Start Chromium; without it a test skips."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-dev-shm-usage", "--window-size=1200,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(argument)
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    started = webdriver.Chrome(options, Service(CHROMEDRIVER))
    yield started
    started.quit()


@pytest.fixture
def browser(driver) -> Iterator[Browser]:
    """Chromium for one test, whose pages log nothing and request only themselves."""
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")  # forget other tests
    browser = Browser(driver)
    yield browser
    assert driver.get_log("browser") == []
    requests = browser.requests() - {"about:blank"}
    assert requests
    assert all(url.startswith("file:") and url.endswith(".html") for url in requests)
