"""A real browser: Debian's Chromium, headless, driven through chromedriver by selenium."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlparse

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1300,1000",
]  # fmt: skip


class Browser:
    """What the tests ask of a browser; `driver` is selenium's."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url: str, dark: bool = False) -> None:
        """Open a page, forgetting what was logged before."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")  # what the page before has to say on leaving belongs to it
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(url)

    def find(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, what: Callable[[], object], seconds: float = 40.0):
        """The first true value that `what` gives; a missing element counts as not yet."""
        from selenium.common.exceptions import WebDriverException

        deadline = time.monotonic() + seconds
        while True:
            try:
                value = what()
            except WebDriverException:
                value = None
            if value or time.monotonic() > deadline:
                assert value, f"nothing came in {seconds} s; the page says: {self.text('body')[-1500:]}"
                return value
            time.sleep(0.1)

    def errors(self) -> list[str]:
        """What scripts of the page complained about."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def hosts(self) -> set[str]:
        """The hosts that were asked for anything since the page was opened."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                parameters = message["params"]
                hosts.add(urlparse(parameters.get("url") or parameters["request"]["url"]).hostname)
        return hosts - {None, ""}


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is not installed (apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
