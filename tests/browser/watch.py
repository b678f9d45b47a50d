"""Detect forbidden behavior on any page, whatever the test asserts.

A page must not log errors or warnings, throw, violate the policy, receive an error response or
contact another host. Chromium logs policy violations and error responses as errors. The favicon is
excluded: the project provides it.
"""

from playwright.sync_api import BrowserContext, ConsoleMessage, Request, WebError

UNWANTED = ("error", "warning")


class Watch:
    def __init__(self, site: str) -> None:
        self._site = site
        self.complaints: list[str] = []

    def follow(self, context: BrowserContext) -> None:
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in UNWANTED and message.location["url"] != f"{self._site}/favicon.ico":
            where = f"{message.location['url']}:{message.location['lineNumber']}"
            self.complaints.append(f"console {message.type}: {message.text} ({where})")

    def _on_error(self, error: WebError) -> None:
        self.complaints.append(f"thrown: {error.error}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self._site}/", "data:", "blob:")):
            self.complaints.append(f"request to another host: {request.method} {request.url}")
