"""Chromium for tests of pages; a test that needs it skips where it is not installed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="session")
def driver(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "headless=new", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", "window-size=1200,900",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
        *(["no-sandbox"] if os.geteuid() == 0 else []),
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    with webdriver.Chrome(options, Service(CHROMEDRIVER)) as started:
        yield started


class Browser:
    """A page in Chromium, and what a person does with it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.wait = WebDriverWait(driver, 30, 0.05).until

    def run(self, expression: str):
        return self.driver.execute_script(f"return {expression}")

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def read(self, selector: str, value: str = "each.textContent") -> list:
        """Evaluate an expression for all elements in one go, whatever events do."""
        elements = f"[...document.querySelectorAll('{selector}')]"
        return self.run(f"{elements}.map((each) => {value})")

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
