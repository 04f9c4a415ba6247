"""Chromium for pages that lie on the disk: console and network are watched."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser as chromium

driver = chromium.driver


class Browser(chromium.Browser):
    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file, and wait until all of it is drawn."""
        self.driver.get("about:blank")  # else another fragment would load nothing
        self.driver.get(path.absolute().as_uri() + fragment)
        self.wait(lambda _: self.run("document.documentElement.dataset.drawn"))

    def one(self, selector: str):
        (found,) = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]


@pytest.fixture
def browser(driver) -> Iterator[Browser]:
    """Chromium for one test, whose pages log nothing and request only themselves."""
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")  # forget other tests
    yield Browser(driver)
    assert driver.get_log("browser") == []
    logged = [json.loads(each["message"]) for each in driver.get_log("performance")]
    urls = [
        each["message"]["params"]["request"]["url"].partition("#")[0]
        for each in logged
        if each["message"]["method"] == "Network.requestWillBeSent"
    ]
    loaded = [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]
    assert loaded
    assert all(url.startswith("file:") and url.endswith(".html") for url in loaded)
