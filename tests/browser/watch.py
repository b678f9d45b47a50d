"""What no page of ours may ever do, whatever a test asserts: log an error or a warning, throw, violate the policy (which Chromium
logs as an error), answer with an error, or ask another host. The icon that Chromium asks each site for is the site's affair."""

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
            self.complaints.append(f"asked another host: {request.method} {request.url}")
