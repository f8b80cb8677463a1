"""The page of ``wds report`` in a browser, Debian's chromium: nothing in the console, all pictures shown, the filter
works, and what a caption says is not done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_sets import EVIL, write_set
from shard_cases import wds_here

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium or chromedriver is not installed"
    ),
]
FLAGS = """
--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1400,900
"""
SHOWN = (
    "return [...document.querySelectorAll(arguments[0])].filter(one => one.getClientRects().length).length"
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = None
    for attempt in range(3):
        # On a machine that is busy with other tests a browser may not be up in the time that its driver gives it.
        options.add_argument(f"--user-data-dir={tmp_path / f'profile{attempt}'}")
        try:
            driver = webdriver.Chrome(options=options, service=Service(DRIVER))
            break
        except WebDriverException as error:
            if attempt == 2:
                pytest.skip(f"chromium does not start here: {error.msg}")
    assert driver is not None
    driver.set_page_load_timeout(100)
    driver.set_script_timeout(100)
    yield driver
    driver.quit()


def test_the_page_in_a_browser(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert wds_here("report", write_set(tmp_path), "-o", page).code == 0
    browser.get(page.as_uri())

    def shown(selector: str) -> int:
        return int(browser.execute_script(SHOWN, selector))

    def type_in(text: str) -> None:
        browser.execute_script(
            "const box = document.getElementById('filter'); box.value = arguments[0];"
            "box.dispatchEvent(new Event('input'))",
            text,
        )

    # Pictures below the window are loaded when it comes to them; decode() waits for each.
    loaded = browser.execute_async_script(
        "const done = arguments[0], all = [...document.images]; all.forEach(one => one.loading = 'eager');"
        "Promise.all(all.map(one => one.decode())).then(() => done(all.map(one => one.naturalWidth)), () => done([]))"
    )
    assert sorted(loaded) == sorted(20 + number % 5 for number in range(40))

    # What captions say is text.
    assert browser.title == f"{tmp_path.name}/train: 40 samples"
    captions = browser.execute_script(
        "return [...document.querySelectorAll('.caption')].map(one => one.textContent)"
    )
    assert captions.count(EVIL) == 5

    assert shown(".card") == 40
    type_in("n017 NUMBER")
    assert shown(".card") == 1
    assert "1 of 40 shown" in browser.execute_script("return document.getElementById('samples').innerText")
    assert shown("#captions") == 0
    type_in("nowhere")
    assert shown(".card") == 0
    assert shown("#nothing") == 1
    type_in("")
    assert (shown(".card"), shown("#captions")) == (40, 1)
    browser.execute_script("document.querySelector('#classes [data-class=\"2\"]').click()")
    assert shown(".card") == 10
    browser.execute_script("document.getElementById('unfilter').click()")
    assert shown(".card") == 40

    ground = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(ground)
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script(ground) != before
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1400
    assert browser.get_log("browser") == []


def test_the_page_on_a_phone(browser: Any, tmp_path: Path) -> None:
    """At 400 pixels every column of every table is on the screen, and keys break after separators only."""
    samples = write_set(tmp_path)
    page = tmp_path / "page.html"
    assert wds_here("report", samples, "-o", page).code == 0
    phone = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 400
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('td, th')].filter("
        "one => one.getBoundingClientRect().right > 400).map(one => one.textContent)"
    )
    assert beyond == []
    names = browser.execute_script(
        "return [...document.querySelectorAll('#fields tr:nth-child(1) td')].map("
        "one => getComputedStyle(one, '::before').content)"
    )
    assert names[:2] + names[-1:] == ['"holds"', '"in samples"', '"sizes"']


def test_a_narrow_menu_shows_that_it_scrolls(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert wds_here("report", write_set(tmp_path), "-o", page).code == 0
    browser.set_window_size(500, 900)
    browser.get(page.as_uri())
    browser.execute_script("document.body.style.width = '390px'; dispatchEvent(new Event('resize'))")
    menu = "document.querySelector('.links')"
    classes = f"return {menu}.className"
    assert browser.execute_script(classes) == "links more"
    scroll = f"{menu}.scrollLeft = 1e6; {menu}.dispatchEvent(new Event('scroll'))"
    browser.execute_script(scroll)
    assert browser.execute_script(classes) == "links before"
