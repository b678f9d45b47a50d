"use strict";

// Loads the health line above the page. Nothing appears while all is well or if the request fails.
for (const place of document.querySelectorAll("[data-dcron-status]")) {
    fetch(place.dataset.dcronStatus, { redirect: "error" })
        .then((response) => (response.ok ? response.text() : ""))
        .then((html) => { place.innerHTML = html; })
        .catch(() => {});
}
