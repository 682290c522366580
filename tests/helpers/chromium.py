"""A headless browser, driven by selenium."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.helpers.patience import PATIENCE
from tests.helpers.programs import find_programs

__all__ = ["Chromium", "Keys", "chromium"]

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # its own needs rights that containers lack
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--no-proxy-server",
)


class Chromium:
    """One window.

    Args:
        driver: What drives it.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def run(self, script: str, *args: Any) -> Any:
        """Return what a script of one expression gives."""
        return self.driver.execute_script(f"return {script}", *args)

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of all elements of a CSS selector, as it is shown."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return "\n".join(element.text for element in found)

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return what a condition says, once that is true."""
        give_up_at = time.monotonic() + PATIENCE
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                continue
            assert time.monotonic() < give_up_at, f"never: {what}: {self.text('body')}"
            time.sleep(0.02)

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Make the window as large, and prefer light or dark."""
        size = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": False,
        }
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [scheme]}
        )

    def complaints(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Start a browser; skip the test if there is none."""
    browser, driver_path = find_programs("chromium", "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(driver_path)
    driver = webdriver.Chrome(options, service)
    processes = psutil.Process(service.process.pid).children(recursive=True)
    try:
        yield Chromium(driver)
    finally:
        driver.quit()
        # They end a moment later than the driver, and some do not wait to be told.
        _, alive = psutil.wait_procs(processes, PATIENCE)
        assert not alive, f"{alive} outlive the browser"
