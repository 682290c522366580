"""The page of a flame graph: harmless whatever it shows, and usable in a real browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from asyncpool.profile import Profile, ProfiledWorker, StackSamples
from tests.helpers.chromium import chromium

# Its processes come and go as it likes.
IN_A_BROWSER = pytest.mark.leaks_allowed

EVIL = "</script><script>document.title='hacked'</script><img src=x onerror=a()>"


def profile(**stacks: int) -> Profile:
    """Return a profile with these stacks, whose calls are separated by two underscores."""
    return profile_of({tuple(name.split("__")): n for name, n in stacks.items()})


def profile_of(stacks: Mapping[Any, int], pool: str = "pool shop") -> Profile:
    return Profile(
        pool=pool,
        seconds=2.0,
        rate=100.0,
        slot=None,
        function=None,
        stacks=tuple(
            StackSamples(function=function, frames=tuple(frames), samples=samples)
            for (function, *frames), samples in stacks.items()
        ),
        workers=(
            ProfiledWorker(
                slot=0,
                generation=1,
                pid=4711,
                samples=sum(stacks.values()),
                idle=3,
                skipped=0,
                missed=0,
                complete=True,
                error="",
            ),
        ),
    )


SHOP = profile(resize__load__read=20, resize__save=50, sort=30)


def data_of(page: str) -> Any:
    [found] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(found)


def test_the_page_has_the_stacks_and_says_what_they_are() -> None:
    page = SHOP.html()
    data = data_of(page)
    assert [data["names"][row[0]] for row in data["rows"]] == [
        *("all", "resize", "save", "load", "read", "sort")
    ]
    assert [row[1:] for row in data["rows"]] == [
        *([0, 0, 100], [1, 0, 70], [2, 0, 50]),
        *([2, 50, 20], [3, 50, 20], [1, 70, 30]),
    ]
    assert data["top"][0] == ["save", 50, 50]
    assert data["facts"] == [
        "100 samples of 1 worker, 100 a second each",
        "3 more found no job",
    ]
    assert "<h1>Where the time went: pool shop, 2 s</h1>" in page


def test_nothing_runs_but_what_the_page_says() -> None:
    page = SHOP.html()
    for element in ("script", "style"):
        [text] = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in page


def test_no_name_is_taken_for_markup() -> None:
    page = profile_of({(EVIL, EVIL): 1}, pool=EVIL).html()
    assert EVIL not in page
    assert html.escape(EVIL) in page
    assert page.count("<script") == SHOP.html().count("<script") == 2
    assert EVIL in data_of(page)["names"]


def test_what_no_screen_can_show_is_left_out() -> None:
    stacks = {("f", f"g{i}"): 1 for i in range(30_000)} | {("f", "wide"): 9}
    data = data_of(profile_of(stacks).html())
    assert [data["names"][row[0]] for row in data["rows"]] == ["all", "f", "wide"]


@pytest.fixture(name="browser", scope="module")
def the_browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser.driver


def open_page(browser: Any, tmp_path: Path, shown: Profile) -> None:
    shown.write_html(tmp_path / "flame.html")
    browser.get((tmp_path / "flame.html").as_uri())


def calls(browser: Any) -> dict[str, Any]:
    """Return the rectangles by what they say."""
    boxes = browser.find_elements(By.CSS_SELECTOR, "#graph .call")
    return {box.text: box for box in boxes}


def width(box: Any) -> float:
    return float(box.rect["width"])


@IN_A_BROWSER
def test_a_click_zooms(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, SHOP)
    before = calls(browser)
    assert set(before) == {"all", "resize", "save", "load", "read", "sort"}
    assert width(before["resize"]) == pytest.approx(0.7 * width(before["all"]), abs=2)
    whole = width(before["all"])
    before["load"].click()
    zoomed = calls(browser)
    assert set(zoomed) == {"all", "resize", "load", "read"}
    assert width(zoomed["read"]) == pytest.approx(whole, abs=2)
    told = browser.find_element(By.ID, "told").text
    assert told == "load: 20 samples, 0.200 s of workers, 20.0 %"
    browser.find_element(By.ID, "reset").click()
    assert set(calls(browser)) == set(before)
    assert browser.get_log("browser") == []


@IN_A_BROWSER
def test_the_keyboard_does_the_same(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, SHOP)
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB, Keys.TAB, Keys.TAB)
    for keys, name in (
        (Keys.ARROW_DOWN, "resize"),
        (Keys.ARROW_RIGHT, "sort"),
        (Keys.ARROW_LEFT, "resize"),
        (Keys.ARROW_DOWN, "save"),
        (Keys.ENTER, "save"),
    ):
        browser.switch_to.active_element.send_keys(keys)
        assert browser.switch_to.active_element.text == name
    assert set(calls(browser)) == {"all", "resize", "save"}
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert set(calls(browser)) == {"all", "resize", "save", "load", "read", "sort"}
    browser.switch_to.active_element.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "search"
    assert browser.get_log("browser") == []


@IN_A_BROWSER
def test_a_search_marks_and_counts(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, SHOP)
    browser.find_element(By.ID, "search").send_keys("R")
    marked = {
        name
        for name, box in calls(browser).items()
        if "match" in box.get_attribute("class")
    }
    assert marked == {"resize", "read", "sort"}
    found = browser.find_element(By.ID, "found").text
    assert found == "100.0 % of the samples", "what is within another one counts once"
    browser.find_elements(By.CSS_SELECTOR, "#top button")[0].click()
    assert browser.find_element(By.ID, "found").text == "50.0 % of the samples"


@IN_A_BROWSER
def test_an_evil_name_is_only_shown(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, profile_of({(EVIL, EVIL): 1}, pool=EVIL))
    assert EVIL in browser.title
    assert EVIL in calls(browser)
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.get_log("browser") == []


@IN_A_BROWSER
@pytest.mark.parametrize("wide", [360, 1400])
def test_no_screen_scrolls_sideways(browser: Any, tmp_path: Path, wide: int) -> None:
    deep = profile_of({("f" * 200, *(f"{'g' * 190}:{i}" for i in range(60))): 5})
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": wide, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        open_page(browser, tmp_path, deep)
        inside, outside = browser.execute_script(
            "return [document.documentElement.scrollWidth, window.innerWidth]"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (inside <= outside, outside) == (True, wide)
