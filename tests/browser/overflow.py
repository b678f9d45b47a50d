"""Find the elements of a page that are wider than its window and not inside a scrollable box."""

from playwright.sync_api import Page

FIND_WIDER_ELEMENTS = """
() => {
    const width = document.documentElement.clientWidth;
    const boxed = (element) => {
        let box = element.parentElement;
        for (; box !== null && box !== document.body; box = box.parentElement) {
            const scrolls = ["auto", "scroll"].includes(getComputedStyle(box).overflowX)
                || box.matches(".visually-hidden, .dcron-hidden");
            if (scrolls && box.getBoundingClientRect().right <= width) {
                return true;
            }
        }
        return false;
    };
    const wider = (element) => {
        const { width: own, height, right } = element.getBoundingClientRect();
        return own > 1 && height > 1 && right > width + 0.5
            && getComputedStyle(element).visibility === "visible";
    };
    const found = [...document.body.querySelectorAll("*")]
        .filter((element) => wider(element) && !boxed(element));
    const outermost = found.filter((element) => !found.includes(element.parentElement));
    const scrolls = document.documentElement.scrollWidth - width;
    return [
        ...(scrolls > 0 ? [`the page itself, by ${scrolls}px`] : []),
        ...outermost.map((element) => element.cloneNode().outerHTML
            + ` until ${Math.round(element.getBoundingClientRect().right)}px`),
    ];
}
"""


def elements_wider_than_window(page: Page) -> list[str]:
    found: list[str] = page.evaluate(FIND_WIDER_ELEMENTS)
    return found
