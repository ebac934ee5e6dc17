"""Pictures of `pfvm view` for the README: python tests/view_screenshots.py docs/view out/mnist/train_step=train …"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from playwright.sync_api import sync_playwright
from view_support import browser_path, visit


def take(browser: Any, target: pathlib.Path, folder: pathlib.Path, name: str, dark: bool = False) -> None:
    """A picture of every tab of a directory."""
    with visit(browser, folder, color_scheme="dark" if dark else "light") as shown:
        for tab in ("Stages", "Passes", "Plan", "Report", "Log"):
            panel = shown.tab(tab)
            if tab == "Stages":
                shown.page.frame_locator("iframe").locator(".node").first.wait_for()
                panel.locator(".row").nth(2).click()
            if tab == "Passes" and panel.locator("tbody button").count():
                panel.locator("tbody button").first.click()
                panel.get_by_text("Running the passes again").wait_for(state="detached")
            shown.page.wait_for_timeout(700)
            shown.page.screenshot(path=target / f"{name}-{tab.lower()}.png")


def main(target: str, *named: str) -> None:
    """Pictures of each FOLDER=NAME; of a NAME that ends with dark, in dark colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        for each in named:
            path, _, label = each.partition("=")
            take(browser, pathlib.Path(target), pathlib.Path(path), label, label.endswith("dark"))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
