"""A real browser: Debian's Chromium, headless, driven through chromedriver by selenium."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlparse

import pytest

from arcnb.errors import ArcnbError
from tests.paths import tooling

gallery = tooling("gallery")


class Browser:
    """What the tests ask of a browser; `driver` is selenium's."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url: str, dark: bool = False, width: int = 1300, printed: bool = False) -> None:
        """Open a page in a window of that width, or laid out for paper, forgetting what was logged before."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = {"media": "print" if printed else "screen", "features": [scheme]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        gallery.resize(self.driver, width, 1000)
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


@pytest.fixture(autouse=True)
def _the_driver_lives(request):
    """Says so where chromedriver ended by itself, which selenium calls a refused connection."""
    yield
    if "browser" in request.fixturenames:
        code = request.getfixturevalue("browser").driver.service.process.poll()
        assert code is None, f"chromedriver ended by itself, with exit code {code}, in this test or before it"


@pytest.fixture(scope="module")  # an idle driver did not outlive a quarter of an hour of other tests
def browser(tmp_path_factory) -> Iterator[Browser]:
    try:
        with gallery.chromium(tmp_path_factory.mktemp("profile"), log=True) as driver:
            yield Browser(driver)
    except ArcnbError as error:
        pytest.skip(str(error))
