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
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from jaxformer.evaluation import significance

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")


@pytest.fixture(autouse=True, scope="module")
def few_resamples() -> Iterator[None]:
    """Keep the statistics of small texts quick."""
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

    def point_at(self, element) -> None:
        """Move the mouse over an element."""
        ActionChains(self.driver).move_to_element(element).perform()

    def run(self, script: str):
        """The value of an expression of JavaScript."""
        return self.driver.execute_script(f"return {script}")

    @contextmanager
    def seen_by(self, *, scheme: str = "light", width: int = 1200, height: int = 900):
        """Emulate a window of that size, of somebody who likes that scheme."""
        command = self.driver.execute_cdp_cmd
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        command("Emulation.setEmulatedMedia", {"features": media})
        command("Emulation.setDeviceMetricsOverride", {**size, "mobile": False})
        yield
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})

    def complaints(self) -> list[str]:
        """What the console has said since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def asked_for(self) -> set[str]:
        """What the pages have asked for, besides what they carry in themselves."""
        sent = [
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")
        ]
        urls = {
            event["params"]["request"]["url"].partition("#")[0]
            for event in sent
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
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    started = webdriver.Chrome(options, Driver(CHROMEDRIVER))
    yield started
    started.quit()


@pytest.fixture
def browser(driver) -> Iterator[Browser]:
    """Chromium as a test opens pages in it; these may ask for no file but themselves.

    After the test neither the console may have spoken nor a host have been asked.
    """
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")  # forget other tests
    browser = Browser(driver)
    yield browser
    assert browser.complaints() == []
    asked = browser.asked_for() - {"about:blank"}
    assert asked
    assert {urlsplit(url).scheme for url in asked} == {"file"}
    assert all(url.endswith(".html") for url in asked)
